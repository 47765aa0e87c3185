"""The error for bad input: its message says what was given, what is needed and what to do."""

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


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The extra of agreestop that installs the package that was not found; None for a package of no extra."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in _EXTRAS.items() if package in packages), None)
