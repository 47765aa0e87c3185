# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Neurons of the event-driven engine, each a fixed sequence of roundings.

SRM:          i_t = b i_{t-1} + x_t,   m_t = a m_{t-1} + i_t,
              z_t = 1 where c m_t - θ r h_{t-1} ≥ θ,   h_t = r h_{t-1} + z_t
integrators:  i_t = b i_{t-1} + x_t,   v_t = a v_{t-1} + c i_t + l,
              z_t = 1 where v_t ≥ θ,   then v_t ← ρ or v_t - ρ where z_t = 1
"""

from . import intrinsics as simd
from .event_format import NARROW, SRM, SUBTRACTS
from .numba_runtime import jit_template


@jit_template
def load_constants(like, constants, lane, all_lanes, apart):
    """The rows of `event_format.CONSTANTS` from a lane on.

    `like` has the number of lanes; each 16 are `apart` from those before.
    """
    return (
        simd.load_apart(like, constants, lane, apart),
        simd.load_apart(like, constants, lane + all_lanes, apart),
        simd.load_apart(like, constants, lane + 2 * all_lanes, apart),
        simd.load_apart(like, constants, lane + 3 * all_lanes, apart),
        simd.load_apart(like, constants, lane + 4 * all_lanes, apart),
        simd.load_apart(like, constants, lane + 5 * all_lanes, apart),
        simd.load_apart(like, constants, lane + 6 * all_lanes, apart),
        simd.load_apart(like, constants, lane + 7 * all_lanes, apart),
    )  # fmt: skip


@jit_template
def integrate_srm(current, a, b, gain, reset, synapse, membrane, last):
    """i_t, m_t and u_t of SRM neurons, of one as numbers or of many as lanes; reset is -θ r."""
    synapse = simd.fma(synapse, b, current)
    membrane = simd.fma(membrane, a, synapse)
    return synapse, membrane, simd.fma(last, reset, simd.multiply(membrane, gain))


@jit_template
def step_srm(current, loaded, synapse, membrane, last):
    """One step of SRM neurons; returns the new state and the lanes that fired."""
    scale, bias, a, b, r, threshold, gain, reset = loaded
    current = simd.fma(current, scale, bias)
    synapse, membrane, potential = integrate_srm(
        current, a, b, gain, reset, synapse, membrane, last
    )
    fired = simd.reached(potential, threshold)
    return synapse, membrane, simd.fma(last, r, simd.ones_where(fired)), fired


@jit_template
def step_integrator(current, loaded, synapse, membrane, subtracts):
    """One step of integrators; returns the new state and the lanes that fired."""
    scale, bias, a, b, r, threshold, gain, reset = loaded
    synapse = simd.fma(synapse, b, simd.fma(current, scale, bias))
    membrane = simd.fma(membrane, a, simd.fma(synapse, gain, r))
    fired = simd.reached(membrane, threshold)
    return (
        synapse,
        simd.where(fired, simd.subtract(membrane, reset) if subtracts else reset, membrane),
        fired,
    )


@jit_template
def recur(
    like,
    currents,
    current_at,
    lanes,
    steps,
    state,
    at,
    constants,
    lane,
    all_lanes,
    neuron,
    spikes,
    spike_at,
):
    """Run the recursion over some steps with the state in registers; `like` has the
    number of lanes.
    """
    loaded = load_constants(like, constants, lane, all_lanes, NARROW)
    synapse, membrane = simd.load_like(like, state, at), simd.load_like(like, state, at + lanes)
    # the refractory state, or the last spikes of an integrator
    last = simd.load_like(like, state, at + 2 * lanes)
    if neuron == SRM:
        for t in range(steps):
            current = simd.load_like(like, currents, current_at + t * lanes)
            synapse, membrane, last, fired = step_srm(current, loaded, synapse, membrane, last)
            simd.store(spikes, spike_at + 4 * t, fired)
    else:
        for t in range(steps):
            current = simd.load_like(like, currents, current_at + t * lanes)
            synapse, membrane, fired = step_integrator(
                current, loaded, synapse, membrane, neuron == SUBTRACTS
            )
            last = simd.ones_where(fired)
            simd.store(spikes, spike_at + 4 * t, fired)
    simd.store(state, at, synapse)
    simd.store(state, at + lanes, membrane)
    simd.store(state, at + 2 * lanes, last)
