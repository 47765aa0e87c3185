"""Kernels for GPUs in Triton, whose interpreter can run them on a CPU."""
