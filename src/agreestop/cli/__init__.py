"""The command line: `agreestop VERB`, one module for each verb. It parses and prints; the work is done by the other packages."""

from .app import main

__all__ = ["main"]
