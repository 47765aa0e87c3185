"""Event streams: a container for inputs (n, T, ...), recordings, data sets, and a simulator of
the event camera.

container    `Events`, sparse inputs with labels; `load` reads its files; `input_ids` hashes inputs
data sets    `load_data_set` by name, `load_files` for own data; each gives `EventSplits` of
             three `EventData`
recordings   readers of AEDAT 2.0, AEDAT 3.1 and N-MNIST; `bin_events` turns a
             `Recording` into T steps
simulator    `simulate_events`: a `Sensor` in front of moving images
"""

from .camera.simulator import Sensor, circular_path, simulate_events
from .container import Events, dense_rows, input_ids, input_shape
from .data import DataSet, EventData, EventSplits
from .datasets.catalogue import DATA_SETS, NAMES
from .datasets.catalogue import check as check_data_set
from .datasets.catalogue import load as load_data_set
from .datasets.n_mnist import read_n_mnist
from .files import load, load_events, load_files, save_events
from .formats.aedat import read_aedat2, read_aedat3
from .formats.recording import Recording, bin_events, checked_recording

__all__ = [
    "DATA_SETS",
    "NAMES",
    "DataSet",
    "EventData",
    "EventSplits",
    "Events",
    "Recording",
    "Sensor",
]
__all__ += [
    "bin_events",
    "check_data_set",
    "checked_recording",
    "circular_path",
    "dense_rows",
    "input_ids",
    "input_shape",
]
__all__ += [
    "load",
    "load_data_set",
    "load_events",
    "load_files",
    "read_aedat2",
    "read_aedat3",
    "read_n_mnist",
]
__all__ += ["save_events", "simulate_events"]
