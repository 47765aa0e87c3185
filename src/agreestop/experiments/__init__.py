"""Experiments: what is run, as plain settings, and the runners that call the rooms."""
