"""Peers of the deep benchmark: members of our convolutional network or ResNet-18 in other
libraries, with their weights and statistics.

    members = DeepPeer(peer, form, network, steps, device)
    x = members.prepare(inputs)                 (n, T, ...), or images (n, 1, ...) that are held, on
                                                the device, in the library's layout
    members.decide(x)                           spike counts (n, K, C) at T
    members.train_step(x, labels)               forward, log-loss of the counts, backward, SGD with
                                                momentum

A member is the same stack of layers: the library's own neuron, and PyTorch's convolutions with
channels innermost, in bfloat16 on a GPU. A layer takes the whole sequence at once, and an image
that is held passes its first convolution once. Without training, batch normalisation is folded into
the convolutions. "CUDA graph" replays a captured pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from agreestop.engines.devices import capture_cuda_graph
from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.layers import MemberBatchNorm2d, MemberConv2d, MemberLinear, SpikingLayer

from .peers import LEARNING_RATE, Neurons, Peer


@dataclass(frozen=True)
class DeepForm:
    """One way to use a library."""

    graph: bool = False

    def __str__(self) -> str:
        return "layer by layer, CUDA graph" if self.graph else "layer by layer"


def _normalised(
    synapses: MemberConv2d, norm: MemberBatchNorm2d, member: int, fold: bool
) -> nn.Module:
    """A convolution and its batch normalisation, in one where `fold`."""
    conv = nn.Conv2d(
        synapses.inputs,
        synapses.outputs,
        synapses.size,
        synapses.stride,
        synapses.size // 2,
        bias=False,
    )
    bn = nn.BatchNorm2d(norm.channels)
    with torch.no_grad():
        conv.weight.copy_(synapses.weight[member])
        for mine, theirs in (
            (bn.weight, norm.weight),
            (bn.bias, norm.bias),
            (bn.running_mean, norm.running_mean),
            (bn.running_var, norm.running_var),
        ):
            cast(Tensor, mine).copy_(theirs[member])
    return fuse_conv_bn_eval(conv.eval(), bn.eval()) if fold else nn.Sequential(conv, bn)


@final
class _Layer(nn.Module):
    """Pool, multiply, normalise, add the shortcut, spike."""

    def __init__(
        self, layer: SpikingLayer, member: int, neurons: Callable[[], Neurons], fold: bool
    ) -> None:
        super().__init__()
        self.pool, self.average, self.identity = (
            layer.max_pool,
            layer.average,
            isinstance(layer.shortcut, nn.Identity),
        )
        self.shortcut: nn.Module | None = None
        if isinstance(layer.synapses, MemberConv2d):
            assert layer.norm is not None
            self.synapses: nn.Module = _normalised(layer.synapses, layer.norm, member, fold)
        else:
            linear = nn.Linear(layer.synapses.inputs, layer.synapses.outputs, bias=False)
            with torch.no_grad():
                linear.weight.copy_(layer.synapses.weight[member].T)
            self.synapses = linear
        if isinstance(layer.shortcut, nn.Sequential):
            parts = (
                cast(MemberConv2d, layer.shortcut[0]),
                cast(MemberBatchNorm2d, layer.shortcut[1]),
            )
            self.shortcut = _normalised(*parts, member, fold)
        self.neurons = neurons()
        self.product = isinstance(layer.synapses, MemberLinear)

    def forward(self, x: Tensor, earlier: Tensor, steps: int | None) -> Tensor:
        """x and earlier have two leading axes, of time and batch in the library's order."""
        if not self.training:  # some libraries' neurons give float32 for bfloat16
            dtype = next(self.synapses.parameters()).dtype
            x, earlier = x.to(dtype), earlier.to(dtype)
        y = x.flatten(0, 1)
        y = F.max_pool2d(y, 2) if self.pool else y.mean((2, 3)) if self.average else y
        currents = self.synapses(y.flatten(1) if self.product else y)
        if self.shortcut is not None:
            currents = currents + self.shortcut(earlier.flatten(0, 1))
        if self.identity:
            currents = currents + earlier.flatten(0, 1)
        currents = currents.unflatten(0, x.shape[:2])
        if steps is not None:
            sizes = [-1] * currents.ndim
            sizes[self.neurons.time_axis] = steps
            currents = currents.expand(sizes).contiguous()
        return self.neurons.sequence(currents)


