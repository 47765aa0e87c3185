"""Events: the sparse and the dense form say the same, rows are rows, and equal inputs have equal
hashes.
"""

from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agreestop.common import InputError
from agreestop.events import Events, container, dense_rows, input_ids, input_shape
from tests.decide.strategies import assert_one_sentence
from tests.events import reference

DTYPES = (np.bool_, np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64)
SHAPES = ((4, 6, 2, 3, 5), (5, 7, 12), (3, 4), (6, 1, 3, 4, 4), (0, 3, 2), (1, 1, 1), (7, 5, 1, 1))


def some_inputs(
    shape: tuple[int, ...], dtype: Any = np.bool_, density: float = 0.3, seed: int = 0
) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    values = np.ones(shape) if dtype == np.bool_ else rng.integers(1, 100, shape)
    signs = np.where(rng.random(shape) < 0.5, -1, 1) if np.dtype(dtype).kind in "if" else 1
    array: NDArray[Any] = np.where(rng.random(shape) < density, values * signs, 0).astype(dtype)
    return array


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("block", [1, 50, container.BLOCK])
def test_both_forms_say_the_same(
    dtype: Any, shape: tuple[int, ...], density: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "BLOCK", block)
    x = some_inputs(shape, dtype, density)
    events = Events.from_dense(x)
    dense = events.to_dense()
    assert dense.dtype == events.dtype == x.dtype
    assert dense.shape == events.shape == input_shape(events) == input_shape(x) == shape
    np.testing.assert_array_equal(dense, x)
    assert (events.values is None) == (dtype == np.bool_)
    assert len(events) == len(x)
    assert events.density == pytest.approx(np.count_nonzero(x) / max(1, x.size))
    np.testing.assert_array_equal(input_ids(events), input_ids(x))


@given(data=st.data(), form=st.sampled_from(("slice", "integers", "mask", "list", "one")))
@settings(deadline=None, max_examples=100)
def test_rows_are_those_of_the_dense_form(data: st.DataObject, form: str) -> None:
    n = data.draw(st.integers(1, 9))
    x = some_inputs(
        (n, 3, 2, 4),
        data.draw(st.sampled_from(DTYPES)),
        data.draw(st.sampled_from((0.0, 0.2, 0.9))),
    )
    labels = np.arange(n) % 3
    numbers = st.lists(st.integers(-n, n - 1), max_size=12)
    bound = st.one_of(st.none(), st.integers(-12, 12))
    index: Any
    if form == "slice":
        index = slice(
            data.draw(bound), data.draw(bound), data.draw(st.sampled_from((None, 1, 2, -1)))
        )
    elif form == "mask":
        index = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    elif form == "one":
        index = data.draw(st.integers(-n, n - 1))
    else:
        index = data.draw(numbers)
        index = np.array(index, np.int64) if form == "integers" else index
    events = Events.from_dense(x, labels, ("a", "b", "c"))
    expected = x[
        [index]
        if form == "one"
        else index
        if form in ("slice", "mask")
        else np.array(index, np.int64)
    ]
    part = events.rows(index)
    np.testing.assert_array_equal(part.to_dense(), expected)
    for inputs in (events, x):
        rows = dense_rows(inputs, index)
        assert rows.dtype == x.dtype
        np.testing.assert_array_equal(rows, expected)
    assert part.labels is not None
    np.testing.assert_array_equal(
        part.labels, labels[[index] if form == "one" else index] if len(part) else []
    )
    assert part.classes == ("a", "b", "c")
    np.testing.assert_array_equal(
        input_ids(part), input_ids(x)[[index] if form == "one" else index] if len(part) else []
    )


def test_inputs_that_differ_have_different_hashes() -> None:
    x = np.zeros((1, 4, 3), np.float32)
    x[0, 1, 2] = 1
    others = [
        x,
        np.zeros_like(x),
        np.concatenate((x, np.zeros((1, 1, 3), np.float32)), axis=1),
        x.reshape(1, 3, 4),
        x.reshape(1, 4, 3, 1),
    ]
    for step in range(4):
        for cell in range(3):
            for value in (0.5, 2, -1):
                other = x.copy()
                other[0, step, cell] = value
                others.append(other)
    hashes = [int(input_ids(other)[0]) for other in others]
    assert len(set(hashes)) == len(hashes)
    many = np.random.default_rng(0).random((3000, 4, 5)) < 0.5
    assert len(np.unique(input_ids(many))) == len(np.unique(many.reshape(3000, -1), axis=0))


