"""Score files for the figures, from data: train the ensembles of a data set, run them to the end, keep their read-out spikes.

    <folder>/<data>/<ensemble>/tuning.npz, pool.npz    read-out spikes at every step, with labels
    <folder>/<data>/<ensemble>/about.json              how they came about; with a fingerprint of the recipe
    <folder>/<data>/<ensemble>/seenn2.json             SEENN-II, where a figure shows it: it reads the inputs, so it is measured here
    <folder>/.work                                     members and training under way: a run that was stopped goes on from these

"full" is the scale of the paper, for a GPU; "small" shows in minutes on two cores that all works, and its numbers mean nothing. What the
same recipe made before is used again. Needs no more than numpy, PyTorch and safetensors, so that it runs where nothing can be installed:

    python3 -m paper.make_scores fig2 --scale full --device cuda --data FOLDER
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agreestop.common.arrays import Booleans, Integers
from agreestop.common.cores import cores
from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer, make_folder
from agreestop.decide.confidence import log_confidence
from agreestop.decide.pooling import MODEL_AVERAGE
from agreestop.decide.score_files import load_scores, save_spikes
from agreestop.engines.early_stopping import BATCH, run_to_end
from agreestop.ensembles.files import load_members, save_members
from agreestop.ensembles.images import ImageTraining, join, reestimate_batchnorm
from agreestop.ensembles.trainable import TrainableMembers
from agreestop.ensembles.training import Epoch, train
from agreestop.events.data import EventData, EventSplits
from agreestop.events.datasets.catalogue import find, load
from agreestop.networks.architectures import ResNet18, SpikingNetwork
from agreestop.networks.posteriors import Posterior
from agreestop.pipeline.config import EnsembleSettings, NetworkSettings, RunConfig
from agreestop.pipeline.gather import versions
from agreestop.pipeline.measure import Protocol, Tell
from agreestop.pipeline.steps import EnsembleFiles, build_network, engine_for, train_ensemble

from .figures import ENSEMBLES, FEW, FIGURES, MAX_SET_SIZE, SEENN2, SIZES, TARGETS, Setting, checkpoints, find_figures
from .outcomes import MEASURED
from .seenn import BETAS, EPOCHS, measure_seenn2
from .sources import ABOUT, POOL, SEENN2_FILE, TUNING

SCALES = ("small", "full")
FOLDER = Path("results/scores")
WORK = ".work"
TIMED = 16
"""Steps with statistics of their own in the batch normalisations of images: later steps are alike."""
IMAGES_AT_ONCE = 1024
"""On a GPU, where starting the kernels of a residual network takes as long as running them on a quarter of that."""
OWN_FOLDERS = {"mnist-dvs-sim": ("mnist-dvs-sim", "mnist"), "cifar10": ("cifar10",), "n-mnist": ("n-mnist",), "braille": ("braille",)}


@dataclass(frozen=True)
class Policies:
    """How SEENN-II is trained: its penalties, and for how many epochs."""

    betas: tuple[float, ...] = BETAS
    epochs: int = EPOCHS


@dataclass(frozen=True)
class Recipe:
    """How the score files of one data set are made.

    network    of every member
    ensembles  one of each kind
    options    of the data set's own function, such as sizes
    rows       at most so many inputs of training, tuning and pool, the first; None for all
    images     for images that are held: how each kind is trained, in place of what `ensembles` says of that
    settling   of images: in how many batches of how many the statistics of all steps are estimated
    policies   for SEENN-II, where a figure shows it
    """

    network: NetworkSettings
    ensembles: tuple[EnsembleSettings, EnsembleSettings]
    options: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[int, int, int] | None = None
    images: Mapping[str, ImageTraining] = field(default_factory=dict)
    settling: tuple[int, int] = (20, 256)
    policies: Policies = Policies()


def _pair(members: int, deep: Mapping[str, Any], variational: Mapping[str, Any]) -> tuple[EnsembleSettings, EnsembleSettings]:
    return EnsembleSettings("deep", members=members, **deep), EnsembleSettings("variational", members=members, **variational)


RESNET = ImageTraining(rate_epochs=40, rate_learning_rate=0.15, epochs=12, horizons=(2, 4, 8), burn_in=8, bf16=True)

RECIPES: dict[str, dict[str, Recipe]] = {
    "small": {
        "mnist-dvs-sim": Recipe(
            NetworkSettings(hidden=(64,)),
            _pair(6, {"epochs": 3}, {"epochs": 4}),
            {"sizes": (800, 200, 300)},
            policies=Policies((0.1, 1.0, 4.0), 10),
        ),
        "gesture-sim": Recipe(
            NetworkSettings("convolutional", channels=(8, 16), hidden=(32,)),
            _pair(6, {"epochs": 4, "batch_size": 32}, {"epochs": 6, "batch_size": 32, "kl_weight": 0.01}),
            {"sizes": (130, 100, 110), "downsample": 8},
        ),
        "cifar10": Recipe(
            NetworkSettings("resnet18", width=4, learned=False),
            _pair(3, {}, {}),
            rows=(1000, 100, 110),
            images={kind: ImageTraining(rate_epochs=5, epochs=1, batch_size=50, horizons=(2,), kl_weight=0.001) for kind in ENSEMBLES},
            settling=(4, 20),
        ),
        "n-mnist": Recipe(NetworkSettings(hidden=(64,)), _pair(6, {"epochs": 4}, {"epochs": 5}), {"sizes": (400, 110, 160)}),
        "braille": Recipe(NetworkSettings(hidden=(64,)), _pair(6, {"epochs": 6}, {"epochs": 8, "kl_weight": 0.01})),
    },
    "full": {
        "mnist-dvs-sim": Recipe(
            NetworkSettings(hidden=(1000,)),
            _pair(10, {"epochs": 6, "learning_rate": 2e-3}, {"epochs": 18, "learning_rate": 2e-3}),
            {"views": 3},
        ),
        "gesture-sim": Recipe(
            NetworkSettings("convolutional", channels=(16, 32, 64), hidden=(128,)),
            _pair(
                6,
                {"epochs": 20, "batch_size": 32, "learning_rate": 2e-3},
                {"epochs": 30, "batch_size": 32, "learning_rate": 2e-3, "kl_weight": 1e-3, "initial_deviation": 0.1},
            ),
            {"downsample": 8},
        ),
        "cifar10": Recipe(
            NetworkSettings("resnet18", learned=False, surrogate="triangle"),
            _pair(6, {}, {"initial_deviation": 0.2}),
            images={"deep": RESNET, "variational": replace(RESNET, kl_weight=1e-4)},
            settling=(40, 256),
        ),
        "n-mnist": Recipe(
            NetworkSettings(hidden=(1000,)), _pair(10, {"epochs": 20, "learning_rate": 2e-3}, {"epochs": 40, "learning_rate": 2e-3})
        ),
        "braille": Recipe(
            NetworkSettings(hidden=(256,)),
            _pair(10, {"epochs": 40, "learning_rate": 2e-3}, {"epochs": 100, "learning_rate": 5e-3, "initial_deviation": 0.1}),
        ),
    },
}


def data_sets_of(name: str) -> tuple[str, ...]:
    """The data sets of a figure, of all, or the one of that name."""
    known = tuple(dict.fromkeys(data for figure in FIGURES for data in figure.data))
    if name in known:
        return (name,)
    return tuple(dict.fromkeys(data for figure in find_figures(name) for data in figure.data))


def make_scores(
    figure: str,
    scale: str,
    device: str,
    data_folder: Path | None,
    tell: Tell,
    folder: Path = FOLDER,
    command: str = "",
    ensembles: Sequence[str] = ENSEMBLES,
) -> list[Path]:
    """Make the score files of a figure, of all figures, or of one data set, in `folder`; the files of those that are there now.

    data_folder holds the data sets' files, all in one place or each in a folder of its own name; gesture-sim needs none. Says what it
    does to `tell`. What the same recipe made before stays.
    """
    if scale not in RECIPES:
        raise InputError(f"scale is {scale!r}: choose one of {', '.join(SCALES)}.")
    wanted = [
        (name, ensemble, _fingerprint(name, RECIPES[scale][name]))
        for name in data_sets_of(figure)
        for ensemble in RECIPES[scale][name].ensembles
        if ensemble.kind in ensembles
    ]
    missing = [(name, ensemble, key) for name, ensemble, key in wanted if not _is_there(folder / name / ensemble.kind, key, name)]
    for name, _, _ in missing:
        _place(name, data_folder)  # before hours are spent on the others
    for name in dict.fromkeys(name for name, _, _ in missing):
        recipe = RECIPES[scale][name]
        tell(f"{name}: loading the data", 0.0)
        data = load_data(name, recipe, data_folder)
        mine = [(ensemble, key, folder / name / ensemble.kind) for other, ensemble, key in missing if other == name]
        for ensemble, key, target in mine:
            if not _is_scored(target, key):
                began = time.perf_counter()
                members = _train(name, recipe, ensemble, device, data, folder / WORK / f"{name}-{key[:12]}", tell)
                about = {"command": command, "scale": scale, "device": _device_name(device), "configuration": _plain(recipe, ensemble)}
                _score(name, ensemble, members, data, target, {**about, "fingerprint": key}, began, tell)
        for ensemble, _, target in mine:
            if _shows_seenn2(name):
                _write_json(target / SEENN2_FILE, _measure_seenn2(name, recipe, ensemble, data, target, tell))
    return [folder / name / ensemble.kind / file for name, ensemble, _ in wanted for file in (TUNING, POOL)]


def load_data(name: str, recipe: Recipe, data_folder: Path | None) -> EventSplits:
    """The data set, cut to the recipe's rows."""
    processes: dict[str, Any] = {"workers": cores()} if name == "gesture-sim" else {}  # the slow one shares its work
    data = load(name, _place(name, data_folder), **recipe.options, **processes)
    if recipe.rows is None:
        return data
    return EventSplits(*(_first(part, rows) for part, rows in zip((data.training, data.tuning, data.pool), recipe.rows, strict=True)))


