"""The GPU engine: Triton kernels and continuous batching."""
