"""The GPU kernel of the neurons beside a plain copy: the bytes per second that it has to move.

With s bytes for a current, the kernel has to read or write 2 s bytes for each neuron and step in the forward pass and 3 s in the backward
pass. It also stores what the backward pass needs: one bit for each neuron and step, and the state (i, m, h) in float32 at the start of each
segment (`networks._kernels.gpu_srm`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from agreestop.networks._kernels.gpu_runtime import capture_cuda_graph
from agreestop.networks.neurons import SRM, Neuron
from agreestop.networks.srm_core import Chunk

from .preparation import BenchmarkPlan, ours
from .records import BYTES, BenchRecord
from .timing import Conditions, TimedSystem, measure
from .workloads import with_ratios

RUNS = 10


def bench_kernel(plan: BenchmarkPlan) -> list[BenchRecord]:
    """Gigabytes per second: the hidden neurons of all members over T steps, forward and backward, and a copy of their currents."""
    from agreestop.networks._kernels.gpu_srm import LONGEST_SEGMENT, backward, forward  # imported here, since importing Triton is slow

    batch, neuron = max(plan.batches), Neuron()
    shape = (plan.steps, plan.members, batch, plan.hidden)
    currents = torch.randn(shape, device=plan.device, generator=torch.Generator(plan.device).manual_seed(plan.seed))
    constants = SRM(plan.members, neuron).to(plan.device).parameters_for(currents).constants
    chunk = Chunk(currents, None, constants)
    _, _, saved = forward(chunk, LONGEST_SEGMENT)
    arrived, copy = torch.randn_like(currents), torch.empty_like(currents)
    segments = -(-plan.steps // LONGEST_SEGMENT)
    stored = 1 / 8 + 12 * (segments - 1) / plan.steps  # the first state is 0 and not stored

    def amount(share: float) -> float:
        return RUNS * currents.numel() * share / 1e9

    def often(work: Callable[[], object]) -> Callable[[], object]:
        """So often in a row, recorded as in training, where starting it from Python takes no time."""

        def run() -> None:
            for _ in range(RUNS):
                work()

        return capture_cuda_graph(run) if plan.device == "cuda" else run

    def back() -> object:
        return backward(chunk, saved, neuron.surrogate, arrived, None, False)

    systems = [
        ours("srm-kernel", "forward", often(lambda: forward(chunk, LONGEST_SEGMENT)), amount(2 * 4 + stored)),
        ours("srm-kernel", "backward", often(back), amount(3 * 4 + stored)),
        TimedSystem("srm-kernel", "copy", torch.__version__, "on the device", often(lambda: copy.copy_(currents)), amount(2 * 4)),
    ]
    return with_ratios(plan, measure(systems, Conditions("normal currents", BYTES, batch), plan.repeats, plan.device))