def test_a_hash_depends_on_the_input_only() -> None:
    x = some_inputs((20, 5, 7))
    np.testing.assert_array_equal(input_ids(x[::-1]), input_ids(x)[::-1])
    np.testing.assert_array_equal(input_ids(x.astype(np.uint8)), input_ids(x))
    np.testing.assert_array_equal(input_ids(x.astype(">f8")), input_ids(x))


def test_a_hash_is_that_of_plain_integers() -> None:
    """Score files keep these hashes, so they must never change."""
    x = np.array([[[1.5, 0.0], [0.0, -2.0]]])
    form = 0
    for side in (2, 2):
        form = reference.mix((form + reference.GAMMA * (side + 1)) % reference.WORD)
    total = 0
    for position, bits in (
        (0, 0x3FF8000000000000),
        (3, 0xC000000000000000),
    ):  # 1.5 and -2 as float64
        total += reference.mix(
            reference.mix((form + reference.GAMMA * (position + 1)) % reference.WORD) ^ bits
        )
    assert input_ids(x).tolist() == [reference.mix((form + total) % reference.WORD)]
    assert input_ids(np.array([[[True, False], [False, True]]])).tolist() == [16397775966040898585]


def test_arrays_in_any_order_of_memory_are_read() -> None:
    x = some_inputs((6, 5, 4, 3), np.float32)
    for other in (np.asfortranarray(x), x[::-1][::-1], np.ascontiguousarray(x.T).T, x.tolist()):
        np.testing.assert_array_equal(Events.from_dense(other).to_dense(), x)


def test_extra_memory_is_small() -> None:
    x = np.zeros((4000, 10, 2, 20, 20), np.bool_)  # 32 MB
    x[:, ::5, 0, ::7, ::7] = True
    tracemalloc.start()
    events = Events.from_dense(x)
    built = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    input_ids(events)
    input_ids(x)
    hashed = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert built < x.nbytes
    assert hashed < x.nbytes


def test_repr_shows_shape_dtype_and_density() -> None:
    assert (
        repr(Events.from_dense(np.eye(4, dtype=bool)[None], [0]))
        == "Events(shape=(1, 4, 4), dtype=bool, density=0.25, labelled)"
    )


GOOD: dict[str, Any] = {
    "indices": np.array([0, 2, 1]),
    "pointers": np.array([0, 2, 2, 3, 3]),
    "values": None,
    "shape": (2, 2, 3),
}
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "pointers fall": ({"pointers": np.array([0, 2, 1, 3, 3])}, "pointers must rise from 0 to 3"),
    "pointers end early": (
        {"pointers": np.array([0, 2, 2, 2, 2])},
        "pointers must rise from 0 to 3",
    ),
    "pointers begin late": (
        {"pointers": np.array([1, 2, 2, 3, 3])},
        "pointers must rise from 0 to 3",
    ),
    "few pointers": (
        {"pointers": np.array([0, 3])},
        r"pointers has 2 entries for 2 inputs of 2 steps: n T \+ 1 = 5 are needed",
    ),
    "real pointers": ({"pointers": np.zeros(5)}, "one axis of integers is needed"),
    "index beyond": (
        {"indices": np.array([0, 3, 1])},
        "indices holds 3, but a step of shape \\(3,\\) has 3 cells",
    ),
    "negative index": ({"indices": np.array([-1, 2, 1])}, "indices holds -1"),
    "index twice": ({"indices": np.array([2, 2, 1])}, "indices must increase within each step"),
    "values of others": (
        {"values": np.ones(2)},
        "values are float64 of shape \\(2,\\) for 3 indices",
    ),
    "value nan": ({"values": np.array([1, np.nan, 1])}, "values holds nan"),
    "value 0": ({"values": np.array([1, 0, 1])}, "values holds 0: leave out what is zero"),
    "words": ({"values": np.array(["a", "b", "c"])}, "one real number for each index"),
    "one axis": ({"shape": (2,)}, r"inputs has shape \(2,\): \(n, T, \.\.\.\) is needed"),
    "no steps": ({"shape": (2, 0, 3)}, "at least one step"),
    "labels": ({"labels": [0]}, "labels has 1 entries for 2 inputs"),
    "unknown class": (
        {"labels": [0, 2], "classes": ("a", "b")},
        "labels holds 2, but there are 2 classes",
    ),
}


@pytest.mark.parametrize(("changes", "match"), MISTAKES.values(), ids=MISTAKES.keys())
def test_other_arrays_are_refused(changes: dict[str, Any], match: str) -> None:
    Events(**GOOD)
    with pytest.raises(InputError, match=match) as caught:
        Events(**(GOOD | changes))
    assert_one_sentence(str(caught.value))


