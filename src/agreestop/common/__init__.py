"""What every package needs: input errors, array checks, atomic files, locks, `.npz` files,
hashes, progress, processes, cores.
"""

from .arrays import (
    GAMMA,
    Booleans,
    Floats,
    Integers,
    Words,
    as_array,
    as_count,
    as_floats,
    as_ids,
    as_labels,
    as_names,
    as_row_names,
    as_seed,
    as_size,
    as_texts,
    check_finite,
    check_lengths,
    check_texts,
    is_integer,
    is_number,
    is_text,
    mix,
    with_axis,
)
from .axes import check_series, time_last, warn_of_time_last
from .errors import CalibrationWarning, InputError, needs
from .files import (
    atomic_writer,
    check_writable,
    file_lock,
    folder_lock,
    make_folder,
    open_file,
    read_file,
)
from .kept import KeptInFiles
from .npz import (
    Arrays,
    check_unchanged,
    digest_of,
    in_memory,
    read_list,
    read_npz,
    read_shapes,
    read_text,
    write_npz,
)
from .processes import run_tasks
from .progress import ProgressCallback, Stages, cores, no_progress

__all__ = [
    "GAMMA",
    "Arrays",
    "Booleans",
    "CalibrationWarning",
    "Floats",
    "InputError",
    "Integers",
    "KeptInFiles",
    "ProgressCallback",
]
__all__ += [
    "Stages",
    "Words",
    "as_array",
    "as_count",
    "as_floats",
    "as_ids",
    "as_labels",
    "as_names",
    "as_row_names",
    "as_seed",
]
__all__ += ["as_size", "as_texts", "atomic_writer", "check_finite", "check_lengths"]
__all__ += ["check_series", "check_texts", "check_unchanged", "check_writable", "cores"]
__all__ += [
    "digest_of",
    "file_lock",
    "folder_lock",
    "in_memory",
    "is_integer",
    "is_number",
    "is_text",
]
__all__ += ["make_folder", "mix", "needs", "no_progress", "open_file", "read_file", "read_list"]
__all__ += ["read_npz", "read_shapes", "read_text", "run_tasks", "time_last", "warn_of_time_last"]
__all__ += ["with_axis", "write_npz"]
