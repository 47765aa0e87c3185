"""Limits of a GPU: the kernel of the neurons beside a plain copy, and decisions beside the products
that they need.

With s bytes for a current, the kernel has to read or write 2 s bytes for each neuron and step in
the forward pass and 3 s in the backward pass. It also stores what the backward pass needs: one bit
for each neuron and step, and the state (i, m, h) in float32 at the start of each segment
(`kernels.gpu.srm`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from agreestop.common import Booleans
from agreestop.engines.devices import capture_cuda_graph
from agreestop.kernels.srm import Chunk
from agreestop.networks.neurons import SRM, Neuron

from .preparation import BenchmarkPlan, ours
from .records import BYTES, DECISIONS, BenchRecord
from .timing import Conditions, TimedSystem, measure
from .workloads import with_ratios

RUNS, SIDE = 10, 8192


def bench_kernel(plan: BenchmarkPlan) -> list[BenchRecord]:
    """Gigabytes per second: the hidden neurons of all members over T steps, forward and backward,
    and a copy of their currents.
    """
    # imported here, since importing Triton is slow
    from agreestop.kernels.gpu.srm import (
        LONGEST_SEGMENT,
        backward,
        forward,
    )

    batch, neuron = max(plan.batches), Neuron()
    shape = (plan.steps, plan.members, batch, plan.hidden)
    currents = torch.randn(
        shape, device=plan.device, generator=torch.Generator(plan.device).manual_seed(plan.seed)
    )
    constants = SRM(plan.members, neuron).to(plan.device).parameters_for(currents).constants
    chunk = Chunk(currents, None, constants)
    _, _, saved = forward(chunk, LONGEST_SEGMENT)
    arrived, copy = torch.randn_like(currents), torch.empty_like(currents)
    segments = -(-plan.steps // LONGEST_SEGMENT)
    stored = 1 / 8 + 12 * (segments - 1) / plan.steps  # the first state is 0 and not stored

    def amount(share: float) -> float:
        return RUNS * currents.numel() * share / 1e9

    def often(work: Callable[[], object]) -> Callable[[], object]:
        return _often(work, plan.device)

    def back() -> object:
        return backward(chunk, saved, neuron.surrogate, arrived, None, False)

    systems = [
        ours(
            "srm-kernel",
            "forward",
            often(lambda: forward(chunk, LONGEST_SEGMENT)),
            amount(2 * 4 + stored),
        ),
        ours("srm-kernel", "backward", often(back), amount(3 * 4 + stored)),
        TimedSystem(
            "srm-kernel",
            "copy",
            torch.__version__,
            "on the device",
            often(lambda: copy.copy_(currents)),
            amount(2 * 4),
        ),
    ]
    return with_ratios(
        plan,
        measure(systems, Conditions("normal currents", BYTES, batch), plan.repeats, plan.device),
    )


def _often(work: Callable[[], object], device: str) -> Callable[[], object]:
    """So often in a row, recorded as in training, where starting it from Python takes no time."""

    def run() -> None:
        for _ in range(RUNS):
            work()

    return capture_cuda_graph(run) if device == "cuda" else run


def bench_roof(
    plan: BenchmarkPlan, name: str, inputs: Booleans, side: int = SIDE
) -> list[BenchRecord]:
    """Decisions per second at T if only the products ran, at the speed of a large one: in float32,
    and in our two parts of float16.

    The last record is for the inputs alone that spike in a tile, which are all that ours multiply.
    """
    from agreestop.kernels.gpu.sparse import ROWS, STEPS  # importing Triton is slow

    cells, rows, steps = math.prod(plan.shape), ROWS, STEPS
    tiles = inputs[: len(inputs) // rows * rows, : plan.steps // steps * steps].reshape(
        -1, rows, plan.steps // steps, steps, cells
    )
    share = float(tiles.any(axis=(1, 3)).mean())
    last = plan.hidden * plan.classes
    operations = [
        2 * plan.steps * plan.members * (part * cells * plan.hidden + last)
        for part in (1.0, 1.0, share)
    ]
    systems = []
    for dtype, parts in ((torch.float32, 1), (torch.float16, 2)):
        left, right = (torch.randn(side, side, device=plan.device).to(dtype) for _ in range(2))
        amount = RUNS * 2 * side**3 / (parts * operations[0])

        def product(left: Tensor = left, right: Tensor = right) -> Tensor:
            return left @ right

        systems.append(
            TimedSystem(
                "roof",
                "PyTorch",
                torch.__version__,
                str(dtype),
                _often(product, plan.device),
                amount,
            )
        )
    single, double = measure(systems, Conditions(name, DECISIONS), plan.repeats, plan.device)
    found = []
    for record, parts, count, words in (
        (single, 1, operations[0], "the products in float32"),
        (double, 2, operations[1], "the products in two parts of float16"),
        (double, 2, operations[2], f"those of the {share:.0%} of the inputs that spike in a tile"),
    ):
        rate = record.median * parts * operations[0] / 1e12
        form = (
            f"{words}, {parts * count / 1e9:.2f} GFLOP an input at the measured {rate:.0f} TFLOP/s"
        )
        scale = operations[0] / count
        found.append(
            replace(
                record,
                form=form,
                median=record.median * scale,
                low=record.low * scale,
                high=record.high * scale,
            )
        )
    return found