def _first(part: EventData, rows: int) -> EventData:
    return replace(part, inputs=part.inputs[:rows], labels=part.labels[:rows])


def _place(name: str, data_folder: Path | None) -> Path | None:
    """Where the files of a data set lie: in a folder of its name, or with the others."""
    if name not in OWN_FOLDERS:
        return None
    if data_folder is None:
        raise InputError(f"{name} needs its files: give --data with a folder that holds {find(name).files}.")
    return next((data_folder / own for own in OWN_FOLDERS[name] if (data_folder / own).is_dir()), data_folder)


def _fingerprint(name: str, recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps([name, asdict(recipe)], sort_keys=True, default=str).encode()).hexdigest()


def _is_there(target: Path, key: str, name: str) -> bool:
    """Whether the same recipe made all files of this ensemble."""
    return _is_scored(target, key) and (not _shows_seenn2(name) or (target / SEENN2_FILE).is_file())


def _is_scored(target: Path, key: str) -> bool:
    """Whether the same recipe made the score files of this ensemble."""
    if not all((target / file).is_file() for file in (TUNING, POOL, ABOUT)):
        return False
    try:
        return bool(json.loads((target / ABOUT).read_text(encoding="utf-8")).get("fingerprint") == key)
    except (ValueError, AttributeError):
        return False


