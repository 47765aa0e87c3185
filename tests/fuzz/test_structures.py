"""Whole archives of arrays that nobody would write: each reader gives a result or one plain
sentence.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

pytest.importorskip("torch")

from .formats import FORMATS
from .harness import outcome

NAMES = {
    "scores": (
        "log_confidence",
        "times",
        "labels",
        "classes",
        "engine",
        "ensemble_digest",
        "ids",
        "inputs",
    ),
    "spikes": ("spikes", "spikes_shape", "labels", "classes", "engine", "ids"),
    "events": (
        "shape",
        "indices",
        "pointers",
        "values",
        "labels",
        "classes",
        "inputs",
        "inputs_shape",
    ),
    "part": (
        "inputs",
        "inputs_shape",
        "indices",
        "pointers",
        "shape",
        "labels",
        "classes",
        "name",
        "description",
        "simulated",
        "held",
    ),
    "braille": ("x", "y", "x_train", "y_train", "x_val", "y_val", "x_test", "y_test", "classes"),
    "energy": ("emitted", "accumulates", "multiplies"),
}
DTYPES = (
    "?",
    "u1",
    "<i2",
    "<i8",
    ">i8",
    "<u8",
    "<f2",
    "<f4",
    ">f8",
    "<c16",
    "<U3",
    "S2",
    "<M8[s]",
    "V3",
)
SHAPES = st.lists(st.sampled_from((0, 1, 2, 3, 4)), max_size=5).map(tuple)


@st.composite
def any_array(draw: st.DrawFn) -> NDArray[Any]:
    """Small arrays of any dtype and shape, and lists of sizes that no memory holds."""
    if draw(st.booleans()):
        sizes = (
            st.integers(-1, 6)
            if draw(st.booleans())
            else st.sampled_from((2**31, 2**62, 2**63 - 1, -(2**63), 10**5))
        )
        return np.array(draw(st.lists(sizes, max_size=5)), np.int64)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    if dtype.kind == "V":
        return np.zeros(draw(SHAPES), dtype)
    return draw(arrays(dtype, draw(SHAPES)))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    database=None,
)
def test_an_archive_of_any_arrays_is_refused_or_read(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    form, path = FORMATS[name], tmp_path / "some.npz"
    form.write(path)
    with np.load(path) as known:
        content = (
            {key: known[key] for key in known.files if key != "digest"}
            if data.draw(st.booleans())
            else {}
        )
    content |= data.draw(st.dictionaries(st.sampled_from(NAMES[name]), any_array(), max_size=4))
    with path.open("wb") as stream:
        np.savez(stream, **content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy warns about absurd numbers
        found = outcome(replace(form, digest=False), path, "")
    assert found in ("refused", "other"), found
