"""Score files for the figures, from data: train the ensembles of a data set, run them to T, and
store their read-out spikes.

    <folder>/<data>/<ensemble>/tuning.npz, pool.npz    read-out spikes at every step, with labels
    <folder>/<data>/<ensemble>/about.json              how they were made, with a fingerprint of the
                                                       recipe
    <folder>/<data>/<ensemble>/seenn2.json             SEENN-II, where a figure shows it: it reads
                                                       the inputs, so it is measured here
    <folder>/.work                                     members and checkpoints of training; a run
                                                       that was stopped continues from these

The recipes are in `paper/recipes`. "full" is the scale of the paper, for a GPU. "small" shows
within minutes on two cores that everything works; its numbers mean nothing. What the same recipe
made before is used again. This module needs only numpy, PyTorch and safetensors, so it also runs on
a machine where nothing can be installed:

    python3 -m paper.make_scores fig2 --scale full --device cuda --data FOLDER
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from agreestop.common import (
    Booleans,
    InputError,
    Integers,
    ProgressCallback,
    Stages,
    atomic_writer,
    make_folder,
)
from agreestop.decide.confidence import MODEL_AVERAGE, log_confidence
from agreestop.decide.scores import load_scores, save_spikes
from agreestop.engines.early_stopping import BATCH_SIZE, run_to_end
from agreestop.engines.runner import choose_engine
from agreestop.ensembles import load as load_ensemble
from agreestop.ensembles.files import Epoch, save_members
from agreestop.ensembles.images import reestimate_batchnorm
from agreestop.ensembles.training import TrainableMembers, train
from agreestop.events.data import EventData, EventSplits
from agreestop.networks.architectures import ResNet18, SpikingNetwork
from agreestop.networks.posteriors import Posterior
from agreestop.pipeline.config import EnsembleSettings, RunConfig
from agreestop.pipeline.products import EnsembleFiles, build_network, train_ensemble
from agreestop.report.contents import versions

from .figures import (
    ENSEMBLES,
    FEW,
    FIGURES,
    MAX_SET_SIZE,
    SEENN2,
    SIZES,
    TARGETS,
    Setting,
    checkpoints,
    find_figures,
)
from .outcomes import MEASURED, MeasureSettings
from .recipe import RECIPES, SCALES, RecipeFile, ScoreRecipe, fingerprint, load_recipes
from .seenn import measure_seenn2
from .sources import ABOUT, POOL, SEENN2_FILE, TUNING
from .stand_ins import find, load

FOLDER = Path("results/scores")
WORK = ".work"
IMAGES_AT_ONCE = 1024
"""Batch size for images on a GPU. With a quarter of it, launching the kernels of a residual network
takes as long as running them.
"""
# rough costs, for the estimate of the time left
LOADING, TRAINING, SCORING, POLICIES = 1.0, 20.0, 2.0, 4.0


def data_sets_of(name: str) -> tuple[str, ...]:
    """The data sets of a figure or of all figures; a data set's own name is accepted too."""
    known = tuple(dict.fromkeys(data for figure in FIGURES for data in figure.data))
    if name in known:
        return (name,)
    return tuple(dict.fromkeys(data for figure in find_figures(name) for data in figure.data))


def make_scores(
    figure: str,
    scale: str,
    device: str,
    data_folder: Path | None,
    progress: ProgressCallback,
    folder: Path = FOLDER,
    command: str = "",
    ensembles: Sequence[str] = ENSEMBLES,
    recipes: Path = RECIPES,
) -> list[Path]:
    """Make the score files of a figure, of all figures, or of one data set, in `folder`; return the
    paths of all of them.

    data_folder holds the files of the data sets, directly or in a folder for each of them;
    gesture-sim needs none. Files that the same recipe made before stay as they are.
    """
    if scale not in SCALES:
        raise InputError(f"scale is {scale!r}: choose one of {', '.join(SCALES)}.")
    files: list[Path] = []
    missing: dict[str, list[EnsembleSettings]] = {}
    known = {name: load_recipes(name, recipes) for name in data_sets_of(figure)}
    for name, recipe_file in known.items():
        recipe = recipe_file.at(scale)
        for ensemble in recipe.ensembles:
            if ensemble.kind in ensembles:
                target = folder / name / ensemble.kind
                files += [target / TUNING, target / POOL]
                if not _is_complete(target, fingerprint(name, recipe), name):
                    missing.setdefault(name, []).append(ensemble)
    for name in missing:
        # fail now, not after hours of training on other data sets
        _find_files(name, known[name], data_folder)
    stages = Stages(
        progress,
        [weight for name, chosen in missing.items() for weight in _weights(name, len(chosen))],
    )
    for name, chosen in missing.items():
        _make(name, known[name], scale, chosen, device, data_folder, folder, command, stages)
    return files


