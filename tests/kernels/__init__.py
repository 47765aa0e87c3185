"""Tests of the kernels: the fast paths against the slow ones."""
