"""Event streams: what they are, where they come from, and a simulator of the camera that makes them."""

from .container import Events, dense_rows, input_ids, input_shape

__all__ = ["Events", "dense_rows", "input_ids", "input_shape"]
