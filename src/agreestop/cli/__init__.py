"""The command line: `agreestop VERB`, one module a verb. It calls the rooms and holds no logic of its own."""

from __future__ import annotations

from .app import main

__all__ = ["main"]
