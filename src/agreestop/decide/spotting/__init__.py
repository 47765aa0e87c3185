"""Alarms in streams without an end, with a promise about false alarms.

recordings.py   scores of many streams, their events and people, and the files of these
alarms.py       where there are alarms, at every threshold, and what they find
spotter.py      the rule: its settings, its calibration, and the stream under watch
evaluation.py   how good alarms were, with intervals for the draw of the recordings
"""

from .evaluation import SpottingEvaluation
from .recordings import Recordings, load_recordings
from .spotter import CalibratedSpotter, Detection, Spotter, SpotterStream

__all__ = ["CalibratedSpotter", "Detection", "Recordings", "Spotter", "SpotterStream"]
__all__ += ["SpottingEvaluation", "load_recordings"]
