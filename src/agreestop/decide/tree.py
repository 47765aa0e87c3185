"""Coarse now, fine later: answers that are nodes of a tree of classes.

Classes are leaves, carried down to the same depth D; the root, depth 0, holds all of them. At a
checkpoint v_d is the node of least risk at depth d (lowest index at ties) and r_d its risk, the
log-mass of the classes outside it, made non-decreasing in d. With r_{D+1} = ∞:

    answer       v_d for λ in (r_d, r_{d+1}]          opens = r_{d*} for the depth d* that is asked
    fails        min{ r_d : d ≥ d*, r_d < r_{d+1}, y not in v_d }
    fails_end    the same over all d at the last checkpoint

Each depth has its own W and λ, and another depth's λ is not valid for it. `EachDepth` answers once
for each depth, in one pass over the checkpoints. The minimum of W over all depths promises for all
of them at once.

Under rounding η another run may have any node within 2η of the least risk as v_d, and may answer
any v_d: what such a node does not hold counts as a miss.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Self

import numpy as np

from agreestop.common import Booleans, Floats, InputError, Integers, KeptInFiles, read_file
from agreestop.common.errors import quoted
from agreestop.common.levels import EQUAL, Rounding

from .answer_kinds import Limits, StopsOnRisk
from .checkpoints import Evidence, Failures, Index, Policy, State, Verdict
from .thresholds import OneThreshold

ROOT = "any class"
OF_A_DEPTH = ("W", "rounded", "lowest", "highest")
"""What calibration needs of an example for one depth."""
EXAMPLE = 'for example {"animal": ("cat", "dog"), "vehicle": ("car", "ship")}'


@dataclass(frozen=True)
class Tree(KeptInFiles):
    """Classes in groups, and groups in groups.

    Parameters
    ----------
    branches : mapping
        A name for each group, with the names of its classes or with the groups inside it. A class
        that belongs to no group has None. Classes of unequal depth are carried down.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import agreestop as ag
    >>> tree = ag.Tree({"animal": ("cat", "dog"), "vehicle": ("car", "ship")})
    >>> tree.depth, tree.classes
    (2, ('cat', 'dog', 'car', 'ship'))
    >>> scores = replace(ag.simulate_scores(400, steps=20, K=3, C=4), classes=tree.classes)
    >>> calibration, test = scores.split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1, tree=tree, depth=1).calibrate(calibration)
    >>> rule.decide(test)[1].names
    ('animal',)
    """

    branches: Mapping[str, Any] | tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        given = self.branches
        paths = list(_paths(given)) if isinstance(given, Mapping) else [tuple(one) for one in given]
        if len(paths) < 2:
            raise InputError(f"the tree has {len(paths)} classes: give two at least, {EXAMPLE}.")
        leaves = [path[-1] for path in paths]
        for leaf in leaves:
            _check_once(leaf, leaves)
        deepest = max(map(len, paths))
        known = tuple(path + path[-1:] * (deepest - len(path)) for path in paths)
        object.__setattr__(self, "branches", known)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a tree from a JSON file: an object of groups, with lists of classes.

        Examples
        --------
        >>> import pathlib, tempfile, agreestop as ag
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "tree.json")
        ...     _ = path.write_text('{"animal": ["cat", "dog"], "car": null}')
        ...     ag.Tree.load(path).classes
        ('cat', 'dog', 'car')
        """
        try:
            content = json.loads(read_file(path).decode("utf-8-sig"))
        except ValueError:
            raise InputError(f"{path} is not JSON: give groups with lists of classes.") from None
        if not isinstance(content, Mapping):
            raise InputError(f"{path} holds no groups: give an object of lists of classes.")
        return cls(content)

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The names on the way to each class, without the root."""
        assert isinstance(self.branches, tuple)
        return self.branches

    @property
    def depth(self) -> int:
        """The depth of the classes; the root has depth 0."""
        return len(self.paths[0])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(path[-1] for path in self.paths)

    def for_classes(self, classes: Sequence[str] | None) -> Self:
        """The tree with its classes in the order of the scores."""
        if classes is None:
            raise InputError(
                "the scores have no class names, by which a tree knows its classes: give "
                "Scores(..., classes=...)."
            )
        own = {path[-1]: path for path in self.paths}
        for name in classes:
            if name not in own:
                raise InputError(f"the tree lacks class {quoted(name)}: give every class a place.")
        if unknown := sorted(set(own) - set(classes)):
            raise InputError(
                f"the tree has class {quoted(unknown[0])}, which the scores do not have: leave it "
                "out, or check its spelling."
            )
        return type(self)(tuple(own[name] for name in classes))

    @property
    def nodes(self) -> Integers:
        """(D + 1, C): the node of each class at each depth, by the first class that it holds."""
        rows = []
        for depth in range(self.depth + 1):
            starts = [path[:depth] for path in self.paths]
            rows.append([starts.index(start) for start in starts])
        return np.array(rows)

    def name_of(self, answer: Booleans) -> str:
        """The name of the node that holds just these classes (C,); the coarsest of several."""
        inside = np.flatnonzero(answer)
        if not len(inside) or len(inside) == len(self.paths):
            return ROOT if len(inside) else ""
        nodes = self.nodes
        for depth in range(1, self.depth + 1):
            own = nodes[depth] == nodes[depth, inside[0]]
            if np.array_equal(own, answer):
                return str(self.paths[inside[0]][depth - 1])
        return ", ".join(self.paths[one][-1] for one in inside)


def _paths(branches: Any, above: tuple[str, ...] = ()) -> Any:
    """The names on the way to each class."""
    for name, inside in branches.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"the tree has a group named {quoted(name)}: give names as text.")
        way = (*above, name)
        if inside is None:
            yield way
        elif isinstance(inside, Mapping):
            yield from _paths(inside, way)
        elif isinstance(inside, (list, tuple)) and inside:
            for one in inside:
                _check_once(one, inside)
            yield from _paths(dict.fromkeys(inside), way)
        else:
            raise InputError(f"group {quoted(name)} holds {quoted(inside)}: give names, {EXAMPLE}.")


def _check_once(name: Any, names: Sequence[Any]) -> None:
    if list(names).count(name) > 1:
        raise InputError(f"the tree has class {quoted(name)} twice: give each class once.")


@dataclass(frozen=True, eq=False)
class NodeOfTree(StopsOnRisk, KeptInFiles):
    """A node of a tree: the finest that the threshold allows, at least as fine as `depth`.

    Values of the evidence (b, D + 1, C) are the log-mass outside the node of each class at each
    depth. `nodes` (D + 1, C) names the node of each class. With `all_depths`, W is the minimum over
    the first answers of all depths.
    """

    nodes: Integers
    depth: int
    all_depths: bool = False
    final: bool = False
    abstains: bool = False

    meaning = "the classes of the finest node that the calibrated threshold allows"

    def evidence(self, logits: Floats) -> Evidence:
        """The risks of all nodes from logits (b, C)."""
        values = np.full((len(logits), *self.nodes.shape), -np.inf)
        whole = _total(logits)
        for depth, nodes in enumerate(self.nodes):
            for node in np.unique(nodes) if depth else ():
                outside = _total(logits[:, nodes != node]) - whole
                values[:, depth, nodes == node] = np.minimum(outside, 0.0)[:, None]
        return Evidence(values, self._risks(values)[:, self.depth])

    def at_own_depth(self, evidence: Evidence) -> Evidence:
        """The same with the risk of the depth that is asked."""
        return Evidence(evidence.values, self._risks(evidence.values)[..., self.depth])

    def _risks(self, values: Floats) -> Floats:
        """r_d, (..., D + 1); a rise within float64 rounding is none."""
        risks = values.min(axis=-1)
        for depth in range(1, risks.shape[-1]):
            above = risks[..., depth - 1]
            rises = risks[..., depth] > above + EQUAL
            risks[..., depth] = np.where(rises, risks[..., depth], above)
        return risks

    def kept(self, values: Floats, limit: float) -> Booleans:
        return np.ones((*values.shape[:-2], values.shape[-1]), dtype=bool)

    def judge(
        self, limits: Limits, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        stop, values, rows = evidence.risk < limits, evidence.values, np.arange(len(evidence))
        below = self._risks(values) < np.asarray(limits)[..., None]
        depth = np.maximum(np.count_nonzero(below, axis=1) - 1, 0)
        if self.final:
            depth = np.where(stop, depth, len(self.nodes) - 1)
        best = _first_least(values[rows, depth])
        sets = self.nodes[depth] == self.nodes[depth, best][:, None]
        return Verdict(stop | last, sets & (stop[:, None] | (not self.abstains)), state)

    def failures(
        self, evidence: Evidence, labels: Integers, loss: Floats | None, rounding: Rounding | None
    ) -> Failures:
        return self.failures_at(self.depth, evidence, labels, rounding)

    def failures_at(
        self, wanted: int, evidence: Evidence, labels: Integers, rounding: Rounding | None
    ) -> Failures:
        """For the first answer at the depth `wanted`."""
        values = evidence.values
        risks = self._risks(values)
        own = self.nodes[:, labels].T[:, None, :, None]  # (n, 1, D + 1, 1)
        holds = self.nodes[None, None] == own  # (n, 1, D + 1, C)
        if rounding is None:
            best = _first_least(values)[..., None]
            hits = np.take_along_axis(np.broadcast_to(holds, values.shape), best, axis=-1)[..., 0]
            deeper = np.concatenate([risks[..., 1:], np.full((*risks.shape[:2], 1), np.inf)], -1)
            misses = ~hits & (risks < deeper)
        else:
            least = values.min(axis=-1, keepdims=True)
            eta = rounding.at(least.reshape(*least.shape[:2], -1)).reshape(least.shape)
            misses = ((values <= least + 2 * eta) & ~holds).any(axis=-1)
        fails = np.where(misses, risks, np.inf)
        end = np.full(len(fails), np.inf)
        if not (self.final or self.abstains):
            end = fails[:, -1].min(axis=-1)
        return Failures(risks[..., wanted], fails[..., wanted:].min(axis=-1), end)

    def reduce(self, evidence: Evidence, labels: Integers, rounding: Rounding) -> dict[str, Any]:
        """As `reduce_to_failures`, for one depth or for all at once."""
        depths = range(1, len(self.nodes)) if self.all_depths else (self.depth,)
        exact = [self.failures_at(depth, evidence, labels, None).first() for depth in depths]
        firm = Rounding(rounding.absolute, rounding.relative, rounding.exact_above, True)
        safe = [self.failures_at(depth, evidence, labels, firm).first(firm) for depth in depths]
        opens = np.where(np.isfinite(evidence.risk), evidence.risk, np.nan)
        known = np.isfinite(opens)
        return {
            "W": np.min(exact, axis=0),
            "rounded": np.minimum(np.min(safe, axis=0), np.min(exact, axis=0)),
            "lowest": np.where(known, opens, np.inf).min(axis=1),
            "highest": np.where(known, opens, -np.inf).max(axis=1),
        }

    def compared(self, evidence: Evidence) -> Floats:
        return self._risks(evidence.values)[..., 1:].reshape(len(evidence), -1)


@dataclass(frozen=True, eq=False)
class EachDepth(Policy, KeptInFiles):
    """A threshold, or one for each group, of its own for each depth of a tree, from depth 1 on.

    An input stops when it has an answer at every depth. The set of the stop is the answer at the
    deepest; the first answers of all depths are in the state. They are judged apart, because a
    coarse answer that follows from a finer one would break the promise of the coarse depth.
    """

    depths: tuple[OneThreshold, ...]

    def __post_init__(self) -> None:
        if not self.depths or not all(isinstance(one.answer, NodeOfTree) for one in self.depths):
            raise ValueError("thresholds that do not belong to the depths of a tree")

    @property
    def thresholds(self) -> Floats:
        """(D,), or (G, D) with groups."""
        return self._together([one.thresholds for one in self.depths])

    @property
    def kth_values(self) -> Floats | None:
        known = [one.kth_values for one in self.depths]
        return self._together([one for one in known if one is not None])

    def _together(self, parts: Sequence[Floats]) -> Floats:
        return np.concatenate(parts) if self.group_names is None else np.stack(parts, axis=1)

    @property
    def group_names(self) -> tuple[str, ...] | None:
        return self.depths[-1].group_names

    @property
    def one_order_statistic(self) -> bool:
        return self.depths[-1].one_order_statistic

    @property
    def meaning(self) -> str:
        return self.depths[-1].meaning

    def never_stops(self, needed: int | None) -> bool:
        return all(one.never_stops(needed) for one in self.depths)

    def start(self, count: int, classes: int, first: int | None) -> State:
        limits = []
        for one in self.depths:
            own = one.start(count, classes, first).limits
            limits.append(np.full(count, one.values[0, 0]) if own is None else own[:, 0])
        return self._start(limits, classes)

    def start_in(self, groups: Booleans, first: int | None = None) -> State:
        limits = [one.start_in(groups, first).limits for one in self.depths]
        classes = self._answers[-1].nodes.shape[1]
        return self._start([own[:, 0] for own in limits if own is not None], classes)

    def _start(self, limits: Sequence[Floats], classes: int) -> State:
        shape = len(limits[0]), len(limits)
        answers = np.full(shape, -1), np.zeros((*shape, classes), dtype=bool)
        return State(
            shape[0], limits=np.stack(limits, 1), depth_index=answers[0], depth_sets=answers[1]
        )

    @property
    def _answers(self) -> tuple[NodeOfTree, ...]:
        return tuple(one.answer for one in self.depths if isinstance(one.answer, NodeOfTree))

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        assert state.limits is not None
        assert state.depth_index is not None and state.depth_sets is not None
        found, sets = state.depth_index.copy(), state.depth_sets.copy()
        for depth, answer in enumerate(self._answers):
            own = answer.at_own_depth(evidence)
            verdict = answer.judge(state.limits[:, depth], last, own, state)
            new = verdict.stop & (found[:, depth] < 0)
            found[new, depth] = index if isinstance(index, int) else index[new]
            sets[new, depth] = verdict.sets[new]
        answered = replace(state, depth_index=found, depth_sets=sets)
        return Verdict(np.asarray((found >= 0).all(axis=1)), sets[:, -1], answered)


def _first_least(values: Floats) -> Integers:
    """The first class of least risk, where sums that differ by their float64 rounding are equal."""
    return (values <= values.min(axis=-1, keepdims=True) + EQUAL).argmax(axis=-1)


def _total(logits: Floats) -> Floats:
    """log Σ exp of logits (b, c), in order of size, so that equal sums stay equal; -∞ for none."""
    if not logits.shape[1]:
        return np.full(len(logits), -np.inf)
    return np.asarray(np.logaddexp.accumulate(np.sort(logits, axis=1), axis=1)[:, -1])
