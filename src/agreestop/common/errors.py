"""The error for bad input: its message says what was given, what is needed and what to do.

A missing package raises such an error too.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

LONGEST_QUOTE = 80  # characters of what a user or a file gave
_EXTRAS = {
    "networks": ("torch", "safetensors"),
    "engines": ("numba",),
    "figures": ("matplotlib", "jinja2"),
    "learn": ("sklearn",),
    "nir": ("nir", "h5py"),
    "cluster": ("ray", "pyarrow"),
    "serve": ("starlette", "uvicorn", "websockets"),
}
"""The extras of agreestop, and the packages that each installs."""
_NAMES = {"sklearn": "scikit-learn", "ray": "Ray"}
"""How packages are called that have another name in Python."""


class InputError(ValueError):
    """Something handed to agreestop cannot be used; the message says what to do about it.

    Parameters
    ----------
    message
        One sentence: what was given, what is needed, what to do. Messages quote users and files,
        so control characters are written out. Long values are shortened where they are quoted.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.AgreeStop(target=0.9, checkpoints=(1, 2), max_set_size=0.5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    agreestop.common.errors.InputError: max_set_size is 0.5: give the largest set that may stop...
    """

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class CalibrationWarning(UserWarning):
    """Calibration went through, but the rule may be of little use; the message says what to do.

    For example, the rule can never exclude a label, or new inputs end early and the calibration
    inputs did not.

    Examples
    --------
    >>> import warnings
    >>> import agreestop as ag
    >>> rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 21), max_set_size=1)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     few = rule.calibrate(ag.simulate_scores(5, steps=20))
    >>> caught[0].category is ag.CalibrationWarning, few.never_stops
    (True, True)
    """


def warn_user(sentence: str) -> None:
    """Give a `CalibrationWarning` that points at the nearest line outside agreestop."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("agreestop."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, CalibrationWarning, stacklevel=level)


@contextmanager
def no_calibration_warnings() -> Iterator[None]:
    """For reports, which say themselves what cannot stop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield


def visible(text: str) -> str:
    r"""The text with control characters written out, such as "\x1b": a terminal would obey them."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def shortened(text: object) -> str:
    """The first 80 characters of a text, with an ellipsis where more follow."""
    shown = visible(str(text))
    return shown if len(shown) <= LONGEST_QUOTE else f"{shown[: LONGEST_QUOTE - 1]}…"


def quoted(value: object) -> str:
    """The repr of what a user or a file gave, shortened."""
    try:
        return shortened(repr(value))
    except ValueError:  # Python prints no integer of more than 4,300 digits
        return "a number of thousands of digits"


class MissingPackage(InputError, ModuleNotFoundError):
    """An optional package cannot be imported; the message says what to install."""


def install_extra(extra: str) -> str:
    """How to install an extra of agreestop: by its name where it is installed, or from a clone."""
    return f"pip install 'agreestop[{extra}]' (in a clone '.[{extra}]')"


@contextmanager
def needs(what: str, *packages: str, advice: str = "", extras: str = "") -> Iterator[None]:
    """Import optional packages. Where an import fails, the error says which extra to install.

    extras    what to install, where it takes more than the extra of the first package that is
              missing: one command, not one after the other
    packages  packages outside the extras of agreestop, which are installed by their own names. The
              first is meant where an error names none. The failure of any other import is raised as
              it is, because it is a fault of agreestop
    advice    what else one can do
    """
    try:
        yield
    except MissingPackage as error:
        if not extras:
            raise
        raise _missing(what, str(error.name), "is not installed", install_extra(extras)) from error
    except ImportError as error:
        package = (error.name or next(iter(packages), "")).partition(".")[0]
        extra = next((extra for extra, names in _EXTRAS.items() if package in names), None)
        if extra is None and package not in packages:
            raise
        absent = isinstance(error, ModuleNotFoundError)
        state = "is not installed" if absent else f"cannot be imported ({error})"
        install = f"pip install {package}" if extra is None else install_extra(extras or extra)
        raise _missing(what, package, state, f"{install}{advice and ', or ' + advice}") from error


def _missing(what: str, package: str, state: str, install: str) -> MissingPackage:
    found = f"{what} needs {_NAMES.get(package, package)}, which {state}: {install}."
    error = MissingPackage(found)
    error.name = package
    return error
