"""The command line: `agreestop VERB`, one module for each verb.

It parses and prints; the work is done by the other packages.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run `agreestop`. Ctrl-C ends it without a traceback, also while the packages are loading."""
    try:
        from .app import app, run_app

        run_app(app)
    except KeyboardInterrupt:
        sys.exit(130)
