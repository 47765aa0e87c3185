"""`agreestop train` and `agreestop score`: from a configuration to trained members, and from members to score files."""

from pathlib import Path
from typing import Annotated

import typer

from agreestop.pipeline.config import RunConfig, load_config

from .console import needing_networks, progress_bar, say, say_written

Config = Annotated[Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder. [default: runs/NAME of the configuration]")]


def train(config: Config = None, output: Output = None) -> None:
    """Train the ensembles of a configuration, deep or variational. A training that was stopped continues from its last whole epoch."""
    _make(config, output, scored=False)


def score(config: Config = None, output: Output = None) -> None:
    """Run the members over the data, after training them if needed, and write score files: tuning, calibration, test."""
    _make(config, output, scored=True)


def _make(config: Path | None, output: Path | None, scored: bool) -> None:
    settings = RunConfig() if config is None else load_config(config)
    with needing_networks():
        from agreestop.pipeline import run
        from agreestop.pipeline.train import training_notes
    folder = output or Path("runs") / settings.name
    for sentence in training_notes(settings, folder):
        say(sentence)
    with progress_bar(folder.name) as progress:
        made = (run.score_ensembles if scored else run.train_ensembles)(settings, folder, progress)
    for files in made:
        say_written(*((files.tuning, files.calibration, files.test) if scored else (files.members,)))
    if scored:
        say_written(folder / "test-inputs.npz")
