"""The neurons' kernel of a GPU beside a plain copy: bytes a second, of those that it must move.

Of a neuron and step, with s bytes to a current, the kernel must read or write 2 s forward and 3 s backward, and what the backward pass is
kept in: a bit, and the state (i, m, h) in float32 at the start of each segment (`networks.fused`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from agreestop.networks._kernels.cuda_graph import capture_cuda_graph
from agreestop.networks.neurons import SRM, Neuron

from .protocol import Contender, Where, measure
from .records import BYTES, BenchRecord
from .setup import Plan, ours
from .works import judged

RUNS = 10


def bench_kernel(plan: Plan) -> list[BenchRecord]:
    """Gigabytes a second of the hidden neurons of all members over T steps, forward and backward, and of a copy of their currents."""
    from agreestop.networks._kernels.gpu_srm import LONGEST_SEGMENT, backward, forward  # imported here since Triton takes a while

    batch, neuron = max(plan.batches), Neuron()
    shape = (plan.steps, plan.members, batch, plan.hidden)
    currents = torch.randn(shape, device=plan.device, generator=torch.Generator(plan.device).manual_seed(plan.seed))
    constants = SRM(plan.members, neuron).to(plan.device).parameters_for(currents).constants
    _, _, bits, checkpoints = forward(currents, None, constants, LONGEST_SEGMENT)
    arrived, copy = torch.randn_like(currents), torch.empty_like(currents)
    segments = -(-plan.steps // LONGEST_SEGMENT)
    kept = 1 / 8 + 12 * (segments - 1) / plan.steps  # the first state is nothing

    def amount(share: float) -> float:
        return RUNS * currents.numel() * share / 1e9

    def often(work: Callable[[], object]) -> Callable[[], object]:
        """So often in a row, recorded as in training, where starting it from Python takes no time."""

        def run() -> None:
            for _ in range(RUNS):
                work()

        return capture_cuda_graph(run) if plan.device == "cuda" else run

    def back() -> object:
        return backward(arrived, None, currents, None, bits, checkpoints, constants, neuron.surrogate, LONGEST_SEGMENT, False, False)

    contenders = [
        ours("srm-kernel", "forward", often(lambda: forward(currents, None, constants, LONGEST_SEGMENT)), amount(2 * 4 + kept)),
        ours("srm-kernel", "backward", often(back), amount(3 * 4 + kept)),
        Contender("srm-kernel", "copy", torch.__version__, "on the device", often(lambda: copy.copy_(currents)), amount(2 * 4)),
    ]
    return judged(plan, measure(contenders, Where("normal currents", BYTES, batch), plan.repeats, plan.device))
