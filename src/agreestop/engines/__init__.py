"""Engines: drive an ensemble over time."""
