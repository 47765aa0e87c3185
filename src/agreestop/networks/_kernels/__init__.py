"""Every numba and Triton kernel."""