def _shows_seenn2(name: str) -> bool:
    """Whether a figure shows SEENN-II on this data set."""
    return any(name in figure.data and any(one.rule == SEENN2 for one in figure.contenders) for figure in FIGURES)


def _train(name: str, recipe: Recipe, ensemble: EnsembleSettings, device: str, data: EventSplits, work: Path, tell: Tell) -> SpikingNetwork:
    """The members, trained or, where they were before, read; `work` is of this recipe alone."""

    def said(what: str, share: float) -> None:
        tell(f"{name}, {what}", share)

    files = EnsembleFiles(work / ensemble.kind)
    if ensemble.kind in recipe.images:
        return _train_images(recipe, ensemble, device, data.training, files, said)
    config = RunConfig(name=name, network=recipe.network, ensembles=recipe.ensembles)
    return train_ensemble(config, replace(ensemble, device=device), data, files, said)


def _train_images(
    recipe: Recipe, ensemble: EnsembleSettings, device: str, data: EventData, files: EnsembleFiles, tell: Tell
) -> SpikingNetwork:
    """Members that were trained on few steps, one after the other, since each fills a GPU; one that is finished is not trained again."""
    if files.members.is_file():
        return load_members(files.members)
    make_folder(files.folder)
    network = build_network(recipe.network, data, 1)
    assert isinstance(network, ResNet18)
    network = replace(network, timed=min(TIMED, data.steps))

    def learn(model: TrainableMembers | Posterior, place: int, checkpoint: Path) -> None:
        training = replace(recipe.images[ensemble.kind], device=device, seed=ensemble.seed + place)
        epochs = training.rate_epochs + training.epochs

        def report(epoch: int, figures: Epoch) -> None:
            what = f"{ensemble.kind} ensemble, network {place + 1}, epoch {epoch + 1}"
            tell(f"{what}: loss {figures.loss:.3f}, accuracy {figures.accuracy:.3f}", (epoch + 1) / epochs)

        train(model, data.inputs, data.labels, training, checkpoint, report)
        batches, size = recipe.settling
        reestimate_batchnorm(model, data.inputs, network.timed, training.seed, size, batches, training.bf16)

    if ensemble.kind == "deep":
        alone = []
        for place in range(ensemble.members):
            path = files.folder / f"member-{place}.safetensors"
            if not path.is_file():
                member = TrainableMembers(network, torch.Generator().manual_seed(ensemble.seed + place))
                learn(member, place, path.with_suffix(".training"))
                save_members(path, member.network.cpu().eval())
            alone.append(load_members(path))
        members = join(alone)
    else:
        generator = torch.Generator().manual_seed(ensemble.seed)
        posterior = Posterior(network, generator, None, ensemble.prior_variance, ensemble.initial_deviation)
        learn(posterior, 0, files.checkpoint)
        drawn = posterior.to("cpu").with_members(ensemble.members)
        members = drawn.members(torch.Generator().manual_seed(ensemble.seed + 1)).eval()
    save_members(files.members, members)
    return members