def _weights(name: str, ensembles: int) -> list[float]:
    """The costs of the stages of `_make`."""
    return [
        LOADING,
        *[TRAINING, SCORING] * ensembles,
        *[POLICIES] * (ensembles * _shows_seenn2(name)),
    ]


def _make(
    name: str,
    recipe_file: RecipeFile,
    scale: str,
    ensembles: Sequence[EnsembleSettings],
    device: str,
    data_folder: Path | None,
    folder: Path,
    command: str,
    stages: Stages,
) -> None:
    """Make the score files of some ensembles on one data set."""
    recipe = recipe_file.at(scale)
    key = fingerprint(name, recipe)
    stages.begin(name)("loading the data", 0.0)
    data = load_data(name, recipe, _find_files(name, recipe_file, data_folder))
    for ensemble in ensembles:
        target, words = folder / name / ensemble.kind, f"{name}, {ensemble.kind}"
        train_progress, score_progress = stages.begin(words), stages.begin(words)
        if not _is_scored(target, key):
            began = time.perf_counter()
            members = _train(
                name,
                recipe,
                ensemble,
                device,
                data,
                folder / WORK / f"{name}-{key[:12]}",
                train_progress,
            )
            about = {
                "command": command,
                "scale": scale,
                "device": _device_name(device),
                "configuration": _configuration(recipe, ensemble),
            }
            _score(members, data, target, {**about, "fingerprint": key}, began, score_progress)
    if _shows_seenn2(name):
        for ensemble in ensembles:
            target = folder / name / ensemble.kind
            progress = stages.begin(f"{name}, {ensemble.kind}")
            _write_json(
                target / SEENN2_FILE, _measure_seenn2(recipe, ensemble, data, target, progress)
            )


def load_data(name: str, recipe: ScoreRecipe, files: Path | None) -> EventSplits:
    """The data set, cut to the recipe's rows."""
    data = load(name, files, **recipe.data.given())
    if recipe.rows is None:
        return data
    parts = zip((data.training, data.tuning, data.pool), recipe.rows, strict=True)
    return EventSplits(*(part.rows(slice(rows)) for part, rows in parts))


def _find_files(name: str, recipe_file: RecipeFile, data_folder: Path | None) -> Path | None:
    """The folder with the files of a data set: one of its own folders, or the data folder
    itself.
    """
    if not recipe_file.folders:
        return None
    if data_folder is None:
        raise InputError(
            f"{name} needs its files: give --data with a folder that holds {find(name).files}."
        )
    return next(
        (data_folder / own for own in recipe_file.folders if (data_folder / own).is_dir()),
        data_folder,
    )


def _is_complete(target: Path, key: str, name: str) -> bool:
    """Whether the same recipe made all files of this ensemble."""
    return _is_scored(target, key) and (not _shows_seenn2(name) or (target / SEENN2_FILE).is_file())


def _is_scored(target: Path, key: str) -> bool:
    """Whether the same recipe made the score files of this ensemble."""
    if not all((target / file).is_file() for file in (TUNING, POOL, ABOUT)):
        return False
    try:
        return bool(
            json.loads((target / ABOUT).read_text(encoding="utf-8")).get("fingerprint") == key
        )
    except (ValueError, AttributeError):
        return False


def _shows_seenn2(name: str) -> bool:
    """Whether a figure shows SEENN-II on this data set."""
    return any(
        name in figure.data and any(one.rule == SEENN2 for one in figure.rules)
        for figure in FIGURES
    )


