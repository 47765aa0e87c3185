/* The ensemble: events in, read-out spikes out, with the roundings of the event-driven engine of Python.
 *
 *     x_t = scale · Σ_{events e at t} W[e, :] + bias
 *     i_t = b i_{t-1} + x_t,   m_t = a m_{t-1} + i_t,   z_t = 1 where c m_t + q h_{t-1} ≥ θ,   h_t = r h_{t-1} + z_t
 *
 * Every sum adds weight rows in the order of their indices, in float32, and every multiply-add is rounded once. So the spikes are equal to
 * those of Python bit by bit. A layer: {weights (rows × outputs), scale, bias (outputs), constants [a, b, r, θ, c, q], rows, outputs}.
 */

const scratch = new Float64Array(1);
const words = new Uint32Array(scratch.buffer); // the lower word first: all machines with a browser are little-endian

/* a · b + c of float32 numbers, rounded once to float32.
 *
 * The product is exact in double. The sum is rounded to odd: where it is not exact and its last bit is 0, it moves to the neighbour on the
 * other side of the exact value, whose last bit is 1. Such a number is never half way between two float32, so it rounds as the exact one. */
function fma(a, b, c) {
  const product = a * b;
  const sum = product + c;
  const part = sum - product;
  const error = product - (sum - part) + (c - part); // of the sum, exactly (Knuth's TwoSum)
  if (error !== 0) {
    scratch[0] = sum;
    if ((words[0] & 1) === 0) {
      if (error > 0 === sum > 0) words[0] += 1;
      else if (words[0] > 0) words[0] -= 1;
      else {
        words[0] = 0xffffffff;
        words[1] -= 1;
      }
      return Math.fround(scratch[0]);
    }
  }
  return Math.fround(sum);
}

/* One member, with its state. `step` takes the flat indices of the events of a step, in increasing order. */
class Member {
  constructor(layers, classes) {
    this.layers = layers;
    this.states = layers.map(({ outputs }) => ({
      current: new Float32Array(outputs),
      synapse: new Float32Array(outputs),
      membrane: new Float32Array(outputs),
      refractory: new Float32Array(outputs),
    }));
    this.counts = new Int32Array(classes);
    this.spikes = []; // of the read-out, in the last step
  }

  step(events) {
    let received = events;
    this.layers.forEach((layer, index) => {
      received = stepLayer(layer, this.states[index], received);
    });
    for (const label of received) this.counts[label] += 1;
    this.spikes = received;
  }
}

/* One step of a layer; the indices of the neurons that spike. Storing in a Float32Array rounds. */
function stepLayer(layer, { current, synapse, membrane, refractory }, events) {
  const { weights, scale, bias, outputs } = layer;
  const [a, b, r, threshold, gain, reset] = layer.constants;
  current.fill(0);
  for (const event of events) {
    const row = event * outputs;
    for (let j = 0; j < outputs; j++) current[j] += weights[row + j];
  }
  const fired = [];
  for (let j = 0; j < outputs; j++) {
    const i = fma(synapse[j], b, fma(current[j], scale[j], bias[j]));
    const m = fma(membrane[j], a, i);
    const spike = fma(refractory[j], reset, Math.fround(m * gain)) >= threshold;
    synapse[j] = i;
    membrane[j] = m;
    refractory[j] = fma(refractory[j], r, spike ? 1 : 0);
    if (spike) fired.push(j);
  }
  return fired;
}

/* An ensemble that watches one input under a rule. A member that joins late first catches up on the steps that it has missed. */
class Watch {
  constructor(members, rule, threshold = null) {
    this.members = members.map((layers) => new Member(layers, rule.classes));
    this.rule = rule;
    this.judgement = rule.begin(threshold);
    this.time = 0;
    this.look = 0;
    this.joined = rule.members[0];
    this.history = [];
    this.last = null; // what the rule saw at its last look
    this.decision = null;
  }

  /* Push the events of the next step; the decision once there is one, else null. */
  push(events) {
    if (this.decision) return this.decision;
    this.history.push(events);
    this.time += 1;
    for (let k = 0; k < this.joined; k++) this.members[k].step(events);
    while (this.rule.times[this.look] === this.time) {
      const members = this.rule.members[this.look];
      this.last = this.judgement.judge(this.look, this.members.slice(0, members).map((member) => member.counts));
      if (this.last.answer) {
        this.decision = { time: this.time, classes: this.last.answer, members, firstRisk: this.judgement.firstRisk };
        return this.decision;
      }
      this.look += 1;
      for (; this.joined < this.rule.members[this.look]; this.joined++) {
        for (const missed of this.history) this.members[this.joined].step(missed);
      }
    }
    return null;
  }
}