def _score(
    name: str,
    ensemble: EnsembleSettings,
    members: SpikingNetwork,
    data: EventSplits,
    target: Path,
    about: Mapping[str, Any],
    began: float,
    tell: Tell,
) -> None:
    """Write the score files of one ensemble, and last of all how they came about."""
    make_folder(target)
    for file in (ABOUT, SEENN2_FILE, TUNING, POOL):  # so that a run killed in between leaves no files under another's fingerprint
        (target / file).unlink(missing_ok=True)
    reached: dict[str, Any] = {}
    for file, part in ((TUNING, data.tuning), (POOL, data.pool)):
        tell(f"{name}, {ensemble.kind} ensemble: reading {part.name}", 0.0 if file == TUNING else 0.5)
        on_gpu = part.held and torch.cuda.is_available()
        engine = engine_for(members, "fused-bfloat16" if on_gpu else "auto", part)
        spikes = run_to_end(engine, part.inputs, IMAGES_AT_ONCE if on_gpu else BATCH, part.held)
        save_spikes(target / file, spikes, part.labels, part.classes, engine.name)
        if file == POOL:
            reached = {"engine": engine.name, "K": spikes.shape[2], **_accuracies(spikes, part.labels)}
    pool = data.pool
    described = {"description": pool.description, "simulated": pool.simulated, "T": pool.steps, "classes": list(pool.classes)}
    sizes = {"n_training": len(data.training), "n_tuning": len(data.tuning), "n_pool": len(pool)}
    made = {"seconds": round(time.perf_counter() - began, 1), "versions": dict(versions("agreestop", "numpy", "torch"))}
    _write_json(target / ABOUT, {**about, **described, **sizes, **reached, **made})


