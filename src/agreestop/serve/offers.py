"""What a server offers, which its clients are told when they connect: inputs that are decided under
a rule, or streams without an end.
"""

import math
from dataclasses import dataclass
from typing import Any, Self

from agreestop.decide.calibrated import CalibratedRule

from .protocol import LABELS, Bounds
from .streams import Streams

TICK_STEPS = 4096  # of one client in one batch at most
TICK_BYTES = 8 << 20  # of evidence of one client in one batch at most


@dataclass(frozen=True, eq=False)
class Offer:
    """What is served.

    about       the fields of the welcome
    bounds      of a message
    promise     in words
    end_units   the work of answering an input that is over
    most_units  of one client in one batch
    """

    about: dict[str, Any]
    bounds: Bounds
    promise: str
    end_units: int = 1
    most_units: int = TICK_STEPS

    @classmethod
    def of_rule(cls, calibrated: CalibratedRule, shape: tuple[int, ...] | None) -> Self:
        """Inputs that end with a decision; shape: of a step, None without members."""
        reads, looks = calibrated.rule.terms.reads, len(calibrated.checkpoints)
        about = {
            "reads": reads if shape is None else "events",
            "label": LABELS[reads],
            "endless": False,
            "members": calibrated.members,
            "classes": calibrated.classes if reads == "log_confidence" else None,
            "class_names": calibrated.class_names,
            "inputs": None if shape is None else math.prod(shape),
            "shape": shape,
            "checkpoints": looks,
            "last_time": calibrated.checkpoints[-1],
            "promise": calibrated.guarantee,
        }
        most = TICK_BYTES // (8 * calibrated.members * calibrated.classes)
        most = max(1, min(TICK_STEPS, most))
        return cls(about, Bounds.of(calibrated, shape), calibrated.guarantee, looks, most)

    @classmethod
    def of_streams(cls, streams: Streams, shape: tuple[int, ...] | None) -> Self:
        """Streams without an end; shape: of a step, None where clients push scores."""
        inputs = None if shape is None else math.prod(shape)
        about: dict[str, Any] = {
            "reads": "scores" if shape is None else "events",
            "label": None,
            "endless": True,
        }
        about |= {"inputs": inputs, "shape": shape, "promise": streams.promise}
        return cls(about, Bounds.of_streams(shape), streams.promise)