@final
class _Member(nn.Module):
    def __init__(
        self,
        network: SpikingNetwork,
        member: int,
        neurons: Callable[[], Neurons],
        held: int | None,
        fold: bool,
    ) -> None:
        super().__init__()
        layers = cast(Iterable[SpikingLayer], network.layers)
        self.layers = nn.ModuleList(_Layer(layer, member, neurons, fold) for layer in layers)
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        """Read-out spikes of a sequence."""
        earlier = x
        for index, layer in enumerate(self.layers):
            cast(_Layer, layer).neurons.rest()
            earlier, x = x, layer(x, earlier, None if index else self.held)
        return x


@final
class DeepPeer:
    """K members in a peer's library. trained: whether they are trained, else only decide. held: the
    steps of an image, None for streams.
    """

    def __init__(
        self,
        peer: Peer,
        form: DeepForm,
        network: SpikingNetwork,
        held: int | None,
        device: str,
        trained: bool,
    ) -> None:
        self._device = device
        self._dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self._networks: Any = [
            _Member(network, k, peer.neurons, held, not trained).to(device)
            for k in range(network.members)
        ]
        self._axis = cast(_Layer, self._networks[0].layers[0]).neurons.time_axis
        for one in self._networks:
            one.to(memory_format=torch.channels_last)
            one.train() if trained else one.eval().to(self._dtype)
        self._optimisers = [
            torch.optim.SGD(one.parameters(), LEARNING_RATE, 0.9)
            for one in self._networks
            if trained
        ]
        self._graph: Callable[[], None] | None = None
        self._captures, self._given, self._result = (
            form.graph,
            cast(list[Tensor], []),
            torch.zeros(()),
        )
        self._states: list[Tensor] = []

    def prepare(self, inputs: NDArray[Any]) -> Tensor:
        """Inputs on the device, before the clock starts: as bytes, which a pass turns
        into numbers.
        """
        x = torch.from_numpy(inputs).to(self._device)
        return (x if self._axis else x.transpose(0, 1)).contiguous()

    @torch.inference_mode()
    def decide(self, x: Tensor) -> Tensor:
        """Spike counts (n, K, C) of every member at T."""
        return self._replayed(self._counts, x).cpu()

    def train_step(self, x: Tensor, labels: Tensor) -> Tensor:
        """One training step for every member; returns the sum of their losses, on the device."""
        loss = self._replayed(self._gradients, x, labels)
        for optimiser in self._optimisers:
            optimiser.step()
        return loss

    def _replayed(self, work: Callable[..., Tensor], *given: Tensor) -> Tensor:
        if not self._captures:
            return work(*given)
        if self._graph is None:
            self._given = [value.clone() for value in given]

            def run() -> None:
                self._states = self._held_tensors()
                self._result = work(*self._given)

            self._graph = capture_cuda_graph(run)
        for target, value in zip(self._given, given, strict=True):
            target.copy_(value)
        self._graph()
        return self._result

    def _held_tensors(self) -> list[Tensor]:
        """All tensors that the modules hold. A captured pass may write to states that the modules
        replace, so they must stay in memory.
        """
        modules = [module for one in self._networks for module in one.modules()]
        return [
            value
            for module in modules
            for value in (*module._buffers.values(), *vars(module).values())
            if isinstance(value, Tensor)
        ]

    def _frames(self, x: Tensor) -> Tensor:
        y = x.flatten(0, 1).to(self._dtype, memory_format=torch.channels_last)
        return y.unflatten(0, x.shape[:2])  # type: ignore[no-untyped-call]

    def _counts(self, x: Tensor) -> Tensor:
        frames = self._frames(x)
        return torch.stack([one(frames).sum(self._axis) for one in self._networks], 1)

    def _gradients(self, x: Tensor, labels: Tensor) -> Tensor:
        frames, total = self._frames(x), torch.zeros((), device=self._device)
        for one in self._networks:
            for parameter in one.parameters():
                parameter.grad = None
            with torch.autocast(
                self._device, torch.bfloat16, enabled=self._device == "cuda", cache_enabled=False
            ):
                counts = one(frames).sum(self._axis)
            loss = F.cross_entropy(counts.float(), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total