def _accuracies(spikes: Booleans, labels: Integers) -> dict[str, Any]:
    """How often the most confident class is right at T, on the pool: of each member, and of their average."""
    scores = log_confidence(spikes.sum(axis=1, dtype=np.int64))
    alone = (scores.argmax(axis=2) == labels[:, None]).mean(axis=0)
    together = float((MODEL_AVERAGE.pool(scores).argmax(axis=1) == labels).mean())
    return {"member_accuracies": [round(float(value), 4) for value in alone], "accuracy": round(together, 4)}


def _measure_seenn2(
    name: str, recipe: Recipe, ensemble: EnsembleSettings, data: EventSplits, target: Path, tell: Tell
) -> list[dict[str, Any]]:
    """SEENN-II at the settings of the figures that show it: over targets at the default K, and over K at the default target."""
    few, usual = checkpoints(FEW, data.pool.steps), Setting(K=min(Setting.K, ensemble.members))
    tuning, pool = load_scores(target / TUNING, few), load_scores(target / POOL, few)
    others = tuple(size for size in SIZES if size <= ensemble.members and size != usual.K)
    plans = [((usual.target, *(one for one in TARGETS if one != usual.target)), (usual.K,)), ((usual.target,), others)]
    records = []
    for targets, sizes in plans:
        protocol = Protocol(targets, sizes, few, MAX_SET_SIZE, usual.n)
        found = measure_seenn2(
            *(f"{name}, {ensemble.kind}", data.tuning, tuning, data.pool, pool, protocol, tell),
            betas=recipe.policies.betas,
            epochs=recipe.policies.epochs,
        )
        for record in found:
            values = {measured: getattr(record, measured) for measured in MEASURED}
            records.append({"K": record.K, "target": record.target, "n": usual.n, **values, "realisations": protocol.repeats})
    return records


def _plain(recipe: Recipe, ensemble: EnsembleSettings) -> dict[str, Any]:
    """What an ensemble was made with, as JSON has it."""
    made: dict[str, Any] = {"network": asdict(recipe.network), "ensemble": asdict(ensemble)}
    if ensemble.kind in recipe.images:
        made["ensemble"] = {name: made["ensemble"][name] for name in ("kind", "members", "seed", "prior_variance", "initial_deviation")}
        made |= {"images": asdict(recipe.images[ensemble.kind]), "settling": recipe.settling, "timed": TIMED}
    return {**made, "options": dict(recipe.options), "rows": recipe.rows}


def _write_json(path: Path, content: object) -> None:
    with atomic_writer(path) as stream:
        stream.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def main() -> None:
    """The command line for machines without typer and rich."""
    parser = argparse.ArgumentParser(prog="python -m paper.make_scores", description="Score files for the figures.")
    parser.add_argument("figure", help="fig2 ... fig8, all, or a data set of theirs")
    parser.add_argument("--scale", default="full", choices=SCALES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--data", type=Path, help="folder with the files of the data sets")
    parser.add_argument("--ensemble", choices=ENSEMBLES, help="one of the two; default both")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="folder of score files; default results/scores")
    options = parser.parse_args()
    command = shlex.join(["python3", "-m", "paper.make_scores", *sys.argv[1:]])
    chosen = ENSEMBLES if options.ensemble is None else (options.ensemble,)
    try:
        written = make_scores(options.figure, options.scale, options.device, options.data, _say, options.output, command, chosen)
    except InputError as error:
        sys.exit(f"agreestop: {error}")
    for path in written:
        print(f"Wrote {path}")


def _say(what: str, share: float) -> None:
    print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
