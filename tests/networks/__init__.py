"""Tests of the spiking networks. All are skipped if torch is not installed."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: the spiking networks are not tested.")
