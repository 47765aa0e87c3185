"""The data sets, one module each."""
