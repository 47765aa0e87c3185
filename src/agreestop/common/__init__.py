"""What every package needs: input errors, array checks, atomic files, `.npz` files, hashes, progress, cores."""

from .arrays import Booleans, Floats, Integers, as_count, as_floats, as_seed, as_size, check_finite, is_integer, is_number, with_axis
from .cores import cores
from .errors import InputError
from .files import atomic_writer, make_folder
from .npz import Arrays, digest_of, read_list, read_npz, read_text, write_npz
from .progress import ProgressCallback, Stages, no_progress
from .splitmix import GAMMA, Words, mix

__all__ = ["GAMMA", "Arrays", "Booleans", "Floats", "InputError", "Integers", "ProgressCallback", "Stages", "Words"]
__all__ += ["as_count", "as_floats", "as_seed", "as_size", "atomic_writer", "check_finite", "cores", "digest_of", "is_integer", "is_number"]
__all__ += ["make_folder", "mix", "no_progress", "read_list", "read_npz", "read_text", "with_axis", "write_npz"]