DENSE_MISTAKES: dict[str, tuple[Any, str]] = {
    "nan": (np.full((1, 2, 3), np.nan), "inputs holds nan at"),
    "complex": (
        np.ones((1, 2, 3), np.complex64),
        "inputs has dtype complex64: booleans or real numbers",
    ),
    "words": (np.array([["a"]]), "inputs has dtype <U1"),
    "ragged": ([[1], [2, 3]], "inputs cannot be read as one array"),
    "one axis": (np.ones(3), r"inputs has shape \(3,\)"),
}


@pytest.mark.parametrize(("x", "match"), DENSE_MISTAKES.values(), ids=DENSE_MISTAKES.keys())
def test_other_dense_inputs_are_refused(x: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        Events.from_dense(x)
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize(
    "index", [[3], [-4], [0.5], np.zeros(2, np.bool_), np.zeros((1, 1), np.int64)]
)
def test_rows_that_are_not_there_are_refused(index: Any) -> None:
    events = Events.from_dense(some_inputs((3, 2, 2)))
    for call in (events.rows, lambda rows: dense_rows(events.to_dense(), rows)):
        with pytest.raises(InputError, match="give") as caught:
            call(index)
        assert_one_sentence(str(caught.value))


def test_hashes_tell_large_integers_apart_and_equal_numbers_are_equal() -> None:
    for dtype, large in ((np.int64, 2**53), (np.int64, -(2**60)), (np.uint64, 2**64 - 300)):
        x = np.full((200, 1, 1), large, dtype)
        x[:, 0, 0] += np.arange(200).astype(dtype)
        assert len(np.unique(input_ids(x))) == 200, (dtype, large)
    exact = np.array([3, -7, 2**53, 2**60, -(2**62)]).reshape(5, 1, 1)
    np.testing.assert_array_equal(input_ids(exact), input_ids(exact.astype(np.float64)))
    np.testing.assert_array_equal(input_ids(exact[:2]), input_ids(exact[:2].astype(np.int8)))


def test_lists_are_taken_as_arrays() -> None:
    events = Events([1, 0], [0, 1, 2], [2.0, 0.5], (1, 2, 3))  # type: ignore[arg-type]
    np.testing.assert_array_equal(events.to_dense(), [[[0, 2, 0], [0.5, 0, 0]]])


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        ((1, 2.5, 3), r"shape \(1, 2.5, 3\): \(n, T, ...\) is needed"),
        ((1, 2, True), r"shape \(1, 2, True\)"),
        ((1, 2, "3"), "is needed, with at least one step"),
        ((-1, 2, 3), "is needed, with at least one step"),
        (6, "shape 6"),
        ((1, 2, 2**61), r"more than 2\^62 cells"),
        ((0, 2**40, 2**40), r"more than 2\^62 cells"),
    ],
)
def test_absurd_shapes_are_refused(shape: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        Events(np.array([1, 0]), np.array([0, 1, 2]), None, shape)
    assert_one_sentence(str(caught.value).replace("2.5", "25"))


def test_a_dense_form_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events(np.array([1, 0]), np.array([0, 1, 2]), None, (1, 2, 2**60))
    with pytest.raises(InputError, match="take 2,305,843,009,213,693,952 bytes"):
        events.to_dense()


def test_masked_inputs_and_one_text_for_all_classes_are_refused() -> None:
    with pytest.raises(InputError, match="inputs has masked entries"):
        input_ids(np.ma.array(np.ones((2, 2, 2)), mask=[[[True, False]] * 2] * 2))
    with pytest.raises(InputError, match="classes is 'abc': give a list of names"):
        Events.from_dense(np.ones((3, 2, 2)), [0, 1, 2], "abc")


def test_rows_share_the_events_and_a_compact_copy_holds_no_others() -> None:
    x = some_inputs((9, 4, 3, 5), np.uint8)
    events = Events.from_dense(x, np.arange(9) % 2, ("a", "b"))
    assert events.indices.dtype == np.uint16 and events.compact() is events
    for index in ([7, 0, 7, 3], slice(2, 6), slice(None, None, -2), [], slice(4, 4)):
        chosen = events.rows(index)
        assert chosen.indices is events.indices and chosen.values is events.values
        compact = chosen.compact()
        assert (
            len(compact.indices) == chosen.count == np.count_nonzero(x[index])
            and compact.density == chosen.density
        )
        for one in (
            chosen,
            compact,
            pickle.loads(pickle.dumps(chosen)),
            chosen.rows(slice(None)),
            events[index],
        ):
            np.testing.assert_array_equal(one.to_dense(), x[index])
            np.testing.assert_array_equal(input_ids(one), input_ids(x[index]))
            assert (
                one.labels is not None
                and one.labels.tolist() == (np.arange(9) % 2)[index].tolist()
                and one.classes == ("a", "b")
            )
    assert np.shares_memory(events.rows(slice(2, 6)).compact().indices, events.indices)
    assert len(pickle.dumps(events.rows([0]))) < len(pickle.dumps(events)) / 2


@pytest.mark.parametrize("dtype", [np.bool_, np.float32])
def test_parts_are_joined(dtype: Any) -> None:
    x = some_inputs((9, 4, 3, 5), dtype)
    events = Events.from_dense(x)
    joined = Events.concatenate([events.rows([5, 1]), events.rows([]), events.rows(slice(2, 9))])
    np.testing.assert_array_equal(joined.to_dense(), x[[5, 1, *range(2, 9)]])
    np.testing.assert_array_equal(joined.rows([3]).to_dense(), x[[3]])
    for parts in (
        [],
        [events, Events.from_dense(x[:, :2])],
        [events, Events.from_dense(x.astype(np.int8))],
    ):
        with pytest.raises(InputError, match="the parts have different shapes"):
            Events.concatenate(parts)


def test_events_after_the_end_of_an_input_are_left_out() -> None:
    x = some_inputs((4, 5, 6), np.uint8)
    cut = Events.from_dense(x, np.arange(4)).rows([2, 0, 3]).first_steps(np.array([0, 5, 2]))
    expected = x[[2, 0, 3]]
    expected[0], expected[2, 2:] = 0, 0
    for one in (cut, cut.compact(), pickle.loads(pickle.dumps(cut))):
        np.testing.assert_array_equal(one.to_dense(), expected)
        assert one.count == np.count_nonzero(expected)


@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize("wanted", DTYPES)
def test_numbers_take_another_dtype(given: Any, wanted: Any) -> None:
    x = some_inputs((5, 3, 4), given)
    if np.dtype(given).kind == "f":
        x[x > 0] /= 200  # some of them become 0 as integers
    if np.dtype(wanted).kind == "u":
        x = np.abs(x)
    events = Events.from_dense(x, np.arange(5)).rows([3, 1, 0]).astype(wanted)
    np.testing.assert_array_equal(events.to_dense(), x[[3, 1, 0]].astype(wanted))
    assert (
        events.dtype == wanted and events.labels is not None and events.labels.tolist() == [3, 1, 0]
    )
    assert events.values is None or events.compact().values.all()  # type: ignore[union-attr]


def test_numpy_takes_the_dense_form() -> None:
    x = some_inputs((6, 4, 3), np.int16)
    events = Events.from_dense(x)
    np.testing.assert_array_equal(np.asarray(events), x)
    np.testing.assert_array_equal(np.concatenate([events, x]), np.concatenate([x, x]))
    assert np.asarray(events, np.float32).dtype == np.float32
    for index in (2, -1, np.s_[2, 1], np.s_[1:4, :2], np.s_[:, 0, 1], np.s_[3, ..., 1]):
        np.testing.assert_array_equal(events[index], x[index])
    np.testing.assert_array_equal(list(events), list(x))
    with pytest.raises(InputError, match="take the rows first"):
        events[[0, 1], 2]


@pytest.mark.parametrize("block", [1, 2, 3, 5, container.BLOCK])
def test_order_is_checked_across_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "BLOCK", block)
    indices, pointers = np.array([0, 2, 3, 1, 3, 0, 1, 2], np.uint16), np.array([0, 3, 3, 5, 8])
    assert Events(indices, pointers, None, (2, 2, 4)).count == 8
    for one in (1, 2, 4, 6, 7):
        wrong = indices.copy()
        wrong[one] = wrong[one - 1]
        with pytest.raises(InputError, match="indices must increase within each step"):
            Events(wrong, pointers, None, (2, 2, 4))
    indices[5] = 4
    with pytest.raises(InputError, match="indices holds 4, but a step of shape"):
        Events(indices, pointers, None, (2, 2, 4))


def test_events_are_their_own_sparse_form_and_take_labels() -> None:
    x = np.random.default_rng(0).random((5, 4, 3)) < 0.3
    events = Events.from_dense(Events.from_dense(x), labels=[0, 1, 0, 1, 0], classes=("a", "b"))
    assert np.array_equal(events.to_dense(), x) and events.classes == ("a", "b")
    assert events.labels is not None and events.labels.tolist() == [0, 1, 0, 1, 0]
