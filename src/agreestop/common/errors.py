"""The error for bad input: its message says what was given, what is needed and what to do."""

_EXTRAS = {"networks": ("torch", "safetensors"), "engines": ("numba",), "figures": ("matplotlib", "jinja2"), "learn": ("sklearn",)}
"""The extras of agreestop, and the packages that each installs."""


class InputError(ValueError):
    """Something handed to agreestop cannot be used; the message says what to do about it."""


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The extra of agreestop that installs the package that was not found; None for a package of no extra."""
    package = (error.name or "").partition(".")[0]
    return next((extra for extra, packages in _EXTRAS.items() if package in packages), None)
