"""Modules that give a centre and a scale: scores become Numbers, and engines stop computing where
an IntervalStop stops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import agreestop as ag


class RunningMean(torch.nn.Module):
    """The mean of what was seen so far, and its standard error."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.tensor(bias))

    def forward(self, x_t: Any, state: Any) -> Any:
        total, count = (torch.zeros(len(x_t)), torch.zeros(len(x_t))) if state is None else state
        total, count = total + x_t[:, 0], count + 1
        return torch.stack([total / count + self.bias, count**-0.5], dim=1), (total, count)


@pytest.mark.parametrize("output", ["numbers", "ends"])
def test_an_engine_stops_where_the_intervals_of_its_numbers_are_narrow(output: str) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=300)
    x = (truth[:, None] + rng.normal(size=(300, 30)))[:, :, None].astype(np.float32)

    def ends(module: Any, x_t: Any, state: Any) -> Any:
        pair, after = module(x_t, state)
        return torch.stack([pair[:, 0] - pair[:, 1], pair[:, 0] + pair[:, 1]], dim=1), after

    engine = ag.adapters.from_module(
        [RunningMean(-0.1), RunningMean(0.1)],
        output=output,
        step=ends if output == "ends" else None,
    )
    numbers = engine.numbers(x[:150], truth[:150])
    assert isinstance(numbers, ag.Numbers) and numbers.has_ends == (output == "ends")
    rule = ag.IntervalStop(0.9, max_width=1.5).calibrate(numbers)
    run = engine.decide(rule, x[150:])
    expected = rule.decide(engine.numbers(x[150:]))
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    assert run.decisions.lower is not None and expected.lower is not None
    np.testing.assert_allclose(run.decisions.lower, expected.lower, rtol=1e-5, atol=1e-6)
    assert run.computed.mean() < 30 and ag.evaluate(run.decisions, truth[150:]).coverage > 0.85
    session = engine.live(rule)
    found = next(one for one in (session.push(frame=frame) for frame in x[150]) if one is not None)
    assert found.index == expected.stop_index[0]
    with pytest.raises(ag.InputError, match="call numbers"):
        engine.score(x, truth)
    with pytest.raises(ag.InputError, match=r"calibrated"):
        ag.adapters.from_module([RunningMean()], output=output).decide(rule, x[150:])
