/* The event camera of Python (`events/camera/simulator.py`) in front of a drawn digit, and inputs that drift.
 *
 *     L_t(u) = log(dark + I_t(u)),     d_t(u) = L_t(u) - m_{t-1}(u) + leak θ_on(u)
 *     ON  at step t:  d_t(u) ≥ θ_on(u);      OFF at step t:  d_t(u) ≤ -θ_off(u);      at random at the rate of the shot noise
 *     m_t(u) = L_t(u) where pixel u fires or rests,  m_{t-1}(u) - leak θ_on(u) elsewhere
 *
 * The model, the sensor and the scene are those of the training data. The random numbers are not, so events are not equal bit by bit.
 */

/* Uniform numbers in [0, 1) from a seed: the upper 32 bits of a 32-bit SplitMix. */
function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return ((z ^ (z >>> 16)) >>> 0) / 2 ** 32;
  };
}

const between = (range, share) => (Array.isArray(range) ? range[0] + (range[1] - range[0]) * share : range);

/* The shift (down, right) of the image at the times 0..T: a circle that is entered from rest. `speed` 2 is twice as fast. */
function circularPath(scene, steps, random, speed) {
  const angle = between(scene.angle, random());
  const radius = between(scene.radius, random());
  const period = between(scene.period, random()) / speed;
  const start = between(scene.slow_start, random());
  return Array.from({ length: steps + 1 }, (_, time) => {
    const way = time < start ? time ** 2 / (2 * start) : time - start / 2;
    const alpha = 2 * Math.PI * (angle + way / period);
    return [radius * Math.sin(alpha), radius * Math.cos(alpha)];
  });
}

/* Weights of the points of an image for each pixel along one axis: bilinear interpolation. */
function hatWeights(pixels, points, shift, scale) {
  return Array.from({ length: pixels }, (_, pixel) => {
    const position = (pixel - (pixels - 1) / 2 - shift) / scale + (points - 1) / 2;
    return Array.from({ length: points }, (_, point) => Math.max(0, 1 - Math.abs(position - point)));
  });
}

/* The logarithm of the light on each pixel, of an image (side × side) that is shifted. */
function lightLevels(image, side, [down, right], scene, dark) {
  const [height, width] = scene.size;
  const rows = hatWeights(height, side, down, scene.scale);
  const columns = hatWeights(width, side, right, scene.scale);
  const levels = new Float64Array(height * width);
  for (let y = 0; y < height; y++) {
    const line = Array.from({ length: side }, (_, k) => rows[y].reduce((sum, weight, j) => sum + weight * image[j * side + k], 0));
    for (let x = 0; x < width; x++) {
      const light = columns[x].reduce((sum, weight, k) => sum + weight * line[k], 0);
      levels[y * width + x] = Math.log(light + dark);
    }
  }
  return levels;
}

/* θ of every pixel, ON before OFF: one pattern for the camera. */
function thresholds(sensor, pixels) {
  const random = uniforms(1);
  const normal = () => Math.sqrt(-2 * Math.log1p(-random())) * Math.cos(2 * Math.PI * random());
  return [0, 1].map(() =>
    Float64Array.from({ length: pixels }, () => Math.max(sensor.contrast + sensor.mismatch * normal(), 0.1 * sensor.contrast)),
  );
}

/* The events of each step, as flat indices in increasing order: ON pixels first, then OFF pixels. */
function film(image, side, scene, sensor, steps, seed, speed = 1) {
  const random = uniforms(seed);
  const pixels = scene.size[0] * scene.size[1];
  const path = circularPath(scene, steps, random, speed);
  const [on, off] = thresholds(sensor, pixels);
  const memory = lightLevels(image, side, path[0], scene, sensor.dark).map((level, u) => level - (sensor.leak ? random() * on[u] : 0));
  const rest = new Int32Array(pixels);
  const noise = -Math.expm1(-2 * sensor.shot_noise) / 2;
  return path.slice(1).map((shift) => {
    const levels = lightLevels(image, side, shift, scene, sensor.dark);
    const fired = [[], []];
    for (let u = 0; u < pixels; u++) {
      memory[u] -= sensor.leak * on[u];
      const change = levels[u] - memory[u];
      const chance = random();
      if (rest[u] > 0) {
        rest[u] -= 1;
        memory[u] = levels[u];
        continue;
      }
      let polarity = change >= on[u] ? 0 : change <= -off[u] ? 1 : -1;
      if (polarity < 0 && chance < noise) polarity = 0;
      else if (polarity < 0 && chance >= 1 - noise) polarity = 1;
      if (polarity < 0) continue;
      fired[polarity].push(u + polarity * pixels);
      memory[u] = levels[u];
      rest[u] = sensor.refractory;
    }
    return [...fired[0], ...fired[1]];
  });
}

