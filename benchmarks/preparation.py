"""What the benchmark runs on: its sizes, its inputs, and our members with their calibrated rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from agreestop.common import Booleans, InputError, ProgressCallback, Schedule
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import log_confidence
from agreestop.decide.decisions import Evaluation, evaluate
from agreestop.decide.risks import TopMass
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.splits import repeat_splits
from agreestop.decide.tuning.tune import tune
from agreestop.engines.early_stopping import run_to_end
from agreestop.engines.protocol import Engine
from agreestop.engines.runner import choose_engine
from agreestop.ensembles import load as load_ensemble
from agreestop.ensembles.files import Epoch, save_members
from agreestop.ensembles.streams import StreamTraining
from agreestop.ensembles.training import TrainableMembers, train
from agreestop.events.data import EventSplits
from agreestop.networks.architectures import FullyConnected, SpikingNetwork
from agreestop.networks.neurons import Neuron

from .records import OURS
from .results import version_of
from .timing import TimedSystem

NoteCallback = Callable[[str], None]
"""Called with a sentence about something that is left out."""

MNIST, BERNOULLI = "mnist-dvs-sim", "bernoulli-3%"
DENSITY = 0.03
N_CALIBRATION, TARGET, MAX_SET_SIZE = 50, 0.9, 3


@dataclass(frozen=True)
class BenchmarkPlan:
    """All sizes of the benchmark.

    inputs         how many inputs are decided on in each run; peers decide on one large batch of
                   them, since they go batch by batch
    streams        how many live inputs are pushed step by step
    rounds         training steps in each run
    scaling_batch  the batch for the workloads that show how costs grow; it is large enough to fill
    a GPU
    parts          training, tuning and pool inputs of mnist-dvs-sim
    lengths, sizes, densities  the values of T, of K and of the density in these workloads
    plain          whether torch.compile is left out for peers
    """

    device: str = "cpu"
    shape: tuple[int, int, int] = (2, 26, 26)
    classes: int = 10
    steps: int = 80
    hidden: int = 1000
    members: int = 6
    batches: tuple[int, ...] = (64, 256)
    inputs: int = 256
    streams: int = 5
    rounds: int = 1
    repeats: int = 9
    scaling_batch: int = 64
    parts: tuple[int, int, int] = (4000, 800, 1000)
    epochs: int = 4
    training_batch: int = 64
    learning_rate: float = 2e-3
    lengths: tuple[int, ...] = (20, 40, 80, 160)
    sizes: tuple[int, ...] = (1, 2, 4, 6)
    densities: tuple[float, ...] = (0.01, 0.02, 0.04, 0.08, 0.16)
    plain: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise InputError(f"device is {self.device!r}: choose cpu or cuda.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError(
                "device is cuda, but PyTorch finds no GPU: choose cpu, or install PyTorch with "
                "CUDA."
            )

    def bernoulli(self, count: int, steps: int | None = None, density: float = DENSITY) -> Booleans:
        """Random inputs (count, steps, ...); each entry is active with probability `density`."""
        rng = np.random.default_rng([self.seed, count])
        return rng.random((count, steps or self.steps, *self.shape), dtype=np.float32) < density


def plan_for(device: str, quick: bool = False, plain: bool = False) -> BenchmarkPlan:
    """The sizes for a device. The quick ones only show that everything works; their ratios mean
    nothing.
    """
    plan = BenchmarkPlan(device, plain=plain)
    if device == "cuda":
        plan = replace(
            plan, batches=(256, 512), inputs=3584, rounds=2, repeats=7, scaling_batch=1024
        )
        plan = replace(plan, parts=(8000, 1000, 4000), epochs=6, training_batch=128)
    if quick:
        plan = replace(
            plan,
            batches=(16,),
            inputs=32,
            streams=1,
            rounds=1,
            repeats=3,
            scaling_batch=16,
            parts=(256, 200, 200),
            epochs=1,
        )
    return plan


@dataclass(frozen=True, eq=False)
class EvaluatedRule:
    """A calibrated rule, and an evaluation of its decisions where there are labels."""

    calibrated: CalibratedRule
    evaluation: Evaluation | None = None


@dataclass(frozen=True, eq=False)
class PreparedMembers:
    """Our members and their rule; and where they are trained, the rule in which members join
    (`joining_rule`).
    """

    plan: BenchmarkPlan
    network: SpikingNetwork
    rule: EvaluatedRule
    joining: EvaluatedRule | None = None

    def engine(self, inputs: Booleans) -> Engine:
        """The engine for the density of these inputs."""
        return engine_for(self.plan, self.network, float(inputs.mean()))


def engine_for(plan: BenchmarkPlan, network: SpikingNetwork, density: float) -> Engine:
    """The engine of the automatic choice. For a benchmark of the CPU on a machine with a GPU, the
    event-driven one is named.
    """
    unused_gpu = plan.device == "cpu" and torch.cuda.is_available()
    return choose_engine(network, "event-driven" if unused_gpu else "auto", density)


def architecture(plan: BenchmarkPlan, learned: bool = True) -> FullyConnected:
    """Inputs → hidden → classes."""
    return FullyConnected(
        plan.shape, plan.classes, plan.members, (plan.hidden,), Neuron(learned=learned)
    )


def trained_members(
    plan: BenchmarkPlan, data: EventSplits, folder: Path, progress: ProgressCallback
) -> SpikingNetwork:
    """The members, trained on the data, or read if the same settings made them before; a training
    that was stopped continues.
    """
    names = (
        "device",
        "shape",
        "classes",
        "steps",
        "hidden",
        "members",
        "parts",
        "epochs",
        "training_batch",
        "learning_rate",
        "seed",
    )
    settings = json.dumps([data.training.name, *(getattr(plan, name) for name in names)])
    path = folder / f"members-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.safetensors"
    if path.is_file():
        return cast(SpikingNetwork, load_ensemble(path, device="cpu").network)
    model = TrainableMembers(
        SpikingNetwork(architecture(plan), torch.Generator().manual_seed(plan.seed))
    )
    training = StreamTraining(
        plan.epochs, plan.training_batch, plan.learning_rate, plan.seed, device=plan.device
    )

    def report(epoch: int, figures: Epoch) -> None:
        progress(
            f"training members, epoch {epoch + 1} of {plan.epochs}: accuracy "
            f"{figures.accuracy:.3f}",
            0.0,
        )

    checkpoint = path.with_suffix(".training")
    train(model, data.training.inputs, data.training.labels, training, checkpoint, report)
    network = model.network.cpu().eval()
    save_members(path, network)
    checkpoint.unlink(missing_ok=True)
    return network


def prepare_members(
    plan: BenchmarkPlan, data: EventSplits | None, folder: Path, progress: ProgressCallback
) -> PreparedMembers:
    """Members and their rule, trained, tuned and calibrated. Without data the members are untrained
    and calibrated on random labels.
    """
    rule = AgreeStop(TARGET, tuple(range(1, plan.steps + 1)), MAX_SET_SIZE)
    if data is None:
        network = SpikingNetwork(
            architecture(plan), torch.Generator().manual_seed(plan.seed)
        ).eval()
        inputs = plan.bernoulli(N_CALIBRATION)
        engine = engine_for(plan, network, DENSITY)
        labels = np.random.default_rng(plan.seed).integers(plan.classes, size=N_CALIBRATION)
        return PreparedMembers(
            plan,
            network,
            EvaluatedRule(
                replace(rule.calibrate(_scores(engine, inputs), labels), engine=engine.name)
            ),
        )
    network = trained_members(plan, data, folder, progress)
    engine, pool = engine_for(plan, network, data.pool.density), data.pool
    progress("tuning the rule", 0.0)
    tuning = Scores(
        _scores(engine, data.tuning.inputs), data.tuning.labels, tuple(rule.checkpoints)
    )
    scores = Scores(_scores(engine, pool.inputs), pool.labels, tuple(rule.checkpoints))
    calibration, test = (
        scores.rows(slice(0, N_CALIBRATION)),
        scores.rows(slice(N_CALIBRATION, None)),
    )

    def calibrate(tuned: AgreeStop) -> EvaluatedRule:
        calibrated = replace(tuned.calibrate(calibration), engine=engine.name)
        return EvaluatedRule(calibrated, evaluate(calibrated.decide(test), test))

    joining = None if plan.members == 1 else calibrate(joining_rule(rule, tuning, N_CALIBRATION))
    return PreparedMembers(plan, network, calibrate(_tuned(plan, rule, tuning)), joining)


def joining_rule(rule: AgreeStop, tuning: Scores, n_calibration: int) -> AgreeStop:
    """The rule in which the first members watch alone, and the others are asked at the last
    checkpoint, about inputs that are left.

    The number of first members is the one of least work on the tuning rows, on which the risk is
    then fitted.
    """
    times, members = rule.checkpoints, tuning.log_confidence.shape[2]
    rules = [
        replace(
            rule, checkpoints=Schedule([*((time, first) for time in times), (times[-1], members)])
        )
        for first in range(1, members)
    ]
    best = min(
        rules,
        key=lambda one: cast(float, repeat_splits(one, tuning, n_calibration=n_calibration).work),
    )
    return replace(best, risk=TopMass.fit(tuning.at(best.checkpoints)))


def _tuned(plan: BenchmarkPlan, rule: AgreeStop, tuning: Scores) -> AgreeStop:
    """The rule with the best risk; on a GPU with temperatures only, since its prefilter does not
    know a learned risk.
    """
    if plan.device == "cuda":
        return replace(rule, risk=TopMass.fit(tuning))
    return cast(
        AgreeStop,
        tune(rule, tuning, n_calibration=N_CALIBRATION, seed=plan.seed, only_if_better=False).rule,
    )


def _scores(engine: Engine, inputs: Booleans) -> Any:
    """Log-confidences (n, T, K, C) at every step."""
    return log_confidence(np.cumsum(run_to_end(engine, inputs), axis=1, dtype=np.int64))


def ours(
    work: str, form: str, run: Callable[[], object], amount: float, **rest: Any
) -> TimedSystem:
    """A system of ours."""
    return TimedSystem(work, OURS, version_of(OURS), form, run, amount, **rest)
