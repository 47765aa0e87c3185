"""Speed against other libraries. Run `python -m benchmarks --help`."""
