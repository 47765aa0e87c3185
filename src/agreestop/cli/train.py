"""`agreestop train` and `agreestop score`: from a configuration to members, and from members to score files."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from agreestop.decide.checks import InputError
from agreestop.experiments.config import RunConfig, load_config

from .console import out, progress_bar

if TYPE_CHECKING:
    from agreestop.events.digits import DigitsSplits

Config = Annotated[Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder. [default: runs/NAME of the configuration]")]


def train(config: Config = None, output: Output = None) -> None:
    """Train the ensembles of a configuration, deep or variational; a killed training goes on where it was."""
    settings, folder = _settings(config, output)
    steps, data = _load(settings)
    for ensemble, files in zip(settings.ensembles, steps.ensemble_files(settings, folder), strict=True):
        with progress_bar("training") as tell:
            steps.train_ensemble(settings, ensemble, data, files, tell)
        out.print(f"Wrote {files.members}", markup=False, soft_wrap=True)


def score(config: Config = None, output: Output = None) -> None:
    """Run the members over the data, training them first if need be, and write score files: tuning, calibration, test."""
    settings, folder = _settings(config, output)
    steps, data = _load(settings)
    for ensemble, files in zip(settings.ensembles, steps.ensemble_files(settings, folder), strict=True):
        with progress_bar("scoring") as tell:
            steps.score_ensemble(settings, ensemble, data, files, tell)
        for path in (files.tuning, *steps.split_pool(files, settings.decide.n_calibration)):
            out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _settings(config: Path | None, output: Path | None) -> tuple[RunConfig, Path]:
    settings = RunConfig() if config is None else load_config(config)
    return settings, output or Path("runs") / settings.name


def _load(settings: RunConfig) -> tuple[ModuleType, DigitsSplits]:
    try:
        from agreestop.experiments import steps
    except ImportError as error:
        raise InputError(f"training needs PyTorch and safetensors ({error}): install agreestop[networks].") from None
    return steps, steps.load_data(settings.data)
