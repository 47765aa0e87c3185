"""The event-driven engine: numba on the CPU."""
