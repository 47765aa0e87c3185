"""Simulated stand-ins for data sets of the paper that are not free to download, and where data sets
are found.
"""

from typing import Any

from agreestop.common import cores
from agreestop.events import DataSet, EventSplits
from agreestop.events.datasets import catalogue

from .gesture_sim import DATA_SET, simulate_gestures

__all__ = ["find", "load", "simulate_gestures"]


def find(name: str) -> DataSet:
    """The data set of that name: a stand-in, or one of the package."""
    return DATA_SET if name == DATA_SET.name else catalogue.find(name)


def load(name: str, *arguments: Any, **settings: Any) -> EventSplits:
    """What `agreestop.events.load_data_set` does, for stand-ins too, on all cores."""
    if name == DATA_SET.name:
        settings = {"workers": cores(), **settings}  # the simulation is slow
    return catalogue.load(find(name), *arguments, **settings)
