"""Files of ensembles: tensors in safetensors, everything else as JSON in the header of the same
file. Written whole or not at all.

The header carries a SHA-256 digest of the tensors and of the rest of the header, which is checked
when the file is read. Files of 0.1 have no digest. Nothing in a file is executed or unpickled.
"""

import json
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Self, TypeAlias
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from agreestop.common import InputError, atomic_writer, open_file
from agreestop.decide.rule_files import MAGIC
from agreestop.networks import Surrogate
from agreestop.networks.architectures import ARCHITECTURES, Architecture, SpikingNetwork
from agreestop.networks.digests import digest_of, network_settings
from agreestop.networks.neurons import Neuron

HEADER = "agreestop"
KEYS_OF_01 = {"kind", "architecture", "settings", "prior_variance"}
"""What the headers of members and posteriors of version 0.1 hold.

A file without a digest holds nothing else.
"""


@dataclass(frozen=True)
class Epoch:
    """What one epoch reached on its own training examples."""

    loss: float
    accuracy: float
    divergence: float

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """An epoch as the header of a file holds it."""
        return cls(float(entry["loss"]), float(entry["accuracy"]), float(entry["divergence"]))


Key: TypeAlias = dict[str, str]
"""Hashes of what decides the numbers of a training run, by name."""


class UnusableFile(InputError):
    """A file that is damaged, or whose parts do not fit together. What made it can
    make it again.
    """


class OwnModules(InputError):
    """A file of members that are torch modules of the user, which cannot be built from
    the file alone.
    """


def write_tensors(
    path: str | PathLike[str], tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Write tensors and a header, which names its "kind"."""
    whole = {name: value.detach().contiguous().cpu().clone() for name, value in tensors.items()}
    content = {**header, "digest": digest_of(whole, header)}
    with atomic_writer(path) as stream:
        stream.write(save(whole, {HEADER: json.dumps(content)}))


def read_tensors(
    path: str | PathLike[str], *kinds: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file of one of these kinds.

    Refuses a file that is missing, damaged, changed or of another kind.
    """
    advice = (
        "remove it, and training starts again"
        if kinds == ("checkpoint",)
        else "copy it again, or train again"
    )
    try:
        with open_file(path, "check the path, or train first"), safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not isinstance(header, dict):
            raise TypeError
    except InputError:
        raise
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError):
        if is_zipfile(path):
            raise UnusableFile(
                f"{path} is an .npz file, as scores and inputs are, and holds no members: give the "
                "file that training wrote."
            ) from None
        with open_file(path) as stream:
            if stream.read(len(MAGIC)) == MAGIC.encode():
                raise UnusableFile(
                    f"{path} is a rule file and holds no members: give the file that training "
                    "wrote."
                ) from None
        raise UnusableFile(f"{path} is damaged or is no agreestop file: {advice}.") from None
    if header.get("kind") not in kinds:
        wanted = " or ".join(repr(kind) for kind in kinds)
        raise InputError(
            f"{path} holds {reprlib.repr(header.get('kind'))}, but {wanted} is needed here: give "
            "the right file."
        )
    known = header.pop("digest", None)
    if known != digest_of(tensors, header) and not (
        known is None and KEYS_OF_01.issuperset(header)
    ):
        raise UnusableFile(
            f"{path} was changed after it was written (its digest does not match): {advice}."
        )
    return tensors, header


def save_checkpoint(
    path: str | PathLike[str],
    model: nn.Module,
    optimiser: Optimizer,
    history: list[Epoch],
    key: Key,
) -> None:
    """Save a training run after some epochs."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, entry in optimiser.state_dict()["state"].items():
        tensors |= {f"moments/{index}/{name}": value for name, value in entry.items()}
    write_tensors(
        path,
        tensors,
        {"kind": "checkpoint", "history": [asdict(epoch) for epoch in history], "key": key},
    )


def load_checkpoint(
    path: str | PathLike[str], model: nn.Module, optimiser: Optimizer, key: Key
) -> list[Epoch]:
    """Load a training run into a model and its optimiser, and return the history.

    A run with other settings is refused.
    """
    tensors, header = read_tensors(path, "checkpoint")
    state: dict[int, dict[str, Tensor]] = {}
    with fitting(path, "remove it, and training starts again"):
        others = [name for name, value in key.items() if dict(header["key"])[name] != value]
        if others:
            raise UnusableFile(
                f"{path} was made with other {' and other '.join(others)}: remove it, or train "
                "with those of the file."
            )
        for name, value in select(tensors, "moments/").items():
            index, entry = name.split("/")
            state.setdefault(int(index), {})[entry] = value
        history = [Epoch.of(entry) for entry in header["history"]]
        model.load_state_dict(select(tensors, "model/"))
        optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    return history


def select(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def save_members(path: str | PathLike[str], network: SpikingNetwork) -> None:
    """Save the K members of an ensemble, ready to run."""
    write_tensors(path, network.state_dict(), {"kind": "members", **network_settings(network)})


@contextmanager
def fitting(
    path: str | PathLike[str], advice: str = "copy it again, or train again"
) -> Iterator[None]:
    """A file whose parts do not fit together gets a sentence."""
    try:
        yield
    except InputError:
        raise
    except (
        AttributeError,
        IndexError,
        KeyError,
        MemoryError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ):
        raise UnusableFile(f"{path} does not fit the network that it names: {advice}.") from None


def check_shapes(config: Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other shapes than the network has, before memory is taken for a
    network of that size.
    """
    with torch.device("meta"):
        expected = nn.ModuleList(config.layers()).state_dict()
    shapes = {f"layers.{name}": value.shape for name, value in expected.items()}
    if shapes != {name: value.shape for name, value in tensors.items()}:
        raise ValueError("other shapes")


def restore_settings(header: Mapping[str, Any]) -> Architecture:
    """The architecture that the header of a file names."""
    settings = dict(header["settings"])
    neuron = dict(settings.pop("neuron"))
    surrogate = Surrogate(**neuron.pop("surrogate"))
    shaped: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return ARCHITECTURES[header["architecture"]](
        **shaped, neuron=Neuron(**neuron, surrogate=surrogate)
    )
