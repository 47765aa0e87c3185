"""Files of ensembles: tensors in safetensors, everything else as JSON in the same file's header. Written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer
from agreestop.networks.architectures import ARCHITECTURES, Architecture, SpikingNetwork
from agreestop.networks.neurons import Neuron
from agreestop.networks.posteriors import Posterior
from agreestop.networks.surrogates import Surrogate

HEADER = "agreestop"


def _write(path: str | PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    whole = {name: value.detach().contiguous().cpu().clone() for name, value in tensors.items()}
    with atomic_writer(path) as stream:
        stream.write(save(whole, {HEADER: json.dumps(header)}))


def _read(path: str | PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}: check the path, or train first.")
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged or is no agreestop file ({error}): train again, or copy it again.") from None
    if header.get("kind") != kind:
        raise InputError(f"{path} holds {header.get('kind')!r}, but {kind!r} is needed here: give the right file.")
    return tensors, header


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training run after some epochs: parameters and buffers, the state of the optimiser, and the history.

    key is a hash of the training settings and labels; files of 0.1 have none.
    """

    model: dict[str, Tensor]
    moments: dict[str, Tensor]
    history: list[dict[str, float]]
    key: str = ""

    @classmethod
    def of(cls, model: Any, optimiser: torch.optim.Optimizer, history: list[dict[str, float]], key: str = "") -> Checkpoint:
        """The present state of a model and its optimiser."""
        moments = {f"{index}/{name}": value for index, entry in optimiser.state_dict()["state"].items() for name, value in entry.items()}
        return cls(dict(model.state_dict()), moments, history, key)

    def restore(self, model: Any, optimiser: torch.optim.Optimizer, key: str = "") -> list[dict[str, float]]:
        """Load the state into a model and its optimiser, and return the history. A checkpoint with another key is refused."""
        if self.key and key and self.key != key:
            raise InputError(
                "the checkpoint was made with other training settings or labels: remove it, or train with those that it was made with."
            )
        known = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        found = {name: tuple(value.shape) for name, value in self.model.items()}
        if known != found:
            raise InputError(
                "the checkpoint is of another architecture or number of members: remove it, or train with the settings it was made with."
            )
        model.load_state_dict(self.model)
        content = optimiser.state_dict()
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in self.moments.items():
            index, entry = name.split("/")
            state.setdefault(int(index), {})[entry] = value
        optimiser.load_state_dict({**content, "state": state})
        return self.history


def save_checkpoint(path: str | PathLike[str], checkpoint: Checkpoint) -> None:
    """Save a training run."""
    tensors = {f"model/{name}": value for name, value in checkpoint.model.items()}
    tensors |= {f"moments/{name}": value for name, value in checkpoint.moments.items()}
    _write(path, tensors, {"kind": "checkpoint", "history": checkpoint.history, "key": checkpoint.key})


def load_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Read a training run. Refuses, with a sentence, a file that is missing, damaged or something else."""
    tensors, header = _read(path, "checkpoint")
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "moments": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    return Checkpoint(parts["model"], parts["moments"], header["history"], header.get("key", ""))


def save_members(path: str | PathLike[str], network: SpikingNetwork) -> None:
    """Keep the K members of an ensemble, ready to run."""
    _write(path, network.state_dict(), {"kind": "members", **_described(network.config)})


def load_members(path: str | PathLike[str]) -> SpikingNetwork:
    """Read the K members of an ensemble, in evaluation mode."""
    tensors, header = _read(path, "members")
    with _fitting(path):
        network = SpikingNetwork(_config(header), torch.Generator().manual_seed(0))
        network.load_state_dict(tensors)
    return network.eval()


def load_ensemble(path: str | PathLike[str]) -> SpikingNetwork | Posterior:
    """Read members or a posterior, whichever the file holds."""
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}: check the path, or train first.")
    try:
        with safe_open(path, "pt") as file:
            kind = json.loads((file.metadata() or {})[HEADER]).get("kind")
    except (SafetensorError, OSError, KeyError, ValueError):
        kind = None
    return load_posterior(path) if kind == "posterior" else load_members(path)


def save_posterior(path: str | PathLike[str], posterior: Posterior) -> None:
    """Keep a variational posterior, from which members can be drawn."""
    _write(path, posterior.state_dict(), {"kind": "posterior", "prior_variance": posterior.prior_variance, **_described(posterior.config)})


def load_posterior(path: str | PathLike[str]) -> Posterior:
    """Read a variational posterior, in evaluation mode."""
    tensors, header = _read(path, "posterior")
    with _fitting(path):
        posterior = Posterior(_config(header), torch.Generator().manual_seed(0), None, header["prior_variance"])
        posterior.load_state_dict(tensors)
    return posterior.eval()


@contextmanager
def _fitting(path: str | PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit the architecture it names ({error}): train again, or copy it again.") from None


def _described(config: Architecture) -> dict[str, Any]:
    name = next(name for name, kind in ARCHITECTURES.items() if isinstance(config, kind))
    return {"architecture": name, "settings": _plain(config)}


def _plain(settings: Any) -> Any:
    if is_dataclass(settings):
        return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}
    return list(settings) if isinstance(settings, tuple) else settings


def _config(header: dict[str, Any]) -> Architecture:
    settings = dict(header["settings"])
    neuron = dict(settings.pop("neuron"))
    surrogate = Surrogate(**neuron.pop("surrogate"))
    shaped: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return ARCHITECTURES[header["architecture"]](**shaped, neuron=Neuron(**neuron, surrogate=surrogate))
