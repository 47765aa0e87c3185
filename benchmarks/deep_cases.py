"""What the deep benchmark runs: networks with their inputs, trained members, and calibrated rules.

    gestures   the network of DVS128 Gesture (Fang et al. 2021) on gesture-sim, 128 × 128 pixels, T
               = 80; on a CPU a small one, 16 × 16
    digits     the same small network on the embedded digits, 16 × 16 pixels, T = 80; on a CPU
    resnet18   ResNet-18 on 32 × 32 images of CIFAR-10 that are held for T = 80 steps; on a GPU

Every rule is AgreeStop with at most one class and target 0.95 for the ensemble's own answer at T.
`early` looks at all members at every step. In `joining` the first few members watch alone, and the
others are asked only about inputs that these have not decided at T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.common import Integers, Schedule, cores
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import MODEL_AVERAGE, log_confidence
from agreestop.decide.risks import TopMass
from agreestop.decide.scores import Scores
from agreestop.engines.early_stopping import run_to_end
from agreestop.engines.protocol import Engine
from agreestop.engines.runner import choose_engine
from agreestop.ensembles import load as load_ensemble
from agreestop.ensembles.files import save_members
from agreestop.ensembles.images import ImageTraining, reestimate_batchnorm
from agreestop.ensembles.streams import StreamTraining
from agreestop.ensembles.training import TrainableMembers, train
from agreestop.events import load_data_set
from agreestop.events.container import Events
from agreestop.events.data import EventSplits
from agreestop.events.files import load as load_inputs
from agreestop.networks.architectures import Convolutional, ResNet18, SpikingNetwork
from paper.stand_ins import simulate_gestures

from .preparation import NoteCallback, joining_rule

STEPS, TARGET, REPEATS = 80, 0.95, 3
N_CALIBRATION = 139  # 0.05 of n + 1 is a whole number, so no part of the allowed misses is lost
TIMES = tuple(range(1, STEPS + 1))


@dataclass(frozen=True, eq=False)
class DeepCase:
    """One network, its inputs, and the sizes of its workloads.

    held       the steps for which images are held, None for streams
    batch      inputs that are decided on together
    trained    inputs and steps of a training step
    training, tuning, pool   inputs (n, T, ...) as bytes, dense: for the members, for the rules, and
                             for calibration and the timed runs
    epochs     epochs of training
    together   inputs of a batch when the members are trained. On a CPU, it and `epochs` were chosen
               on the tuning inputs
    rate       the learning rate for streams. On 128 × 128 pixels a network of 16 channels learned
               nothing with 2e-3 in three epochs, and did with 5e-4
    """

    name: str
    config: Any
    held: int | None
    batch: int
    trained: tuple[int, int]
    training: NDArray[np.uint8]
    labels: Integers
    tuning: NDArray[np.uint8]
    pool: NDArray[np.uint8]
    truth: Integers
    epochs: int
    together: int = 16
    rate: float = 2e-3


def gestures(device: str, folder: Path) -> DeepCase:
    """gesture-sim, kept in the folder: the large network on all pixels, or on a CPU a small one on
    cells of 8 × 8 pixels.
    """
    cell = 1 if device == "cuda" else 8
    paths = [
        folder / f"gestures-{128 // cell}-{part}.npz" for part in ("training", "tuning", "pool")
    ]
    if not all(path.is_file() for path in paths):
        splits: EventSplits = simulate_gestures(downsample=cell, workers=cores())
        for path, part in zip(paths, (splits.training, splits.tuning, splits.pool), strict=True):
            Events.from_dense(part.inputs, part.labels, part.classes).save(path)
    parts = [load_inputs(path) for path in paths]
    (x, tuning, pool), (labels, _, truth) = (
        [part.to_dense() for part in parts],
        [cast(Integers, part.labels) for part in parts],
    )
    if device == "cuda":
        config: Any = Convolutional((2, 128, 128), 11, 6)
        return DeepCase(
            "gestures, 128 × 128",
            config,
            None,
            8,
            (16, 16),
            x,
            labels,
            tuning,
            pool,
            truth,
            12,
            rate=5e-4,
        )
    return DeepCase(
        "gestures, 16 × 16",
        small_network(11),
        None,
        32,
        (32, STEPS),
        x,
        labels,
        tuning,
        pool,
        truth,
        20,
    )


def small_network(classes: int) -> Convolutional:
    """Three convolutions and two fully connected layers, on 16 × 16 pixels."""
    return Convolutional((2, 16, 16), classes, 6, (16, 32, 64), (128,))


def digits() -> DeepCase:
    """The embedded digits, whose classes are clear earlier than those of gestures."""
    data = load_data_set("digits")
    x, tuning, pool = (
        part.inputs.to_dense().astype(np.uint8) for part in (data.training, data.tuning, data.pool)
    )
    return DeepCase(
        "digits, 16 × 16",
        small_network(10),
        None,
        32,
        (32, STEPS),
        x,
        data.training.labels,
        tuning,
        pool,
        data.pool.labels,
        10,
    )


def resnet(folder: Path) -> DeepCase | None:
    """ResNet-18 on what there is of CIFAR-10's training images."""
    files = sorted(folder.glob("data_batch_*.bin"))
    if not files:
        return None
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in files])
    rows = rows[: len(rows) // 3073 * 3073].reshape(-1, 3073)
    images, labels = rows[:, 1:].reshape(-1, 1, 3, 32, 32), rows[:, 0].astype(np.int64)
    first, last = len(images) - 1800, len(images) - 1200
    name, config, tuning = "ResNet-18, 32 × 32", ResNet18((3, 32, 32), 10, 6), images[first:last]
    return DeepCase(
        name,
        config,
        STEPS,
        128,
        (256, 4),
        images[:first],
        labels[:first],
        tuning,
        images[last:],
        labels[last:],
        30,
        128,
    )


def as_given(case: DeepCase, inputs: NDArray[np.uint8]) -> NDArray[Any]:
    """Images as numbers around zero; counts of events as they are."""
    return inputs if case.held is None else (inputs.astype(np.float32) - 120) / 64


def members_of(
    case: DeepCase, device: str, folder: Path, progress: Callable[[str], None]
) -> SpikingNetwork:
    """The members: trained, or read if they are there."""
    name = f"members-{case.name.split(',')[0]}-{device}"
    plan = f"{len(case.training)}-{case.epochs}-{case.together}"
    path = folder / f"{name}-{plan}.safetensors"
    if path.is_file():
        return cast(SpikingNetwork, load_ensemble(path, device="cpu").network)
    model: Any = TrainableMembers(SpikingNetwork(case.config, torch.Generator().manual_seed(0)))
    settings: Any = StreamTraining(
        case.epochs, case.together, case.rate, 0, device=device, bf16=device == "cuda"
    )
    if case.held:
        rates, together = case.epochs - 8, case.together
        settings = ImageTraining(
            8,
            together,
            0.05,
            0,
            device=device,
            bf16=True,
            rate_epochs=rates,
            horizons=(2, 4),
            rate_learning_rate=0.1,
        )
    inputs = as_given(case, case.training)
    train(
        model,
        inputs,
        case.labels,
        settings,
        None,
        lambda epoch, found: progress(f"{case.name}: epoch {epoch + 1}, {found}"),
    )
    if case.held:
        reestimate_batchnorm(model, inputs, 8, bf16=True)
    network = cast(SpikingNetwork, model.network.cpu().eval())
    save_members(path, network)
    return network


@dataclass(frozen=True, eq=False)
class EarlyRule:
    """A calibrated rule, what its decisions on the test inputs are like, and the fixed time at
    which all members are as accurate.

    form: how members are used, in words
    """

    calibrated: CalibratedRule
    form: str
    facts: dict[str, float]
    fixed: int


@dataclass(frozen=True, eq=False)
class PreparedCase:
    """Members, engine and rules of a case, and the inputs for ours and for peers. joining: None for
    one member.
    """

    network: SpikingNetwork
    engine: Engine
    early: EarlyRule
    joining: EarlyRule | None
    timed: Any
    dense: NDArray[np.uint8]


def prepare(
    case: DeepCase, network: SpikingNetwork, device: str, note: NoteCallback
) -> PreparedCase:
    """The rules are about the ensemble's own answer at T, so that they do not depend on how well
    the members were trained.
    """
    engine = choose_engine(
        network, "fused-bfloat16" if device == "cuda" else "event-driven", 0.01, device=device
    )
    truth, name = case.truth[N_CALIBRATION:], f"{case.name}, K = {network.members}"

    def scored(inputs: NDArray[np.uint8]) -> Scores:
        """Log-confidences at every step, with the ensemble's answer at T as label."""
        spikes = run_to_end(
            engine, as_given(case, inputs), 8 * case.batch if case.held else case.batch, case.held
        )
        values = log_confidence(np.cumsum(spikes, axis=1, dtype=np.int64))
        return Scores(values, MODEL_AVERAGE.pool(values[:, -1]).argmax(-1), TIMES)

    tuning, pool = scored(case.tuning), scored(case.pool)
    calibration, test = pool.rows(slice(0, N_CALIBRATION)), pool.rows(slice(N_CALIBRATION, None))
    right = (MODEL_AVERAGE.pool(test.log_confidence).argmax(-1) == truth[:, None]).mean(0)

    def calibrate(rule: AgreeStop, form: str) -> EarlyRule:
        calibrated = replace(rule.calibrate(calibration, "final"), engine=engine.name)
        decisions, rows = calibrated.decide(test), np.arange(len(truth))
        accuracy = float((decisions.sets[rows, truth] & (decisions.set_size == 1)).mean())
        facts = {
            "latency": float(decisions.stop_time.mean()) / STEPS,
            "coverage": float(decisions.sets[rows, cast(Integers, test.labels)].mean()),
            "set_size": float(decisions.set_size.mean()),
        }
        note(
            f"{name}, {form}: {right[-1]:.3f} of {len(truth)} test inputs are right at T, "
            f"{accuracy:.3f} early."
        )
        return EarlyRule(
            calibrated, form, facts, int(np.argmax(right >= min(accuracy, right.max()))) + 1
        )

    early = calibrate(AgreeStop(TARGET, TIMES, 1, risk=TopMass.fit(tuning)), "stops with AgreeStop")
    joining = None
    if network.members > 1:
        rule = joining_rule(AgreeStop(TARGET, TIMES, 1), tuning, len(tuning) // 2)
        note(
            f"{name}: where members join, {cast(Schedule, rule.checkpoints).members[0]} of them "
            "watch until T."
        )
        joining = calibrate(rule, "stops with AgreeStop, members join")
    count = 32 * case.batch
    dense = np.concatenate([case.pool[N_CALIBRATION:]] * -(-count // len(truth)))[:count]
    timed = as_given(case, dense) if case.held else Events.from_dense(dense)
    return PreparedCase(network, engine, early, joining, timed, dense)
