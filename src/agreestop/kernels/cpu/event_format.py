"""What the event-driven engine and its loops agree on: the description of a layer, kinds of
neurons, and the rows of their constants.
"""

import numpy as np

from .intrinsics import NARROW, WIDE

__all__ = [
    "CONSTANTS",
    "LAYER",
    "NARROW",
    "RESETS",
    "SPARE",
    "SRM",
    "STEPS_SUMMED",
    "SUBTRACTS",
    "TOGETHER",
    "WIDE",
]

# the recursion runs after the sums of 16 steps, which still lie in the first cache
STEPS_SUMMED = 16
# steps that a line of a convolution takes together: their currents still lie in the first cache
TOGETHER = 8
SPARE = 8  # entries that a list needs beyond its events

LAYER_FIELDS = (
    "still",  # 1 if neurons below their threshold stay as they are without input: IF neurons
    # SRM, RESETS or SUBTRACTS; weight rows for the layer's own spikes of the last step, after those
    # for its input
    "neuron", "recurrent",
    # 1 if the inputs are lists, 0 if they are bits; 1 if each member has its own input, 0 if
    # all share one
    "listed", "own",
    # the window of a convolution; a fully connected layer has one window
    "window_y", "window_x", "stride_y", "stride_x", "pad_y", "pad_x",
    # weight rows: window positions times channels, and recurrent ones; neurons at each position
    "rows", "outputs",
    "height", "width",  # positions; 1 × 1 for a fully connected layer
    "convolves",  # 1 if it is a convolution
    # tiles of 128 lanes at each position, then tiles of 16; lanes in all
    "wide", "narrow", "lanes",
    "words", "pool",  # words of 64 spikes at each position; 1 if a 2×2 max-pool follows
    # the input after the pool: channels, positions, and words per position
    "in_channels", "in_height", "in_width", "in_words",
    # first indices in weights, state and constants
    "weights_at", "row_stride", "member_stride", "state_at", "lanes_at", "all_lanes",
)  # fmt: skip
SRM, RESETS, SUBTRACTS = 0, 1, 2
"""Kinds of neurons: the spike response model; integrators that are set to a value after a spike,
or from which one is subtracted.
"""
CONSTANTS = ("scale", "bias", "a", "b", "r", "threshold", "gain", "reset")
"""Rows of the constants, each with one number for every lane. r is l for integrators; reset is
-θ r for SRM neurons.
"""
LAYER = np.dtype([(name, np.int64) for name in LAYER_FIELDS])
"""The description of one layer for the loops. Sizes and indices count elements."""