def _train(
    name: str,
    recipe: ScoreRecipe,
    ensemble: EnsembleSettings,
    device: str,
    data: EventSplits,
    work: Path,
    progress: ProgressCallback,
) -> SpikingNetwork:
    """The trained members, or those that were trained before; `work` belongs to this recipe."""
    files = EnsembleFiles(work / ensemble.kind)
    if recipe.images is not None:
        return _train_images(recipe, ensemble, device, data.training, files, progress)
    config = RunConfig(name=name, network=recipe.network, ensembles=recipe.ensembles)
    network = train_ensemble(
        config, replace(ensemble, device=device), data, files, progress
    ).network
    assert isinstance(network, SpikingNetwork)  # no recipe draws members for each input
    return network


def _train_images(
    recipe: ScoreRecipe,
    ensemble: EnsembleSettings,
    device: str,
    data: EventData,
    files: EnsembleFiles,
    progress: ProgressCallback,
) -> SpikingNetwork:
    """Train members on images, one after the other, since each of them fills a GPU. A member that
    is finished is not trained again.
    """
    if files.members.is_file():
        return cast(SpikingNetwork, load_ensemble(files.members, device="cpu").network)
    make_folder(files.folder)
    network = build_network(recipe.network, data, 1)
    assert isinstance(network, ResNet18)
    network = replace(network, timed=min(recipe.batchnorm.timed_steps, data.steps))
    networks = ensemble.members if ensemble.kind == "deep" else 1

    def learn(
        model: TrainableMembers[SpikingNetwork] | Posterior, index: int, checkpoint: Path
    ) -> None:
        settings = recipe.training(ensemble.kind)
        assert settings is not None
        training = replace(settings, device=device, seed=ensemble.seed + index)
        epochs = training.rate_epochs + training.epochs

        def report(epoch: int, figures: Epoch) -> None:
            what = f"network {index + 1} of {networks}, epoch {epoch + 1} of {epochs}"
            progress(
                f"{what}: loss {figures.loss:.3f}, accuracy {figures.accuracy:.3f}",
                (index + (epoch + 1) / epochs) / networks,
            )

        train(model, data.inputs, data.labels, training, checkpoint, report)
        shown = recipe.batchnorm
        reestimate_batchnorm(
            model,
            data.inputs,
            network.timed,
            training.seed,
            shown.batch_size,
            shown.batches,
            training.bf16,
        )

    if ensemble.kind == "deep":
        single = []
        for index in range(ensemble.members):
            path = files.folder / f"member-{index}.safetensors"
            if not path.is_file():
                member = TrainableMembers(
                    SpikingNetwork(network, torch.Generator().manual_seed(ensemble.seed + index))
                )
                learn(member, index, path.with_suffix(".training"))
                save_members(path, member.network.cpu().eval())
            single.append(cast(SpikingNetwork, load_ensemble(path, device="cpu").network))
        members = SpikingNetwork.join_members(single).eval()
    else:
        generator = torch.Generator().manual_seed(ensemble.seed)
        posterior = Posterior(
            network, generator, None, ensemble.prior_variance, ensemble.initial_deviation
        )
        learn(posterior, 0, files.checkpoint)
        drawn = posterior.to("cpu").with_members(ensemble.members)
        members = drawn.members(torch.Generator().manual_seed(ensemble.seed + 1)).eval()
    save_members(files.members, members)
    return members


def _score(
    members: SpikingNetwork,
    data: EventSplits,
    target: Path,
    about: Mapping[str, Any],
    began: float,
    progress: ProgressCallback,
) -> None:
    """Write the score files of one ensemble, and then `about.json`."""
    make_folder(target)
    for file in (
        ABOUT,
        SEENN2_FILE,
        TUNING,
        POOL,
    ):  # a killed run must not leave new files beside an old fingerprint
        (target / file).unlink(missing_ok=True)
    reached: dict[str, Any] = {}
    for file, part in ((TUNING, data.tuning), (POOL, data.pool)):
        progress(f"scoring {part.name}", 0.0 if file == TUNING else 0.5)
        on_gpu = part.held and torch.cuda.is_available()
        engine = choose_engine(members, "fused-bfloat16" if on_gpu else "auto", part.density)
        spikes = run_to_end(
            engine, part.inputs, IMAGES_AT_ONCE if on_gpu else BATCH_SIZE, part.held
        )
        save_spikes(target / file, spikes, part.labels, part.classes, engine.name)
        if file == POOL:
            reached = {
                "engine": engine.name,
                "K": spikes.shape[2],
                **_accuracies(spikes, part.labels),
            }
    pool = data.pool
    described = {
        "description": pool.description,
        "simulated": pool.simulated,
        "T": pool.steps,
        "classes": list(pool.classes),
    }
    sizes = {"n_training": len(data.training), "n_tuning": len(data.tuning), "n_pool": len(pool)}
    made = {
        "seconds": round(time.perf_counter() - began, 1),
        "versions": dict(versions("agreestop", "numpy", "torch")),
    }
    _write_json(target / ABOUT, {**about, **described, **sizes, **reached, **made})


