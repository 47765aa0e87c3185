"""What runs on an engine, in settings and as a hash: scores and rules carry the hash of the
members that computed them.
"""

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from agreestop.common import InputError

from .architectures import ARCHITECTURES, SpikingNetwork
from .modules import ModuleMembers
from .posteriors import ModulePosterior, Posterior

Runnable: TypeAlias = SpikingNetwork | ModuleMembers | Posterior | ModulePosterior
"""What an engine runs: K members, or a posterior from which members are drawn for every input."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes, which are equal where all bits are."""
FEW = 4096
"""Up to this many numbers, rearranging them to compare eight bytes at a time takes longer."""


def check_network(network: Any) -> None:
    """Refuse what is not a network of members, and weights that are not finite."""
    if not isinstance(network, (SpikingNetwork, ModuleMembers)):
        raise InputError(
            f"the network is a {type(network).__name__}: give a SpikingNetwork, or own modules as "
            "ModuleMembers(list)."
        )
    if not all(bool(torch.isfinite(value).all()) for value in network.parameters()):
        raise InputError(
            "the members hold weights that are not finite: train again with a lower learning rate."
        )


def digest_of(tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> str:
    """A SHA-256 digest, in hexadecimal, of named tensors and of settings that JSON can hold."""
    total = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        total.update(_bytes(value).cpu().numpy().data)
    return total.hexdigest()


@final
class KnownDigest:
    """The digest of a network, which is hashed again only if weights or settings have changed.

    Weights are compared with a copy of those that were hashed, bit by bit, which is many times as
    fast as a hash. The version counters of PyTorch are no sign of a change: edits of `.data`, NumPy
    views and fused optimisers leave them as they are.
    """

    def __init__(self) -> None:
        self._settings, self._digest = "", ""
        self._tensors: dict[str, Tensor] = {}

    def of(self, network: Runnable, **more: Any) -> str:
        """The digest of a network and of more settings, which JSON can hold."""
        tensors, settings = network.state_dict(), network_settings(network)
        if isinstance(network, (ModuleMembers, ModulePosterior)):
            del settings["input_shape"]  # it is not known before the first use
            settings["modules"] = describe_modules(network)
        settings |= more
        text = json.dumps(settings, sort_keys=True)
        if text != self._settings or not _are_equal(tensors, self._tensors):
            self._settings, self._digest = text, digest_of(tensors, settings)
            self._tensors = {name: value.detach().clone() for name, value in tensors.items()}
        return self._digest


def _are_equal(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Whether all tensors are the same, bit by bit."""
    return tensors.keys() == others.keys() and all(
        _is_equal(value, others[name]) for name, value in tensors.items()
    )


def _is_equal(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape, one.device) != (other.dtype, other.shape, other.device):
        return False
    kind = INTEGERS.get(one.element_size())
    if one.numel() <= FEW and kind is not None:
        return torch.equal(one.view(kind), other.view(kind))
    both = _bytes(one), _bytes(other)
    if all(not (part.numel() % 8 or part.storage_offset() % 8) for part in both):
        return torch.equal(*(part.view(torch.int64) for part in both))  # eight bytes at a time
    return torch.equal(*both)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def network_settings(network: Runnable) -> dict[str, Any]:
    """The settings of a network, for the header of a file.

    Modules of the user have no architecture.
    """
    header = (
        {"prior_variance": network.prior_variance}
        if isinstance(network, (Posterior, ModulePosterior))
        else {}
    )
    if isinstance(network, (ModuleMembers, ModulePosterior)):
        return header | {
            "architecture": None,
            "output": network.output,
            "input_shape": network.input_shape,
        }
    config = network.config
    name = next(
        (name for name, kind in ARCHITECTURES.items() if isinstance(config, kind)),
        type(config).__name__,
    )
    return header | {"architecture": name, "settings": _plain(config)}


def describe_modules(network: Runnable) -> list[Any]:
    """What modules of the user compute: for each part its type, its plain attributes, and its
    forward function where it has a source.
    """
    parts: list[Any] = []
    for name, part in network.named_modules():
        if part is network or not isinstance(network, (ModuleMembers, ModulePosterior)):
            continue
        public = {
            key: value
            for key, value in vars(part).items()
            if key != "training" and not key.startswith("_")
        }
        # neurons may note None as they run
        plain = {
            key: value for key, value in public.items() if value is not None and _is_plain(value)
        }
        parts.append([name, type(part).__name__, plain])
        if not type(part).__module__.startswith(("torch.", "agreestop.")):
            parts[-1] += filter(None, [source_of(type(part).forward)])
    return parts


def source_of(function: Any) -> str:
    """The source of a function, without comments and indentation, and the plain values that it
    holds: arguments and enclosed variables.

    Empty where there is no source, as for a function that was typed in.
    """
    held: dict[str, Any] = {}
    while isinstance(function, partial):
        held |= {str(index): value for index, value in enumerate(function.args)} | function.keywords
        function = function.func
    if not inspect.isroutine(function):  # an object that can be called
        held |= vars(function) if hasattr(function, "__dict__") else {}
        function = type(function).__call__
    # not a function of Python, or a variable that has no value yet
    with suppress(TypeError, ValueError):
        held |= inspect.getclosurevars(function).nonlocals
    plain = {name: value for name, value in held.items() if _is_plain(value)}
    return _parsed(function) + (json.dumps(plain, sort_keys=True) if plain else "")


@lru_cache(512)
def _parsed(function: Any) -> str:
    with suppress(OSError, SyntaxError, TypeError):
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
    return ""


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _plain(settings: Any) -> Any:
    if is_dataclass(settings):
        return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}
    if isinstance(settings, tuple):
        return list(settings)
    return settings if _is_plain(settings) else repr(settings)
