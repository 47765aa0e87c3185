"""The inner loops of the event-driven engine, compiled by numba: lists of events in, spikes
of neurons out.

    x_t = scale · Σ_{events e at t} value_e · W[e, :] + bias

Neurons (`event_neurons`) lie side by side in *lanes*; a tile has 128 lanes or 16. In `event_tiles`
the sums of a tile stay in registers for all events of a step, and its state stays there for all
steps of a block. A step then costs one read of a weight row per event and little else. Spikes are
bits in arrays (words of 64 neurons, pairs of row and step), so the spikes of a tile over time are
neighbours in memory. Small convolutions (`event_convolutions`, `event_rows`) go line by line
instead, and add the weight rows of each spike to the positions that it reaches.

Each sum follows the order of its inputs, and the recursion uses the fused multiply-add where
PyTorch does. So each neuron is one fixed sequence of roundings. It does not depend on the thread,
the batch or the length of the block.
"""

from .event_convolutions import MARGIN
from .event_format import (
    CONSTANTS,
    LAYER,
    NARROW,
    RESETS,
    SPARE,
    SRM,
    STEPS_SUMMED,
    SUBTRACTS,
    TOGETHER,
    WIDE,
)
from .event_inputs import list_events, list_inputs, mark_events, mark_positions
from .event_layers import advance, pool
from .event_live import push, push_filtered, push_rows
from .event_rows import list_reach, run_rows
from .event_tiles import EVENTS_IN_A_BLOCK

__all__ = [
    "CONSTANTS", "EVENTS_IN_A_BLOCK", "LAYER", "MARGIN", "NARROW", "RESETS", "SPARE", "SRM",
    "STEPS_SUMMED", "SUBTRACTS", "TOGETHER", "WIDE", "advance", "list_events", "list_inputs",
    "list_reach", "mark_events", "mark_positions", "pool", "push", "push_filtered", "push_rows",
    "run_rows",
]  # fmt: skip