def _accuracies(spikes: Booleans, labels: Integers) -> dict[str, Any]:
    """How often the most confident class is right at T: for each member, and for their average."""
    scores = log_confidence(spikes.sum(axis=1, dtype=np.int64))
    single = (scores.argmax(axis=2) == labels[:, None]).mean(axis=0)
    together = float((MODEL_AVERAGE.pool(scores).argmax(axis=1) == labels).mean())
    return {
        "member_accuracies": [round(float(value), 4) for value in single],
        "accuracy": round(together, 4),
    }


def _measure_seenn2(
    recipe: ScoreRecipe,
    ensemble: EnsembleSettings,
    data: EventSplits,
    target: Path,
    progress: ProgressCallback,
) -> list[dict[str, Any]]:
    """SEENN-II at the settings of the figures that show it: over targets at the default K, and over
    K at the default target.
    """
    few, usual = checkpoints(FEW, data.pool.steps), Setting(K=min(Setting.K, ensemble.members))
    targets = [
        replace(usual, target=value)
        for value in (usual.target, *(one for one in TARGETS if one != usual.target))
    ]
    sizes = [
        replace(usual, K=size) for size in SIZES if size <= ensemble.members and size != usual.K
    ]
    protocol = MeasureSettings()
    found = measure_seenn2(
        *(
            data.tuning,
            load_scores(target / TUNING, few),
            data.pool,
            load_scores(target / POOL, few),
        ),
        *(targets + sizes, MAX_SET_SIZE, protocol, progress),
        betas=recipe.seenn2.betas,
        epochs=recipe.seenn2.epochs,
    )
    return [
        {"K": setting.K, "target": setting.target, "n": setting.n}
        | {measured: getattr(outcome, measured) for measured in MEASURED}
        | {"realisations": protocol.realisations}
        for setting, outcome in found.items()
    ]


def _configuration(recipe: ScoreRecipe, ensemble: EnsembleSettings) -> dict[str, Any]:
    """The settings of an ensemble, for JSON."""
    made: dict[str, Any] = {"network": asdict(recipe.network), "ensemble": asdict(ensemble)}
    if (training := recipe.training(ensemble.kind)) is not None:
        made["ensemble"] = {
            name: made["ensemble"][name]
            for name in ("kind", "members", "seed", "prior_variance", "initial_deviation")
        }
        made |= {"images": asdict(training), "batchnorm": asdict(recipe.batchnorm)}
    return {**made, "options": recipe.data.given(), "rows": recipe.rows}


def _write_json(path: Path, content: object) -> None:
    with atomic_writer(path) as stream:
        stream.write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def main() -> None:
    """Run the command line, which needs neither typer nor rich."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.make_scores", description="Score files for the figures."
    )
    parser.add_argument("figure", help="fig2 ... fig8, all, or one of their data sets")
    parser.add_argument("--scale", default="full", choices=SCALES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--data", type=Path, help="folder with the files of the data sets")
    parser.add_argument(
        "--ensemble", choices=ENSEMBLES, help="one of the two ensembles; default: both"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=FOLDER,
        help="folder of the score files; default: results/scores",
    )
    options = parser.parse_args()
    command = shlex.join(["python3", "-m", "paper.make_scores", *sys.argv[1:]])
    chosen = ENSEMBLES if options.ensemble is None else (options.ensemble,)
    try:
        written = make_scores(
            options.figure,
            options.scale,
            options.device,
            options.data,
            _print_progress,
            options.output,
            command,
            chosen,
        )
    except InputError as error:
        sys.exit(f"agreestop: {error}")
    for path in written:
        print(f"Wrote {path}")


def _print_progress(what: str, share: float) -> None:
    print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
