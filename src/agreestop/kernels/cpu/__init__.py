"""Loops for processors, compiled by numba."""
