"""The roofs of deep networks on a GPU: how fast decisions and training could be if only
convolutions ran, or only bytes moved.

roof         decisions per second at T if only the same convolutions ran, and at the measured peak
             of a matrix product
roof-train   inputs per second of training if its bytes moved at the speed of a copy, and if its
             operations ran at that peak
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from agreestop.engines.devices import capture_cuda_graph

from .deep_cases import REPEATS, STEPS, DeepCase, PreparedCase
from .records import DECISIONS, TRAINED, BenchRecord
from .timing import Conditions, TimedSystem, measure


def bench_roof(case: DeepCase, prepared: PreparedCase, name: str) -> list[BenchRecord]:
    """Decisions per second at T if only the convolutions and products of one member's pass ran, K
    times; and at the peak of a product.
    """
    import agreestop.engines.gpu.deep as deep

    seen: list[tuple[Any, torch.Size, torch.Size]] = []
    currents, K = deep._Synapses.currents, prepared.network.members
    member = deep.DeepMember(
        prepared.network.select_members(slice(0, 1)).to("cuda").eval(), bf16=True
    )
    steps, rows = 16, case.batch
    frames = torch.zeros(
        (1 if case.held else steps, rows, *prepared.network.input_shape), device="cuda"
    )

    def watch(synapses: Any, x: torch.Tensor) -> torch.Tensor:
        y = currents(synapses, x)
        seen.append((synapses, x.shape, y.shape))
        return y

    deep._Synapses.currents = watch  # type: ignore[method-assign, assignment]
    try:
        member(frames, None, steps if case.held else None)
    finally:
        deep._Synapses.currents = currents  # type: ignore[method-assign]
    work = [
        (one, (torch.rand(given, device="cuda") < 0.1).to(one.weight.dtype))
        for one, given, _ in seen
    ]

    @torch.inference_mode()
    def convolve() -> None:
        for one, x in work:
            currents(one, x)

    side, (count, trained) = 8192, case.trained
    left, right = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    runs, share = 10, 16 / STEPS / K
    operations = sum(2 * np.prod(out) * np.prod(one.weight.shape[1:]) for one, _, out in seen) / (
        steps * rows
    )

    def often(run: Callable[[], object]) -> Callable[[], object]:
        def repeat() -> None:
            for _ in range(runs):
                run()

        return capture_cuda_graph(repeat)

    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    moved = training_bytes(seen, steps * rows) * trained * K
    version = torch.__version__
    systems = [
        TimedSystem(
            "roof",
            "PyTorch",
            version,
            "the same convolutions alone",
            often(convolve),
            runs * rows * share,
        ),
        TimedSystem(
            "roof",
            "PyTorch",
            version,
            "",
            often(lambda: left @ right),
            runs * 2 * side**3 / (operations * STEPS * K),
        ),
        TimedSystem(
            "roof-train",
            "PyTorch",
            version,
            "",
            often(lambda: target.copy_(source)),
            runs * 2 * source.nbytes / moved,
        ),
    ]
    alone, peak, copied = measure(systems, Conditions(name, DECISIONS, case.batch), REPEATS, "cuda")
    rate, speed = peak.median * operations * STEPS * K / 1e12, copied.median * moved / 1e12
    words = f"at the measured peak of {rate:.0f} TFLOP/s"
    times = STEPS / (3 * trained)  # backward, a convolution takes twice the operations of forward
    step = replace(
        peak,
        work="roof-train",
        unit=TRAINED,
        batch=count,
        median=peak.median * times,
        low=peak.low * times,
        high=peak.high * times,
    )
    return [
        alone,
        replace(peak, form=f"{operations / 1e9:.2f} GFLOP an input, member and step {words}"),
        replace(
            copied,
            unit=TRAINED,
            batch=count,
            form=(
                f"{moved / 1e6:.0f} MB of bytes an input at the measured {speed:.2f} TB/s of a copy"
            ),
        ),
        replace(step, form=f"{3 * operations * trained * K / 1e9:.0f} GFLOP an input {words}"),
    ]


def training_bytes(seen: Sequence[tuple[Any, torch.Size, torch.Size]], frames: int) -> float:
    """Bytes that the convolutional layers of one member move in training, for a frame of one input.

    In bfloat16, with N outputs, M inputs and Z spikes after the pool: forward, the convolution
    reads M and writes N, batch normalisation reads N, and the neurons read N and write Z. Backward,
    the neurons read N and Z and write N, batch normalisation reads 2 N and writes N, and the
    convolution reads 2 N and M and writes M, but for the first layer, which passes no gradient on.
    """
    total, last = 0.0, len(seen) - 1
    for index, (one, given, out) in enumerate(seen):
        if one.affine is None:
            continue  # a product: few bytes
        inputs, outputs = float(np.prod(given)), float(np.prod(out))
        spikes = float(np.prod(seen[index + 1][1])) if index < last else outputs
        total += (
            10 * outputs
            + 3 * inputs
            + 2 * min(spikes, outputs)
            - (outputs + inputs if index == 0 else 0)
        )
    return 2 * total / frames
