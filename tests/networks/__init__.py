"""Tests of the spiking networks; skipped as a whole where torch is missing."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: the spiking networks are not tested.")
