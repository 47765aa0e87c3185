"""Files of ensembles: tensors in safetensors, everything else as JSON in the header of the same file. Written whole or not at all.

The header carries a SHA-256 digest of the tensors and of the rest of the header, which is checked when the file is read. Files of 0.1
have no digest. Nothing in a file is executed or unpickled.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from agreestop.common import InputError, atomic_writer
from agreestop.networks.architectures import ARCHITECTURES, Architecture, SpikingNetwork
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.neurons import Neuron
from agreestop.networks.posteriors import ModulePosterior, Posterior
from agreestop.networks.surrogates import Surrogate

HEADER = "agreestop"
Runnable: TypeAlias = SpikingNetwork | ModuleMembers | Posterior | ModulePosterior
"""What an engine runs: K members, or a posterior from which members are drawn for every input."""


def digest_of(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> str:
    """A SHA-256 digest, in hexadecimal, of named tensors and of settings that JSON can hold."""
    total = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def network_digest(network: Runnable, **more: Any) -> str:
    """The digest of an ensemble: of the tensors and settings of what an engine runs."""
    return digest_of(network.state_dict(), {**describe(network), **more})


def write_file(path: str | PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write tensors and a header, which names its "kind"."""
    whole = {name: value.detach().contiguous().cpu().clone() for name, value in tensors.items()}
    content = {**header, "digest": digest_of(whole, header)}
    with atomic_writer(path) as stream:
        stream.write(save(whole, {HEADER: json.dumps(content)}))


def read_file(path: str | PathLike[str], *kinds: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file of one of these kinds. Refuses a file that is missing, damaged, changed or of another kind."""
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}: check the path, or train first.")
    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged or is no agreestop file ({error}): train again, or copy it again.") from None
    if header.get("kind") not in kinds:
        wanted = " or ".join(repr(kind) for kind in kinds)
        raise InputError(f"{path} holds {header.get('kind')!r}, but {wanted} is needed here: give the right file.")
    known = header.pop("digest", None)
    if known is not None and known != digest_of(tensors, header):
        raise InputError(f"{path} was changed after it was written (its digest does not match): copy it again, or train again.")
    return tensors, header


def save_checkpoint(path: str | PathLike[str], model: nn.Module, optimiser: Optimizer, history: list[dict[str, float]], key: str) -> None:
    """Save a training run after some epochs. key: a hash of its settings."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, entry in optimiser.state_dict()["state"].items():
        tensors |= {f"moments/{index}/{name}": value for name, value in entry.items()}
    write_file(path, tensors, {"kind": "checkpoint", "history": history, "key": key})


def load_checkpoint(path: str | PathLike[str], model: nn.Module, optimiser: Optimizer, key: str) -> list[dict[str, float]]:
    """Load a training run into a model and its optimiser, and return the history. A run with other settings is refused."""
    tensors, header = read_file(path, "checkpoint")
    if header.get("key", key) != key:
        raise InputError(f"{path} was made with other training settings or labels: remove it, or train with those of the file.")
    found = select(tensors, "model/")
    if {name: value.shape for name, value in found.items()} != {name: value.shape for name, value in model.state_dict().items()}:
        raise InputError(f"{path} is of another architecture or number of members: remove it, or train with the settings of the file.")
    model.load_state_dict(found)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in select(tensors, "moments/").items():
        index, entry = name.split("/")
        state.setdefault(int(index), {})[entry] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return list(header["history"])


def select(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def save_members(path: str | PathLike[str], network: SpikingNetwork) -> None:
    """Save the K members of an ensemble, ready to run."""
    write_file(path, network.state_dict(), {"kind": "members", **describe(network)})


def load_members(path: str | PathLike[str]) -> SpikingNetwork:
    """Read the K members of an ensemble, in evaluation mode."""
    tensors, header = read_file(path, "members")
    with fitting(path):
        network = SpikingNetwork(restore_settings(header), torch.Generator().manual_seed(0))
        network.load_state_dict(tensors)
    return network.eval()


def save_posterior(path: str | PathLike[str], posterior: Posterior) -> None:
    """Save a variational posterior, from which members can be drawn."""
    write_file(path, posterior.state_dict(), {"kind": "posterior", **describe(posterior)})


def load_posterior(path: str | PathLike[str]) -> Posterior:
    """Read a variational posterior, in evaluation mode."""
    tensors, header = read_file(path, "posterior")
    with fitting(path):
        posterior = Posterior(restore_settings(header), torch.Generator().manual_seed(0), None, header["prior_variance"])
        posterior.load_state_dict(tensors)
    return posterior.eval()


@contextmanager
def fitting(path: str | PathLike[str]) -> Iterator[None]:
    """A file whose tensors do not fit its settings gets a sentence."""
    try:
        yield
    except (KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"{path} does not fit the network that it names ({error}): train again, or copy it again.") from None


def describe(network: Runnable) -> dict[str, Any]:
    """The settings of a network, for the header of a file. Modules of the user have no architecture."""
    header = {"prior_variance": network.prior_variance} if isinstance(network, (Posterior, ModulePosterior)) else {}
    if isinstance(network, (ModuleMembers, ModulePosterior)):
        return header | {"architecture": None, "output": network.output, "input_shape": network.input_shape}
    config = network.config
    name = next((name for name, kind in ARCHITECTURES.items() if isinstance(config, kind)), type(config).__name__)
    return header | {"architecture": name, "settings": _plain(config)}


def _plain(settings: Any) -> Any:
    if is_dataclass(settings):
        return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}
    if isinstance(settings, tuple):
        return list(settings)
    return settings if settings is None or isinstance(settings, (bool, int, float, str)) else repr(settings)


def restore_settings(header: Mapping[str, Any]) -> Architecture:
    """The architecture that the header of a file names."""
    settings = dict(header["settings"])
    neuron = dict(settings.pop("neuron"))
    surrogate = Surrogate(**neuron.pop("surrogate"))
    shaped: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return ARCHITECTURES[header["architecture"]](**shaped, neuron=Neuron(**neuron, surrogate=surrogate))
