"""`python -m benchmarks`."""

from __future__ import annotations

from agreestop.cli.app import interruptible, new_app, run_app

from .cli import bench

app = new_app("")
app.command()(interruptible(bench))

if __name__ == "__main__":
    run_app(app)
