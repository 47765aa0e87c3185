"""From what an ensemble is built: settings of an architecture, a function that builds one module, or modules that exist already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import nn

from agreestop.common import InputError
from agreestop.networks.architectures import Architecture

NetworkSource: TypeAlias = Architecture | Callable[[], nn.Module] | Sequence[nn.Module]
"""Settings of an architecture, a function `() -> torch module`, or a list of modules."""


@dataclass(frozen=True, eq=False)
class Source:
    """Exactly one of the three is given: `config`, `builder` or `modules`."""

    config: Architecture | None = None
    builder: Callable[[], nn.Module] | None = None
    modules: tuple[nn.Module, ...] | None = None

    @classmethod
    def of(cls, network: NetworkSource) -> Source:
        """Which of the three it is; everything else is refused."""
        if is_dataclass(network) and not isinstance(network, (type, nn.Module)) and hasattr(network, "layers"):
            return cls(config=network)
        if isinstance(network, nn.Module):
            raise InputError(
                f"network is one {type(network).__name__}: give a function that builds one for each member, such as "
                f"lambda: {type(network).__name__}(...), or a list of modules."
            )
        if isinstance(network, (list, tuple)) and network and all(isinstance(module, nn.Module) for module in network):
            return cls(modules=tuple(network))
        if callable(network):
            return cls(builder=network)
        raise InputError(
            f"network is {network!r}: give settings such as agreestop.networks.FullyConnected(...), a function that builds a torch module, "
            "or a list of torch modules."
        )

    @property
    def name(self) -> str:
        """The kind of network, in a word or two."""
        if self.modules is not None:
            return type(self.modules[0]).__name__
        return type(self.config).__name__ if self.config is not None else str(getattr(self.builder, "__name__", "builder"))

    def settings(self, members: int, real_input: bool = False) -> Architecture:
        """The settings for this number of members. real_input: the inputs hold values other than 0 and 1."""
        assert self.config is not None
        config: Any = self.config
        return cast(Architecture, replace(config, members=members, real_input=config.real_input or real_input))

    def build(self, count: int, seed: int) -> list[nn.Module]:
        """The modules of the user: those given, or new ones of the builder.

        Random numbers that the builder of member k draws from torch follow from (seed, k), and torch's own are left as they were.
        """
        if self.modules is not None:
            return list(self.modules)
        assert self.builder is not None
        built = []
        for member in range(count):
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                torch.manual_seed(int(np.random.SeedSequence((seed, member)).generate_state(1, np.uint64)[0] >> 1))
                module = self.builder()
            if not isinstance(module, nn.Module):
                raise InputError(f"the builder returned a {type(module).__name__}: it must return a torch.nn.Module.")
            built.append(module)
        return built
