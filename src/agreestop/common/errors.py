"""The error for bad input: its message says what was given, what is needed and what to do. A missing package is one of these."""

from collections.abc import Iterator
from contextlib import contextmanager

LONGEST = 299  # characters of a message
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

    Messages quote files, so control characters are written out, and the middle of a message that is too long is left out.
    """

    def __init__(self, message: str) -> None:
        text, half = visible(message), LONGEST // 2
        super().__init__(text if len(text) <= LONGEST else f"{text[: half - 1]} … {text[1 - half :]}")


def visible(text: str) -> str:
    r"""The text with escape sequences and other control characters written out, as in "\x1b[31m": a terminal would obey them."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


class MissingPackage(InputError, ModuleNotFoundError):
    """An optional package cannot be imported; the message says what to install."""


@contextmanager
def needs(what: str, *packages: str, advice: str = "") -> Iterator[None]:
    """Imports of optional packages. Where one fails, the error says what needs it, and which extra of agreestop installs it.

    packages  those outside the extras of agreestop, which are installed by their own names; the first is meant where an error names none.
              The failure of any other import is raised as it is, because it is a fault of agreestop
    advice    what else one can do
    """
    try:
        yield
    except MissingPackage:
        raise
    except ImportError as error:
        package = (error.name or next(iter(packages), "")).partition(".")[0]
        extra = next((extra for extra, names in _EXTRAS.items() if package in names), None)
        if extra is None and package not in packages:
            raise
        absent = isinstance(error, ModuleNotFoundError)
        state = "is not installed" if absent else f"cannot be imported ({error})"
        install = f"'agreestop[{extra}]'" if extra is not None else package
        found = f"{what} needs {_NAMES.get(package, package)}, which {state}: pip install {install}"
        missing = MissingPackage(f"{found}{advice and ', or ' + advice}.")
        missing.name = package
        raise missing from error
