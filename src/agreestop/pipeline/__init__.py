"""The main job: configuration, data, training, scores, measurements, report."""

from .config import (
    DataSettings,
    DecideSettings,
    EnsembleSettings,
    NetworkSettings,
    RunConfig,
    load_config,
)

__all__ = ["DataSettings", "DecideSettings", "EnsembleSettings", "NetworkSettings", "RunConfig"]
__all__ += ["load_config"]
