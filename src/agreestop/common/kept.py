"""Classes whose objects may be kept in files, under the name of the class."""

from typing import Any

KEPT: dict[str, type[Any]] = {}
"""The classes that derive from `KeptInFiles`, by name."""


class KeptInFiles:
    """A base of dataclasses whose objects may be kept in rule files, under the name of the class.

    A class of your own may derive from it too. Its module must be imported before a file is loaded.
    Of two classes with one name, only the first can be kept.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        first = KEPT.setdefault(cls.__name__, cls)
        if str(first) == str(cls):  # a notebook may define a class again
            KEPT[cls.__name__] = cls
