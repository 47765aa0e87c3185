"""Whether Triton is installed. Importing Triton takes a while, so this module does not import it."""

from __future__ import annotations

from importlib.util import find_spec

TRITON_AVAILABLE = find_spec("triton") is not None
