"""Event streams: what they are, where they come from, and a simulator of the camera that makes them."""

from .container import Events, dense_rows, input_ids, input_shape
from .data import EventData, EventSplits
from .files import load, load_events, save_events

__all__ = ["EventData", "EventSplits", "Events", "dense_rows", "input_ids", "input_shape", "load", "load_events", "save_events"]
