"""Reading `.npz` files: plain arrays only, nothing is unpickled or executed, and one clear sentence for whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

Arrays = dict[str, NDArray[Any]]


def read_npz(path: str | PathLike[str], what: str, how: str, missing: str = "check the path", needed: Iterable[str] = ()) -> Arrays:
    """All arrays of an `.npz` file, by name.

    what     what the file should be, for the error message: "score file"
    how      how to make such a file: "write one with save_scores"
    missing  what to do if there is no such file
    needed   names of arrays that must be in the file
    """
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:  # noqa: PTH123
            arrays: Arrays = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: {missing}.") from None
    except Exception:  # zip, zlib and numpy raise errors of many types for foreign or damaged bytes
        raise InputError(f"{path} is not a whole {what}: {how}.") from None
    for name in needed:
        if name not in arrays:
            raise InputError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'} but no {name!r}: {how}.")
    return arrays


def read_list(path: str | PathLike[str], arrays: Arrays, name: str) -> list[Any]:
    """The array of that name as a list of Python values; it must have one axis."""
    if arrays[name].ndim != 1:
        raise InputError(f"{path} holds {name} of shape {arrays[name].shape}: a list, one axis, is needed.")
    values: list[Any] = arrays[name].tolist()
    return values


def read_text(arrays: Arrays, name: str) -> str:
    """The array of that name as text; empty if the file has none."""
    return str(arrays.get(name, ""))
