"""`python -m benchmarks`."""

from agreestop.cli.app import run_app

from .cli import app

if __name__ == "__main__":
    run_app(app)
