"""`Scores.split`: shuffled parts, no row in two of them, and the rows of one group together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import agreestop as ag

SCORES = ag.simulate_scores(200, steps=3, K=1, C=4)
KNOWN = ag.Scores(SCORES.log_confidence, SCORES.labels, SCORES.times, ids=np.arange(200))


def ids_of(part: ag.Scores) -> list[int]:
    assert part.ids is not None
    return list(part.ids.tolist())


def test_parts_are_shuffled_and_hold_each_row_once() -> None:
    calibration, test = KNOWN.split(0.3, 0.7)
    assert (len(calibration), len(test)) == (60, 140)
    assert sorted(ids_of(calibration) + ids_of(test)) == list(range(200))
    assert ids_of(calibration) != sorted(ids_of(calibration)) and ids_of(test) != sorted(
        ids_of(test)
    )
    np.testing.assert_array_equal(
        calibration.log_confidence, KNOWN.log_confidence[ids_of(calibration)]
    )
    np.testing.assert_array_equal(test.labels, KNOWN.labels[ids_of(test)])  # type: ignore[index]


def test_the_seed_decides() -> None:
    first, again, other = (KNOWN.split(0.5, 0.5, seed=seed)[0] for seed in (0, 0, 1))
    assert ids_of(first) == ids_of(again) != ids_of(other)


@pytest.mark.parametrize(
    ("n", "shares", "sizes"),
    [
        (10, (0.3, 0.7), (3, 7)),
        (10, (0.25, 0.75), (2, 8)),
        (7, (1 / 3, 1 / 3, 1 / 3), (2, 3, 2)),
        (10, (0.1 + 0.2, 0.7), (3, 7)),
        (50, (0.2, 0.2), (10, 10)),
        (5, (1,), (5,)),
    ],
)
def test_sizes_differ_from_the_shares_by_less_than_one_row(
    n: int, shares: tuple[float, ...], sizes: tuple[int, ...]
) -> None:
    parts = KNOWN.rows(slice(0, n)).split(*shares)
    assert tuple(map(len, parts)) == sizes
    assert all(abs(len(part) - n * share) < 1 for part, share in zip(parts, shares, strict=True))
    assert len({row for part in parts for row in ids_of(part)}) == sum(sizes)


@pytest.mark.parametrize(
    "names", [np.arange(200) % 20, [f"person {i % 20}" for i in range(200)], np.arange(200) // 37]
)
def test_rows_of_one_group_stay_together(names: Any) -> None:
    groups = np.asarray(names)
    count = len(np.unique(groups))
    parts = KNOWN.split(0.5, 0.5, groups=names)
    found = [set(groups[ids_of(part)].tolist()) for part in parts]
    assert not found[0] & found[1]
    assert len(found[0]) == round(count / 2) and len(found[0]) + len(found[1]) == count
    assert sorted(ids_of(parts[0]) + ids_of(parts[1])) == list(range(200))
    assert ids_of(parts[0]) != sorted(ids_of(parts[0]))


def test_scores_without_labels_or_ids_are_divided_too() -> None:
    first, second = ag.Scores(SCORES.log_confidence, None, SCORES.times).split(0.4, 0.4)
    assert (len(first), len(second), first.labels, second.ids) == (80, 80, None, None)


@pytest.mark.parametrize(
    ("shares", "options", "match"),
    [
        ((), {}, "no shares are given"),
        ((0.5, 0.6), {}, "the shares sum to 1.1"),
        ((0.5, 0), {}, "a share is 0: give shares above 0"),
        ((-0.5, 0.5), {}, "a share is -0.5"),
        ((100, 100), {}, "a share is 100: give shares above 0 that sum to at most 1"),
        (("half",), {}, "a share is 'half'"),
        ((float("nan"),), {}, "a share is nan"),
        ((0.001, 0.9), {}, "0.001 of 200 inputs holds none"),
        ((0.5, 0.5), {"seed": -1}, "seed is -1"),
        ((0.5, 0.5), {"groups": np.zeros(200, dtype=int)}, "of 1 groups holds none"),
        ((0.5, 0.5), {"groups": [1, 2]}, "groups has 2 entries for 200 inputs"),
        ((0.5, 0.5), {"groups": np.ones((200, 2), dtype=bool)}, "groups has shape"),
    ],
)
def test_split_refuses(shares: tuple[Any, ...], options: dict[str, Any], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        KNOWN.split(*shares, **options)
