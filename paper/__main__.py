"""`python -m paper`."""

from __future__ import annotations

from agreestop.cli.app import interruptible, new_app, run_app

from .cli import reproduce

app = new_app("")
app.command()(interruptible(reproduce))

if __name__ == "__main__":
    run_app(app)
