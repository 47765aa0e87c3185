"""Any torch module through `from_module`: its own outputs, its own decisions, and no more work than
they need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters need PyTorch")
from torch import Tensor, nn

import agreestop as ag
from agreestop.adapters import AdaptedEngine, from_module
from agreestop.common import InputError
from agreestop.networks import ModuleMembers
from agreestop.networks.digests import KnownDigest

STEPS, SENSORS, CLASSES = 20, 6, 3
RULES = [
    ag.AgreeStop(target=0.8, checkpoints=range(1, STEPS + 1), max_set_size=1),
    ag.SpikeCP(
        target=0.8, checkpoints=(5, 10, 15, 20), max_set_size=1, pooling=ag.MergeConfidence(r=1)
    ),
    ag.AgreeStop(target=0.8, checkpoints=ag.Schedule([(2, 1), (6, 2), (20, 2)]), max_set_size=1),
]


class Gru(nn.Module):
    """A GRU of two layers, whose state (layers, batch, hidden) has its batch second."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.gru, self.read_out = nn.GRU(SENSORS, 8, num_layers=2), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (batch, T, classes) of whole inputs (batch, T, sensors)."""
        return self.read_out(self.gru(x.transpose(0, 1))[0]).transpose(0, 1)


def start(module: Gru, batch: int) -> Tensor:
    return torch.zeros(2, batch, 8)


