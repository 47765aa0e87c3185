"""`agreestop train` and `agreestop score`: from a configuration to members, and from members to score files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agreestop.pipeline.config import RunConfig, load_config

from .console import needing_networks, out, progress_bar

Config = Annotated[Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder. [default: runs/NAME of the configuration]")]


def train(config: Config = None, output: Output = None) -> None:
    """Train the ensembles of a configuration, deep or variational; a killed training goes on where it was."""
    _make(config, output, scored=False)


def score(config: Config = None, output: Output = None) -> None:
    """Run the members over the data, training them first if need be, and write score files: tuning, calibration, test."""
    _make(config, output, scored=True)


def _make(config: Path | None, output: Path | None, scored: bool) -> None:
    settings = RunConfig() if config is None else load_config(config)
    with needing_networks():
        from agreestop.pipeline import steps
    data = steps.load_data(settings)
    folder = output or Path("runs") / settings.name
    folders = steps.ensemble_files(settings, folder)
    for ensemble, files in zip(settings.ensembles, folders, strict=True):
        with progress_bar("scoring" if scored else "training") as tell:
            (steps.score_ensemble if scored else steps.train_ensemble)(settings, ensemble, data, files, tell)
        for path in (files.tuning, files.calibration, files.test) if scored else (files.members,):
            out.print(f"Wrote {path}", markup=False, soft_wrap=True)
    if scored:
        steps.save_test_inputs(folder / "test-inputs.npz", data, settings.decide.n_calibration)
        out.print(f"Wrote {folder / 'test-inputs.npz'}", markup=False, soft_wrap=True)