const NOISE = 0.02; // events per cell and step at full strength

/* How inputs may drift, with a strength from 0 to 1. `events` changes recorded events; `sensor` and `speed` change the camera. */
const DRIFTS = {
  noise: {
    name: "noise",
    describe: (strength) => `every cell fires at random, ${(100 * NOISE * strength).toFixed(1)} % a step`,
    events: (steps, strength, cells, random) =>
      steps.map((events) => withCells(events, cells, (cell, fired) => fired || random() < NOISE * strength)),
    sensor: (sensor, strength) => ({ ...sensor, shot_noise: sensor.shot_noise + NOISE * strength }),
    speed: () => 1,
  },
  speed: {
    name: "speed",
    describe: (strength) => `everything moves ${(1 + 3 * strength).toFixed(1)} times as fast`,
    events: (steps, strength) => faster(steps, 1 + 3 * strength),
    sensor: (sensor) => sensor,
    speed: (strength) => 1 + 3 * strength,
  },
  sensor: {
    name: "another sensor",
    describe: (strength) => `a sensor that misses ${Math.round(60 * strength)} % of the events, with ${Math.round(12 * strength)} % dead columns`,
    events: (steps, strength, cells, random, width) => {
      const dead = deadColumns(width, strength);
      return steps.map((events) => events.filter((event) => !dead.has(event % width) && random() >= 0.6 * strength));
    },
    sensor: (sensor, strength) => ({ ...sensor, contrast: sensor.contrast * (1 + 1.5 * strength) }),
    speed: () => 1,
  },
};

function withCells(events, cells, keep) {
  const fired = new Set(events);
  const found = [];
  for (let cell = 0; cell < cells; cell++) if (keep(cell, fired.has(cell))) found.push(cell);
  return found;
}

/* Recorded steps played faster: each step shows all events of the time that passes in it; after the end nothing moves. */
function faster(steps, speed) {
  return steps.map((_, step) => {
    const passed = steps.slice(Math.floor(step * speed), Math.max(Math.floor((step + 1) * speed), Math.floor(step * speed) + 1));
    return [...new Set(passed.flat())].sort((one, other) => one - other);
  });
}

function deadColumns(width, strength) {
  const random = uniforms(7);
  const order = Array.from({ length: width }, (_, column) => [random(), column]).sort((one, other) => one[0] - other[0]);
  return new Set(order.slice(0, Math.round(0.12 * strength * width)).map(([, column]) => column));
}

/* A drawing (side × side numbers from 0 to 1) as an image of `points` × `points`: centred, as large as the digits of the training data, which
 * fill this share of their image, and each point is the mean of a block of the drawing. */
function asImage(drawing, side, points, filled) {
  const inked = [...drawing.keys()].filter((index) => drawing[index] > 0.1);
  if (!inked.length) return null;
  const ys = inked.map((index) => Math.floor(index / side));
  const xs = inked.map((index) => index % side);
  const [top, bottom, left, right] = [Math.min(...ys), Math.max(...ys), Math.min(...xs), Math.max(...xs)];
  const size = Math.max(bottom - top + 1, right - left + 1) / filled;
  const fine = 8; // samples of a point along each axis
  const at = (y, x) => (y < 0 || y >= side || x < 0 || x >= side ? 0 : drawing[y * side + x]);
  return Float64Array.from({ length: points * points }, (_, index) => {
    const [row, column] = [Math.floor(index / points), index % points];
    let sum = 0;
    for (let j = 0; j < fine; j++)
      for (let k = 0; k < fine; k++) {
        const y = (top + bottom) / 2 + ((row * fine + j + 0.5) / (points * fine) - 0.5) * size;
        const x = (left + right) / 2 + ((column * fine + k + 0.5) / (points * fine) - 0.5) * size;
        sum += at(Math.round(y), Math.round(x));
      }
    return sum / fine ** 2;
  });
}
