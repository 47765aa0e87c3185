"""Engines: run an ensemble over time and stop where a calibrated rule stops.

    engine = choose_engine(network)                   dense, event-driven (CPU) or fused (GPU)
    scores = score(engine, inputs, labels)            log-confidences (n, T, K, C)
    run = decide_early(engine, calibrated, inputs)    decisions, and the steps that were computed
    session = LiveSession(engine, calibrated)         one live input

The names that need PyTorch or numba are loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agreestop.common.errors import needs

from .early_stopping import EarlyRun, RunOptions, decide_early, run_to_end, score
from .live import LiveSession
from .live_batch import LiveBatch, LiveInput, Push, Reading, Steps
from .protocol import ENGINES, Engine, Live, Pass
from .watching import Heard, WatchSession

if TYPE_CHECKING:
    from .dense import Dense as Dense
    from .dense import FreshMembers as FreshMembers
    from .event_driven.engine import EventDriven as EventDriven
    from .gpu.engine import Fused as Fused
    from .runner import choose_engine as choose_engine
    from .runner import lightest_engine as lightest_engine

__all__ = [
    "ENGINES",
    "Dense",
    "EarlyRun",
    "Engine",
    "EventDriven",
    "FreshMembers",
    "Fused",
    "Live",
    "LiveSession",
    "Pass",
    "RunOptions",
]
__all__ += ["Heard", "LiveBatch", "LiveInput", "Push", "Reading", "Steps", "WatchSession"]
__all__ += ["choose_engine", "decide_early", "lightest_engine", "run_to_end", "score"]

_LAZY = {
    "Dense": "dense",
    "EventDriven": "event_driven.engine",
    "FreshMembers": "dense",
    "Fused": "gpu.engine",
}
_LAZY |= {"choose_engine": "runner", "lightest_engine": "runner"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    extras = "engines" if name == "EventDriven" else ""
    with needs(f"agreestop.engines.{name}", extras=extras):
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
