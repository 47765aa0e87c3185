"""What every package needs: input errors, array checks, atomic files, locks, `.npz` files, hashes, progress, processes, cores."""

from .arrays import (
    Booleans,
    Floats,
    Integers,
    as_array,
    as_count,
    as_floats,
    as_names,
    as_seed,
    as_size,
    as_texts,
    check_finite,
    check_lengths,
    check_texts,
    is_integer,
    is_number,
    with_axis,
)
from .errors import InputError, needs
from .files import atomic_writer, check_writable, file_lock, folder_lock, make_folder, open_file, read_file
from .npz import Arrays, check_unchanged, digest_of, in_memory, read_list, read_npz, read_shapes, read_text, write_npz
from .processes import run_tasks
from .progress import ProgressCallback, Stages, cores, no_progress
from .splitmix import GAMMA, Words, mix

__all__ = ["GAMMA", "Arrays", "Booleans", "Floats", "InputError", "Integers", "ProgressCallback"]
__all__ += ["Stages", "Words", "as_array", "as_count", "as_floats", "as_names", "as_seed"]
__all__ += ["as_size", "as_texts", "atomic_writer", "check_finite", "check_lengths", "check_texts"]
__all__ += ["check_unchanged", "check_writable", "cores", "digest_of", "file_lock", "folder_lock"]
__all__ += ["in_memory", "is_integer", "is_number", "make_folder", "mix", "needs", "no_progress"]
__all__ += ["open_file", "read_file", "read_list", "read_npz", "read_shapes", "read_text"]
__all__ += ["run_tasks", "with_axis", "write_npz"]
