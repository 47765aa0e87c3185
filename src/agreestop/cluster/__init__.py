"""The same work on Ray: decisions, scores and calibration on the machines of a cluster.

decide            recordings in files -> decisions in Parquet files; continues after any worker or
                  the driver was killed
load_decisions    those files as `Decisions`
score             recordings in files -> `Scores`
calibrate         labelled recordings in files -> a calibrated rule, without bringing their
                  scores to one place
save_recordings   `Events` -> a Parquet file of recordings
map_tasks         any other work: each of the `Actors` builds a worker and runs tasks

On one machine nothing of this is needed. It needs the extra `cluster` (Ray and pyarrow).
"""

from agreestop.common.errors import needs

with needs("agreestop.cluster", extras="cluster"):
    from .decisions import ClusterRun, decide
    from .parts import load_decisions
    from .pool import Actors, map_tasks
    from .scores import calibrate, score
    from .sources import save_recordings

__all__ = [
    "Actors",
    "ClusterRun",
    "calibrate",
    "decide",
    "load_decisions",
    "map_tasks",
    "save_recordings",
    "score",
]
