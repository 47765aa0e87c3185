"""Figures of what was measured, and the HTML report."""

from .contents import GroupCoverage, Report, Section, describe_ensemble, settings_in_words, versions
from .pictures import InputPictures
from .records import MeasurementSettings, Record, interval, promise_of, summarise

__all__ = ["GroupCoverage", "InputPictures", "MeasurementSettings", "Record", "Report", "Section"]
__all__ += [
    "describe_ensemble",
    "interval",
    "promise_of",
    "settings_in_words",
    "summarise",
    "versions",
]