def step(module: Gru, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    output, state = module.gru(x_t[None], state)
    return 4 * module.read_out(output[0]), state


class Counter(nn.Module):
    """Counts the steps of every input: class 0 is certain after step 3. `seen` lists the sizes of
    the batches it was given.
    """

    def __init__(self, output: str = "logits") -> None:
        super().__init__()
        self.seen: list[int] = []
        self.output = output

    def forward(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        self.seen.append(len(x_t))
        total = x_t.sum(1) + (0 if state is None else state)
        if self.output == "probabilities":
            return torch.stack([total / (1 + total), 1 / (1 + total)], 1), total
        return torch.stack([total, torch.zeros_like(total)], 1), total


def recordings(n: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    rates = 0.1 + 0.4 * (np.arange(SENSORS) % CLASSES == labels[:, None])
    return (rng.random((n, STEPS, SENSORS)) < rates[:, None]).astype(np.float32), labels


@pytest.fixture(scope="module")
def trained() -> list[Gru]:
    """Two GRUs, trained for a moment."""
    x, y = recordings(200, 1)
    members = [Gru(0), Gru(1)]
    for member in members:
        weights = list(member.parameters())
        for _ in range(15):
            loss = nn.functional.cross_entropy(
                member(torch.from_numpy(x)).flatten(0, 1),
                torch.from_numpy(y).repeat_interleave(STEPS),
            )
            with torch.no_grad():  # a step along the signs of the gradient
                for weight, gradient in zip(
                    weights, torch.autograd.grad(loss, weights), strict=True
                ):
                    weight.sub_(gradient.sign(), alpha=0.03)
    return members


@pytest.fixture
def engine(trained: list[Gru]) -> AdaptedEngine:
    return from_module(trained, init=start, step=step, batch_axis=1)


def assert_same(run: Any, expected: ag.Decisions) -> None:
    assert np.array_equal(run.decisions.stop_index, expected.stop_index) and np.array_equal(
        run.decisions.sets, expected.sets
    )


def test_scores_are_those_of_the_modules_run_on_whole_inputs(
    engine: AdaptedEngine, trained: list[Gru]
) -> None:
    x, y = recordings(30)
    scores = engine.score(x, y)
    with torch.no_grad():
        whole = torch.stack(
            [(4 * member(torch.from_numpy(x))).log_softmax(-1) for member in trained], 2
        )
    assert scores.log_confidence.shape == (30, STEPS, 2, CLASSES) and scores.times == tuple(
        range(1, STEPS + 1)
    )
    assert np.allclose(scores.log_confidence, whole.numpy(), atol=1e-5)
    assert scores.labels is not None and np.array_equal(scores.labels, y)
    assert scores.ensemble_digest == engine.digest and engine.members == 2


@pytest.mark.parametrize("rule", RULES, ids=["AgreeStop", "SpikeCP", "Schedule"])
def test_decisions_are_those_on_full_scores_and_cost_less(engine: AdaptedEngine, rule: Any) -> None:
    (known, truth), (new, _) = recordings(100), recordings(60, 2)
    calibrated = rule.calibrate(engine.score(known, truth))
    run = engine.decide(calibrated, new, batch_size=25)
    assert_same(run, calibrated.decide(engine.score(new)))
    assert run.computed.mean() < 0.9 * STEPS
    assert (run.computed >= run.decisions.stop_time).all() and (
        run.computed < run.decisions.stop_time + 8
    ).all()


def test_an_input_that_has_stopped_is_not_computed() -> None:
    counter = Counter()
    engine = from_module([counter])
    x = np.zeros((4, STEPS, 1), np.float32)
    x[:2] = 1  # only these gather evidence
    rule = ag.AgreeStop(target=0.5, checkpoints=range(1, STEPS + 1), max_set_size=1)
    # a total of 6 at the end was not enough for these
    known = np.full((9, STEPS, 1), 0.3, np.float32)
    calibrated = rule.calibrate(engine.score(known, np.ones(9, int)))
    counter.seen.clear()
    run = engine.decide(calibrated, x)
    assert sum(counter.seen) == run.computed.sum() < 4 * STEPS
    assert counter.seen == [4] * 8 + [2] * 12


def test_inputs_in_turn_alone_and_together_are_scored_alike(engine: AdaptedEngine) -> None:
    x, _ = recordings(6)
    together = engine.score(x).log_confidence
    for row in (3, 0, 3):
        assert np.allclose(
            engine.score(x[row : row + 1]).log_confidence[0], together[row], atol=1e-6
        )


def test_a_live_input_is_decided_as_in_a_batch(engine: AdaptedEngine) -> None:
    calibrated = RULES[0].calibrate(engine.score(*recordings(100)))
    x, _ = recordings(5, 2)
    run = engine.decide(calibrated, x)
    for row in (2, 0, 4):
        session = engine.live(calibrated)
        decision = next(
            found for frame in x[row] if (found := session.push(frame=frame)) is not None
        )
        assert (
            decision.time == run.decisions[row].time
            and decision.classes == run.decisions[row].classes
        )


def test_a_note_of_none_that_a_module_makes_as_it_runs_is_no_other_member() -> None:
    class Noting(nn.Module):
        def forward(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
            self.current = None  # as neurons of sinabs do
            return x_t.expand(-1, 2), None

    engine = from_module([Noting()])
    before = engine.digest
    assert engine.score(np.ones((2, 3, 1))).ensemble_digest == before == engine.digest


# ---- inputs that end early


@pytest.mark.parametrize("rule", RULES, ids=["AgreeStop", "SpikeCP", "Schedule"])
def test_inputs_that_end_early_are_decided_from_what_is_known_at_their_end(
    engine: AdaptedEngine, rule: Any
) -> None:
    rng = np.random.default_rng(5)
    (known, truth), (new, _) = recordings(100), recordings(40, 2)
    ends_known, ends = rng.integers(1, STEPS + 1, 100), rng.integers(1, STEPS + 1, 40)
    calibrated = rule.calibrate(engine.score(known, truth, lengths=ends_known))
    assert "Inputs that end early are answered from their last scores" in calibrated.guarantee
    scores = engine.score(new, lengths=ends)
    plain = engine.score(new)
    for row, end in enumerate(ends):
        assert np.allclose(
            scores.log_confidence[row, :end], plain.log_confidence[row, :end], atol=1e-5
        )
        assert (scores.log_confidence[row, end:] == scores.log_confidence[row, end - 1]).all()
    new[np.arange(STEPS) >= ends[:, None]] = 99.0  # padding is never looked at
    run = engine.decide(calibrated, new, mask=np.arange(STEPS) < ends[:, None])
    assert_same(run, calibrated.decide(scores))
    assert (run.computed <= ends).all() and (run.work <= 2 * ends).all()
    for row in (0, 1, 2):
        session = engine.live(calibrated)
        for frame in new[row, : ends[row]]:
            if session.decision is None:
                session.push(frame=frame)
        decision = session.end()
        assert (
            decision.time == run.decisions[row].time
            and decision.classes == run.decisions[row].classes
        )


def test_a_warning_says_where_inputs_end_otherwise_than_in_calibration(
    engine: AdaptedEngine,
) -> None:
    (x, y), rule = recordings(30), ag.AgreeStop(0.5, (4, STEPS), 1)
    ends, whole = np.full(30, STEPS - 1), np.full(30, STEPS)
    plain, ended = (rule.calibrate(engine.score(x, y, lengths=lengths)) for lengths in (None, ends))
    outside = r"some inputs end early.*does not cover them: calibrate on scores with lengths\."
    unknown = r"these have no lengths.*only if none has ended: give lengths, as in calibration\."
    for calibrated, lengths, words in ((plain, ends, outside), (ended, None, unknown)):
        with pytest.warns(ag.CalibrationWarning, match=words):
            engine.decide(calibrated, x, lengths=lengths)
        with pytest.warns(ag.CalibrationWarning, match=words):
            calibrated.decide(engine.score(x, lengths=lengths))
    session = engine.live(plain)
    session.push(frame=x[0, 0])
    with pytest.warns(ag.CalibrationWarning, match=outside):
        session.end()
    session.end()
    for calibrated, lengths in (
        (plain, whole),
        (plain, None),
        (ended, ends),
        (ended, whole),
    ):  # none of these warns
        engine.decide(calibrated, x, lengths=lengths)
        calibrated.decide(engine.score(x, lengths=lengths))


def test_nothing_is_computed_after_the_end_of_an_input() -> None:
    counter = Counter()
    engine = from_module([counter])
    engine.score(np.ones((1, 1, 1)))  # modules are tried out before their first run
    counter.seen.clear()
    scores = engine.score(np.ones((3, STEPS, 1), np.float32), lengths=[2, 5, 5])
    assert counter.seen == [3, 3, 2, 2, 2]
    assert np.allclose(
        np.exp(scores.log_confidence[:, -1, 0, 0]), 1 / (1 + np.exp(-np.array([2.0, 5.0, 5.0])))
    )


def test_spikes_of_an_input_that_has_ended_are_not_counted_again() -> None:
    class Spiking(nn.Module):
        def forward(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
            return torch.cat([x_t, 1 - x_t], 1), None

    scores = from_module([Spiking()], output="spikes").score(np.ones((2, 6, 1)), lengths=[3, 6])
    assert np.allclose(
        np.exp(scores.log_confidence[:, -1, 0, 0]), 1 / (1 + np.exp(-np.array([3.0, 6.0])))
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"lengths": [1, 2]}, "lengths has shape"),
        ({"lengths": [0, 3, 4]}, "lengths run from 0 to 4: one integer from 1 to 20"),
        ({"lengths": [1.5, 3, 4]}, "dtype float64"),
        ({"mask": np.eye(3, STEPS, dtype=bool)}, "True from the first step"),
        ({"mask": np.ones((3, STEPS))}, "dtype float64"),
        ({"mask": np.ones((3, STEPS), bool), "lengths": [1, 1, 1]}, "both given"),
    ],
)
def test_wrong_lengths_and_masks_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        from_module([Counter()]).score(np.ones((3, STEPS, 1)), **given)


def test_a_device_may_be_one_of_torch() -> None:
    device: Any = torch.device("cpu")
    assert from_module([Counter()], device=device).score(
        np.ones((2, 3, 1))
    ).log_confidence.shape == (2, 3, 1, 2)


def test_a_stream_without_a_step_has_no_answer(engine: AdaptedEngine) -> None:
    calibrated = RULES[0].calibrate(engine.score(*recordings(100)))
    with pytest.raises(InputError, match="push one step"):
        engine.live(calibrated).end()


# ---- state, outputs and digests


class Pair(NamedTuple):
    first: Tensor
    second: list[Tensor]


@pytest.mark.parametrize(
    ("make", "batch_axis"),
    [
        (lambda total: Pair(total[None], [total]), (1, 0)),
        (lambda total: {"a": total[None], "b": (total, 7, None)}, {"a": -1, "b": 0}),
        (lambda total: [total[None, :, None], total[None]], 1),
    ],
)
def test_a_state_of_any_form_is_kept_in_step_with_its_inputs(
    make: Callable[[Tensor], Any], batch_axis: Any
) -> None:
    def total_of(state: Any) -> Tensor:
        first = state["a"] if isinstance(state, dict) else state[0]
        return first.flatten()

    def step(module: nn.Module, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        total = x_t.sum(1) + (0 if state is None else total_of(state))
        return torch.stack([total, torch.zeros_like(total)], 1), make(total)

    x = np.arange(24, dtype=np.float32).reshape(4, 6, 1)
    run = from_module([nn.Identity()], step=step, batch_axis=batch_axis).engine.begin(x)
    run.advance(3)
    run.keep(np.array([False, True, False, True]))
    assert np.array_equal(run.advance(3)[:, -1, 0, 0], x.sum((1, 2))[[1, 3]])


@pytest.mark.parametrize("batch_axis", [1, (1,), "first", {"a": 0}])
def test_a_state_without_its_batch_axis_is_refused(batch_axis: Any) -> None:
    def step(module: nn.Module, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        return x_t, [x_t.new_zeros(len(x_t), 2), x_t]

    with pytest.raises(InputError, match="batch_axis"):
        from_module([nn.Identity()], step=step, batch_axis=batch_axis).score(np.ones((3, 4, 5)))


def test_probabilities_count_as_they_are() -> None:
    x = np.ones((2, 5, 1), np.float32)
    x[1] = 0  # a probability of 0
    found = from_module([Counter("probabilities")], output="probabilities").score(x).log_confidence
    assert np.allclose(np.exp(found[0, :, 0, 0]), np.arange(1, 6) / np.arange(2, 7))
    assert np.isfinite(found).all() and np.allclose(np.exp(found[1, :, 0]), [0, 1])
    with pytest.raises(InputError, match="sums other than 1"):
        from_module([Counter()], output="probabilities").score(x)


def test_the_digest_follows_weights_and_functions(trained: list[Gru]) -> None:
    def other(module: Gru, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        output, state = module.gru(x_t[None], state)
        return 5 * module.read_out(output[0]), state

    engine = from_module(trained, init=start, step=step, batch_axis=1)
    assert engine.digest == from_module(trained, init=start, step=step, batch_axis=1).digest
    assert (
        len(
            {
                engine.digest,
                from_module(trained, step=other).digest,
                from_module(trained[:1], init=start, step=step).digest,
            }
        )
        == 3
    )
    calibrated = RULES[0].calibrate(engine.score(*recordings(100)))
    others = from_module(trained, step=other, batch_axis=1)
    for refused in (
        lambda: others.decide(calibrated, recordings(3)[0]),
        lambda: others.live(calibrated),
    ):
        with pytest.raises(InputError, match="scores of the ensemble"):
            refused()
    assert len(others.decide(calibrated, recordings(3)[0], any_members=True).decisions) == 3
    others.live(calibrated, any_members=True)


def test_the_digest_follows_what_functions_and_layers_hold() -> None:
    def scaled(factor: float) -> Callable[[Any, Tensor, Any], tuple[Tensor, Any]]:
        return lambda module, x_t, state: (factor * x_t, None)

    def called(module: Any, x_t: Tensor, state: Any, factor: float) -> tuple[Tensor, Any]:
        return factor * x_t, None

    @dataclass
    class Scale:
        factor: float

        def __call__(self, module: Any, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
            return self.factor * x_t, None

    for make in (scaled, lambda factor: partial(called, factor=factor), Scale):
        one, other, again = (
            from_module([nn.Identity()], step=make(factor)).digest for factor in (2.0, 3.0, 2.0)
        )
        assert one == again != other
    strides = [ModuleMembers([nn.Conv1d(1, 1, 1, stride=stride)]) for stride in (1, 2)]
    strides[1].load_state_dict(strides[0].state_dict())
    assert KnownDigest().of(strides[0]) != KnownDigest().of(strides[1])


def test_a_state_that_is_changed_in_place_may_be_the_output() -> None:
    def in_place(module: Any, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = torch.zeros(len(x_t), SENSORS) if state is None else state
        return state.add_(x_t), state

    x = recordings(5)[0]
    plain = from_module(
        [nn.Identity()],
        step=lambda module, x_t, state: (x_t + (0 if state is None else state),) * 2,
    )
    assert np.array_equal(
        from_module([nn.Identity()], step=in_place).score(x).log_confidence,
        plain.score(x).log_confidence,
    )


def test_an_input_that_is_changed_in_place_is_refused() -> None:
    with pytest.raises(InputError, match="module 1 changes x_t in place"):
        steps = {nn.Identity: lambda x_t: x_t, nn.ReLU: lambda x_t: x_t.mul_(2)}
        from_module(
            [nn.Identity(), nn.ReLU()],
            step=lambda module, x_t, state: (steps[type(module)](x_t), None),
        ).score(recordings(5)[0])


class Keeping(nn.Module):
    """Keeps its total itself, instead of returning it as the state."""

    def __init__(self) -> None:
        super().__init__()
        self.total: Any = 0

    def forward(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.total = self.total + x_t
        return self.total, None


class OverRows(nn.Module):
    """Adds up the rows of a batch, as a layer does that takes them for time steps."""

    def forward(self, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        return x_t.cumsum(0), None


@pytest.mark.parametrize("member", [Keeping(), OverRows()])
def test_a_module_in_which_inputs_meet_is_refused(member: nn.Module) -> None:
    (x, y), plain = recordings(20), nn.Identity()
    with pytest.raises(InputError, match="module 1 gives another output"):
        from_module(
            [plain, member],
            step=lambda module, x_t, state: (x_t, None) if module is plain else module(x_t, state),
        ).score(x, y)
    with pytest.raises(InputError, match="module 0 gives another output"):
        from_module([member]).engine.live().push(frame=np.ones(SENSORS))


def test_a_random_module_with_a_fixed_batch_may_run() -> None:
    def step(module: nn.Module, x_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        return x_t + torch.rand(20, SENSORS), None

    before = torch.random.get_rng_state()
    assert from_module([nn.Identity()], step=step).score(
        recordings(20)[0]
    ).log_confidence.shape == (20, STEPS, 1, SENSORS)
    torch.random.set_rng_state(before)
    noisy = from_module(
        [nn.Identity()], step=lambda module, x_t, state: (x_t + torch.rand(x_t.shape), None)
    )
    found = noisy.score(np.zeros((20, 1, SENSORS))).log_confidence
    torch.random.set_rng_state(before)
    assert np.allclose(
        found[:, 0, 0], torch.rand(20, SENSORS).log_softmax(-1).numpy(), atol=1e-6
    ), "the trial uses up no random numbers"


def test_outputs_that_are_not_finite_are_named() -> None:
    with pytest.raises(InputError, match="the output of the members holds nan"):
        from_module([nn.Identity()], step=lambda module, x_t, state: (x_t * torch.nan, None)).score(
            np.ones((2, 3, 4))
        )


def test_weights_of_another_type_are_named() -> None:
    with pytest.raises(InputError, match=r"x_t is torch.float32"):
        from_module(
            [nn.GRUCell(SENSORS, 3).bfloat16()], step=lambda module, x_t, state: (module(x_t),) * 2
        ).score(recordings(3)[0])


def test_modules_of_an_ensemble_have_the_same_scores_and_digest() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.read_out = nn.GRUCell(SENSORS, 5), nn.Linear(5, CLASSES)

        def forward(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
            state = self.cell(x_t, state)
            return self.read_out(state), state

    modules, (x, y), lengths = [Cell(), Cell()], recordings(10), np.arange(1, 11)
    engine, ensemble = from_module(modules), ag.ensembles.DeepEnsemble(modules, device="cpu")
    ours, theirs = engine.score(x, y, lengths=lengths), ensemble.score(x, y, lengths=lengths)
    assert (
        np.array_equal(ours.log_confidence, theirs.log_confidence)
        and ours.ensemble_digest == theirs.ensemble_digest
    )
    calibrated = RULES[0].calibrate(ours)
    assert_same(
        ensemble.decide(calibrated, x, lengths=lengths),
        engine.decide(calibrated, x, lengths=lengths).decisions,
    )


def test_lengths_of_inputs_stay_with_their_scores(tmp_path: Path) -> None:
    scores = from_module([Counter()]).score(np.ones((3, 5, 1)), lengths=[2, 5, 4])
    ag.save_scores(tmp_path / "scores.npz", scores)
    again = ag.load_scores(tmp_path / "scores.npz").rows(np.array([0, 2]))
    assert (
        again.lengths is not None
        and again.lengths.tolist() == [2, 4]
        and again.at([1, 5]).lengths is not None
    )
    with pytest.raises(InputError, match="3 whole numbers of at least 1"):
        ag.Scores(scores.log_confidence, None, scores.times, lengths=np.array([1, 2, 0]))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: from_module([]), "at least one"),
        (
            lambda: from_module(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),  # type: ignore[arg-type]
            "not a list of torch modules",
        ),
        (
            lambda: from_module([nn.Identity()], step=3),  # type: ignore[arg-type]
            "step is a int: give a function of \\(module, x_t, state\\)",
        ),
        (
            lambda: from_module([nn.Identity()], init=3),  # type: ignore[arg-type]
            "init is a int: give a function of \\(module, batch\\)",
        ),
        (lambda: from_module([nn.Identity()], output="rates"), "choose"),
        (
            lambda: from_module([nn.Linear(2, 2)]).score(np.ones((1, 2, 2))),
            "it must take \\(x_t, state\\)",
        ),
    ],
)
def test_what_cannot_be_stepped_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()
