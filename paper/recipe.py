"""Recipes: how the score files of a data set are made, one TOML file for each data set in
`paper/recipes`.

    folders = ["n-mnist"]                 # folders of its files in the folder of --data; left out
                                          if it needs none

    [full]                                # the scale of the paper, for a GPU
    network.hidden = [1000]               # as in a configuration of `agreestop run`
    data.views = 3                        # options of the data set

    [[full.ensembles]]                    # one deep, one variational
    kind = "deep"
    epochs = 20

    [small]                               # minutes on two cores; its numbers mean nothing

A key that is not known is refused. Score files carry a fingerprint of their recipe. It is the same
for the same settings, so score files are used again until their recipe changes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agreestop.common import InputError
from agreestop.ensembles.images import ImageTraining
from agreestop.pipeline.config import EnsembleSettings, NetworkSettings, load_settings

from .figures import ENSEMBLES
from .seenn import BETAS, EPOCHS

RECIPES = Path(__file__).with_name("recipes")
SCALES = ("small", "full")


@dataclass(frozen=True)
class DataOptions:
    """Options for loading a data set; None stands for the default of the data set."""

    sizes: tuple[int, ...] | None = None
    views: int | None = None
    downsample: int | None = None

    def given(self) -> dict[str, Any]:
        """The options that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class ImageSettings:
    """How each kind of ensemble is trained on images. The training settings in `ensembles` are then
    not used.
    """

    deep: ImageTraining
    variational: ImageTraining


@dataclass(frozen=True)
class BatchNormSettings:
    """How the statistics of batch normalisation are estimated after training on images.

    batches, batch_size  how many batches of how many images are shown
    timed_steps          how many steps have statistics of their own; later steps are alike
    """

    batches: int = 20
    batch_size: int = 256
    timed_steps: int = 16


@dataclass(frozen=True)
class PolicySettings:
    """How the policies of SEENN-II are trained, for the data sets on which a figure shows it."""

    betas: tuple[float, ...] = BETAS
    epochs: int = EPOCHS


@dataclass(frozen=True)
class ScoreRecipe:
    """One data set at one scale.

    network    the network of every member
    ensembles  a deep ensemble and a variational one
    rows       how many training, tuning and pool inputs are used, the first ones; None for all
    images     for images that are held still; None for events
    """

    network: NetworkSettings
    ensembles: tuple[EnsembleSettings, ...]
    data: DataOptions = DataOptions()
    rows: tuple[int, ...] | None = None
    images: ImageSettings | None = None
    batchnorm: BatchNormSettings = BatchNormSettings()
    seenn2: PolicySettings = PolicySettings()

    def __post_init__(self) -> None:
        kinds = tuple(ensemble.kind for ensemble in self.ensembles)
        if kinds != ENSEMBLES:
            raise InputError(
                f"ensembles are {', '.join(kinds) or 'none'}: give {' and '.join(ENSEMBLES)}, one "
                "of each, in this order."
            )
        if self.rows is not None and len(self.rows) != 3:
            raise InputError(
                f"rows has {len(self.rows)} numbers: three are needed, for training, tuning and "
                "pool."
            )

    def training(self, kind: str) -> ImageTraining | None:
        """How that kind of ensemble is trained on images; None where the inputs are events."""
        return (
            None
            if self.images is None
            else self.images.deep
            if kind == "deep"
            else self.images.variational
        )


@dataclass(frozen=True)
class RecipeFile:
    """What one file holds. folders: names of the folders that may hold the data set's files; empty
    for a data set that needs none.
    """

    small: ScoreRecipe
    full: ScoreRecipe
    folders: tuple[str, ...] = ()

    def at(self, scale: str) -> ScoreRecipe:
        """The recipe at a scale of SCALES."""
        return self.small if scale == "small" else self.full


def load_recipes(name: str, folder: Path = RECIPES) -> RecipeFile:
    """The recipes of a data set."""
    path = folder / f"{name}.toml"
    try:
        return load_settings(RecipeFile, path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def fingerprint(name: str, recipe: ScoreRecipe) -> str:
    """A hash of the data set's name and of all settings of its recipe.

    The names of the keys here are those of the first score files. A setting that came later counts
    only where it is not its default. So score files that were made before are still recognised.
    """
    settings: dict[str, Any] = {
        "network": _settings(recipe.network, NETWORK),
        "ensembles": [_settings(ensemble, ENSEMBLE) for ensemble in recipe.ensembles],
        "options": recipe.data.given(),
        "rows": recipe.rows,
        "images": {}
        if recipe.images is None
        else {kind: _settings(recipe.training(kind), IMAGES) for kind in ENSEMBLES},
        "settling": (recipe.batchnorm.batches, recipe.batchnorm.batch_size),
        "policies": asdict(recipe.seenn2),
    }
    if recipe.batchnorm.timed_steps != BatchNormSettings.timed_steps:
        settings["timed"] = recipe.batchnorm.timed_steps
    return hashlib.sha256(
        json.dumps([name, settings], sort_keys=True, default=str).encode()
    ).hexdigest()


NETWORK = (
    "architecture hidden channels width learned membrane_time synapse_time refractory_time "
    "threshold surrogate"
)
ENSEMBLE = (
    "kind members epochs batch_size learning_rate readouts seed kl_weight warm_up "
    "prior_variance initial_deviation fresh device bf16"
)
IMAGES = (
    "rate_epochs rate_learning_rate epochs batch_size learning_rate momentum weight_decay "
    "smoothing horizons burn_in kl_weight seed device "
    "bf16"
)
"""The settings that were in the first score files' fingerprints, whatever their value."""


def _settings(settings: Any, first: str) -> dict[str, Any]:
    always, values = first.split(), asdict(settings)
    added = [
        entry.name
        for entry in fields(settings)
        if entry.name not in always and values[entry.name] != _default(entry)
    ]
    return {name: values[name] for name in (*always, *added)}


def _default(entry: Any) -> Any:
    return entry.default if entry.default is not MISSING else entry.default_factory()
