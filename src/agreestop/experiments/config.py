"""Configurations of a run: plain TOML, every key known, every value checked when it is read.

name = "digits"
[data]                   name = "digits", seed = 0, views = 1
[network]                architecture = "fully-connected", hidden = [256]
[[ensembles]]            kind = "deep" or "variational", members = 6, epochs = 20, …
[decide]                 target = 0.9, max_set_size = 3, n_calibration = 50, realisations = 50, checkpoints = [20, 40, 60, 80]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from agreestop.decide.checks import InputError, as_checkpoints, as_max_set_size
from agreestop.decide.levels import as_target

DATA = ("digits",)
KINDS = ("deep", "variational")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} is {value!r}: choose one of {', '.join(choices)}.")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} is {value}: at least {least} is needed.")


@dataclass(frozen=True)
class DataSettings:
    """Which data. views: how often each training input is shown, every time with a motion of its own."""

    name: str = "digits"
    seed: int = 0
    views: int = 1

    def __post_init__(self) -> None:
        _one_of("data.name", self.name, DATA)
        _at_least("data.views", self.views, 1)
        _at_least("data.seed", self.seed, 0)


@dataclass(frozen=True)
class NetworkSettings:
    """The architecture of every member, and the sizes of its hidden layers."""

    architecture: str = "fully-connected"
    hidden: tuple[int, ...] = (256,)

    def __post_init__(self) -> None:
        _one_of("network.architecture", self.architecture, ("fully-connected",))
        for size in self.hidden:
            _at_least("network.hidden", size, 1)


@dataclass(frozen=True)
class EnsembleSettings:
    """How K members are made: a deep ensemble, or draws of a variational posterior (kl_weight 1 is the true ELBO)."""

    kind: str
    members: int = 6
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 5e-3
    seed: int = 0
    kl_weight: float = 1.0
    prior_variance: float = 0.03

    def __post_init__(self) -> None:
        _one_of("ensembles.kind", self.kind, KINDS)
        for name in ("members", "epochs", "batch_size"):
            _at_least(f"ensembles.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class DecideSettings:
    """What is promised, and how it is measured: random calibration and test realisations of the pool."""

    target: float = 0.9
    max_set_size: int = 3
    n_calibration: int = 50
    realisations: int = 50
    checkpoints: tuple[float, ...] = (20, 40, 60, 80)

    def __post_init__(self) -> None:
        as_target(self.target)
        as_max_set_size(self.max_set_size)
        as_checkpoints(self.checkpoints)
        _at_least("decide.n_calibration", self.n_calibration, 1)
        _at_least("decide.realisations", self.realisations, 1)


@dataclass(frozen=True)
class RunConfig:
    """One run: data, network, ensembles and decisions."""

    name: str = "digits"
    data: DataSettings = field(default_factory=DataSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    ensembles: tuple[EnsembleSettings, ...] = (EnsembleSettings("deep"), EnsembleSettings("variational"))
    decide: DecideSettings = field(default_factory=DecideSettings)

    def __post_init__(self) -> None:
        if not self.ensembles:
            raise InputError("ensembles is empty: give at least one [[ensembles]] with kind = 'deep' or 'variational'.")
        if not self.name or Path(self.name).name != self.name:
            raise InputError(f"name is {self.name!r}: give a name that can be a folder.")


def load_config(path: str | PathLike[str]) -> RunConfig:
    """Read a configuration. An unknown key is refused, with the known ones that look like it."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: check the path.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as TOML ({error}): mend it.") from None
    return _build(RunConfig, content, "")


Settings = TypeVar("Settings")


def _build(kind: type[Settings], content: Mapping[str, Any], place: str) -> Settings:
    known = {entry.name: entry for entry in fields(kind)}  # type: ignore[arg-type]
    types = get_type_hints(kind)
    for name in content:
        if name not in known:
            near = get_close_matches(name, known, n=3, cutoff=0.5) or sorted(known)
            raise InputError(f"the key {place}{name} is not known: did you mean {' or '.join(near)}?")
    values = {name: _value(types[name], value, f"{place}{name}") for name, value in content.items()}
    missing = [name for name, entry in known.items() if name not in values and entry.default is entry.default_factory is MISSING]
    if missing:
        raise InputError(f"the key {place}{missing[0]} is missing: give it.")
    return kind(**values)


def _value(kind: Any, value: Any, place: str) -> Any:
    if kind in (DataSettings, NetworkSettings, DecideSettings):
        if not isinstance(value, dict):
            raise InputError(f"{place} is {value!r}: a table, [{place}], is needed.")
        return _build(kind, value, f"{place}.")
    if kind == tuple[EnsembleSettings, ...]:
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise InputError(f"{place} is {value!r}: tables, [[{place}]], are needed.")
        return tuple(_build(EnsembleSettings, entry, f"{place}.") for entry in value)
    wanted: tuple[type, ...] = {str: (str,), int: (int,), float: (int, float)}.get(kind, (list,))
    if isinstance(value, bool) or not isinstance(value, wanted):
        names = {str: "a text", int: "a whole number", float: "a number"}
        raise InputError(f"{place} is {value!r}: {names.get(kind, 'a list of numbers')} is needed.")
    return tuple(value) if isinstance(value, list) else value
