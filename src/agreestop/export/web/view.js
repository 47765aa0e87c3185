/* What one sees: the camera, the members' agreement, and small charts. Nothing here decides anything. */

const byId = (id) => document.getElementById(id);
const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/* A context of a canvas whose pixels are those of the screen, cleared, in CSS units. */
function beginDrawing(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = globalThis.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/* Events of every cell add up to a shape, and the newest stand out: ON is blue, OFF is orange. Grey is what came after the answer. */
class CameraView {
  constructor(canvas, shape) {
    this.canvas = canvas;
    this.polarities = shape.length === 3 && shape[0] === 2 ? 2 : 1;
    const cells = shape.reduce((product, size) => product * size, 1) / this.polarities;
    this.width = shape.length > 1 ? shape[shape.length - 1] : Math.ceil(Math.sqrt(cells));
    this.height = Math.ceil(cells / this.width);
    this.cells = cells;
    this.clear();
  }

  clear() {
    this.trace = new Float32Array(this.cells * this.polarities);
    this.sum = new Float32Array(this.cells * this.polarities);
    this.later = new Float32Array(this.cells);
  }

  add(events) {
    this.trace = this.trace.map((value) => 0.72 * value);
    this.sum = this.sum.map((value) => 0.985 * value);
    for (const event of events) {
      this.trace[event] = 1;
      this.sum[event] += 1;
    }
  }

  /* The events of the steps that nobody computed. */
  addLater(steps) {
    for (const events of steps) for (const event of events) this.later[event % this.cells] += 1;
  }

  draw() {
    const { context, width, height } = beginDrawing(this.canvas);
    const [x, y] = [width / this.width, height / this.height];
    const colours = [colour("accent"), colour("other")];
    const fill = (cell, style, shade) => {
      if (shade < 0.05) return;
      context.globalAlpha = shade;
      context.fillStyle = style;
      context.fillRect((cell % this.width) * x + 0.5, Math.floor(cell / this.width) * y + 0.5, x - 1, y - 1);
    };
    const largest = (values) => values.reduce((most, value) => Math.max(most, value), 3);
    const [most, mostLater, grey] = [largest(this.sum), largest(this.later), colour("control")];
    this.later.forEach((value, cell) => fill(cell, grey, 0.9 * (value / mostLater) ** 1.5));
    this.trace.forEach((newest, index) => fill(index % this.cells, colours[Math.floor(index / this.cells)], Math.max(newest, (0.75 * this.sum[index]) / most)));
    context.globalAlpha = 1;
  }
}

const SVG = "http://www.w3.org/2000/svg";

function shape(parent, name, attributes, text = null) {
  const element = parent.appendChild(document.createElementNS(SVG, name));
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

/* One chart of all members: a column for each class, a token for each member, and a bracket below the classes that are still possible. A token
 * stands in the column of the class that its member believes in most, as high as it believes in it. A bar behind is what all believe together. */
class AgreementView {
  constructor(parent, names, count) {
    const width = Math.min(Math.max(parent.clientWidth, 320), 640); // so that letters have their own size on a phone too
    Object.assign(this, { names, count, width, top: 16, bottom: 270, height: 322, left: 40 });
    this.column = (this.width - this.left) / names.length;
    this.radius = Math.min(11, Math.max(8.5, (this.column + 12) / 6.4)); // so that its number can be read
    const step = 2.1 * this.radius;
    const row = Math.min(3, Math.max(1, Math.floor((this.column + 12) / step)));
    this.beside = [[0], [-step / 2, step / 2], [0, -step, step]][row - 1]; // where a token may stand in its column
    this.svg = shape(parent, "svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "img" });
    for (const share of [0, 0.5, 1]) {
      const y = this.y(share);
      shape(this.svg, "line", { class: "axis", x1: this.left, x2: this.width, y1: y, y2: y });
      shape(this.svg, "text", { x: this.left - 6, y: y + 4, "text-anchor": "end" }, percent(share));
    }
    const letters = Math.max(1, Math.floor(this.column / 8));
    this.classes = names.map((name, label) => {
      const x = this.left + label * this.column;
      const bar = shape(this.svg, "rect", { class: "pooled", x: x + 2, width: this.column - 4, rx: 3 });
      const short = name.length > letters ? `${name.slice(0, Math.max(letters - 1, 1))}…` : name;
      const text = shape(this.svg, "text", { class: "name", x: x + this.column / 2, y: this.bottom + 22, "text-anchor": "middle" }, short);
      if (short !== name) shape(text, "title", {}, name);
      const bracket = shape(this.svg, "rect", { class: "bracket", x, width: this.column, y: this.bottom + 32, height: 5 });
      return { bar, text, bracket };
    });
    this.tokens = Array.from({ length: count }, (_, k) => {
      const token = shape(this.svg, "g", { class: "token" });
      shape(token, "circle", { r: this.radius });
      shape(token, "text", { y: 0.35 * this.radius, style: `font-size: ${Math.min(12, 1.2 * this.radius)}px` }, String(k + 1));
      return token;
    });
    this.draw(Array(count).fill(null), names.map(() => 1 / names.length), [...names.keys()]); // prettier-ignore
  }

  y(share) {
    return this.bottom - share * (this.bottom - this.top);
  }

  /* posteriors: for each member its posterior, or null before it has joined. */
  draw(posteriors, pooled, set) {
    this.classes.forEach(({ bar, text, bracket }, label) => {
      bar.setAttribute("y", this.y(pooled[label]));
      bar.setAttribute("height", this.bottom - this.y(pooled[label]));
      text.classList.toggle("in", set.includes(label));
      bracket.style.opacity = set.includes(label) ? 1 : 0;
    });
    const taken = this.names.map(() => []); // where the tokens of each column stand
    const said = [];
    this.tokens.forEach((token, k) => {
      const posterior = posteriors[k];
      token.classList.toggle("waiting", !posterior);
      const best = posterior ? Math.max(...posterior) : 0;
      const even = !posterior || best - Math.min(...posterior) < 1e-9;
      const label = even ? null : posterior.indexOf(best);
      let [x, height] = [this.left + ((k + 0.5) * (this.width - this.left)) / this.count, this.y(even ? 1 / this.names.length : best)];
      if (label !== null) {
        const free = (shift) => !taken[label].some(([other, at]) => Math.hypot(other - shift, at - height) < 1.9 * this.radius);
        let shift = this.beside.find(free);
        while (shift === undefined) {
          height += 2 * this.radius; // the place is taken: below the others
          shift = this.beside.find(free);
        }
        taken[label].push([shift, height]);
        x = this.left + (label + 0.5) * this.column + shift;
        said.push(`${k + 1} believes most in ${this.names[label]}, ${percent(best)}`);
      }
      height = Math.min(height, this.bottom - this.radius);
      token.style.transform = `translate(${x.toFixed(1)}px, ${height.toFixed(1)}px)`;
    });
    const open = `${set.length} of ${this.names.length} classes are possible`;
    this.svg.setAttribute("aria-label", `${said.length ? `Network ${said.join("; ")}` : "No network believes in a class yet"}. ${open}.`);
  }
}

/* A chart of lines [{values, kind}] over their index, from 0 to `length`, with one dashed limit, a shaded band, and marks at some indices. */
function drawChart(parent, { lines, length, low, high, limit = null, band = null, limitName = "", marks = [], label, unit = (value) => value }) {
  const [width, height, left, right, top, bottom] = [320, 104, 34, 6, 16, 16];
  parent.replaceChildren();
  const svg = shape(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (index) => left + (index / Math.max(length, 1)) * (width - left - right);
  const y = (value) => top + (1 - (Math.min(Math.max(value, low), high) - low) / (high - low)) * (height - top - bottom);
  if (band) shape(svg, "rect", { class: "band", x: left, width: width - left - right, y: y(band[1]), height: y(band[0]) - y(band[1]) });
  for (const value of [low, high]) {
    shape(svg, "line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) });
    shape(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, unit(value));
  }
  for (const mark of marks) shape(svg, "line", { class: "mark", x1: x(mark), x2: x(mark), y1: top, y2: height - bottom });
  const limited = limit !== null && Number.isFinite(limit);
  if (limited) shape(svg, "line", { class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit) });
  for (const { values, kind = "", first = 1 } of lines) {
    if (values.length === 1) shape(svg, "circle", { class: `point ${kind}`, cx: x(first), cy: y(values[0]), r: 2.5 });
    else if (values.length) shape(svg, "polyline", { class: `line ${kind}`, points: polyline(values, (index) => x(index + first), y) });
  }
  if (limited) shape(svg, "text", { x: width - right, y: 10, "text-anchor": "end" }, `- - ${limitName}`);
  shape(svg, "text", { x: left, y: height - 2 }, "0");
  shape(svg, "text", { x: width - right, y: height - 2, "text-anchor": "end" }, String(length));
}

/* The points of a line, no more than a chart has pixels; a single point is a line of no length. */
function polyline(values, x, y) {
  const stride = Math.max(1, Math.floor(values.length / 400));
  const points = Array.from(values, (value, index) => [index, value]).filter(([index]) => index % stride === 0 || index === values.length - 1);
  const path = points.map(([index, value]) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return points.length === 1 ? `${path} ${path}` : path;
}

/* The risk of the input over time at the left, the calibration examples at the right, and the threshold through both.
 *
 * examples   for each calibration example the threshold above which its answer is wrong, sorted; null where no threshold makes it wrong
 * levels     log-risks of the input so far
 * limit      the threshold
 * onDrag     called with the share of the height (0 is the bottom) to which the threshold is dragged */
class CalibrationView {
  constructor(parent, onDrag) {
    Object.assign(this, { parent, height: 230, left: 50, top: 26, bottom: 200 });
    const drag = (event) => {
      if (!event.buttons) return;
      const box = this.svg.getBoundingClientRect();
      const height = ((event.clientY - box.top) / box.height) * this.height;
      onDrag((this.bottom - height) / (this.bottom - this.top));
    };
    parent.addEventListener("pointerdown", (event) => {
      if (!event.target.closest(".handle")) return;
      parent.setPointerCapture(event.pointerId);
      parent.addEventListener("pointermove", drag);
    });
    const hold = (event) => event.target.closest(".handle") && event.preventDefault(); // the page must not scroll meanwhile
    parent.addEventListener("touchstart", hold, { passive: false });
    for (const name of ["pointerup", "pointercancel"]) parent.addEventListener(name, () => parent.removeEventListener("pointermove", drag));
  }

  draw({ examples, levels, limit, horizon, low, what }) {
    const { parent, left, top, bottom } = this;
    const width = Math.min(Math.max(parent.clientWidth, 320), 1000);
    const [middle, right, wide] = [left + (width - left) * 0.45, width - 4, width > 700];
    parent.replaceChildren();
    const missed = examples.filter((value) => value !== null && value < limit).length;
    const label = `${what} over time, beside ${examples.length} calibration examples, ${missed} of them missed`;
    const svg = (this.svg = shape(parent, "svg", { viewBox: `0 0 ${width} ${this.height}`, role: "img", "aria-label": label }));
    const y = (value) => bottom - (1 - Math.max(Math.min(value, 0), low) / low) * (bottom - top);
    for (let power = 0; power * Math.LN10 <= -low; power++) {
      const height = y(-power * Math.LN10);
      shape(svg, "line", { class: "axis", x1: left, x2: right, y1: height, y2: height });
      shape(svg, "text", { x: left - 6, y: height + 4, "text-anchor": "end" }, percent(10 ** -power, Math.max(0, power - 2)));
    }
    shape(svg, "line", { class: "axis", x1: middle, x2: middle, y1: top - 8, y2: bottom });
    shape(svg, "text", { x: left, y: 12 }, wide ? "this input: its risk, step by step" : "this input");
    shape(svg, "text", { x: middle + 10, y: 12 }, wide ? `${examples.length} calibration examples: a threshold above a dot answers that example wrongly` : "calibration examples");
    shape(svg, "text", { x: left, y: bottom + 18 }, "step 0");
    shape(svg, "text", { x: middle - 8, y: bottom + 18, "text-anchor": "end" }, `step ${horizon}`);
    const x = (index) => left + ((index + 1) / horizon) * (middle - left - 8);
    const points = polyline(levels, x, y);
    if (points) shape(svg, "polyline", { class: "line", points });
    const wrong = examples.filter((value) => value !== null);
    const space = (right - middle - 24) / Math.max(wrong.length, 1);
    wrong.forEach((value, index) => {
      const radius = Math.max(2.5, Math.min(5, space / 2));
      shape(svg, "circle", { class: value < limit ? "dot missed" : "dot", cx: middle + 14 + index * space, cy: y(value), r: radius });
    });
    const never = examples.length - wrong.length;
    if (never) shape(svg, "text", { x: right, y: bottom + 18, "text-anchor": "end" }, wide ? `and ${never} that no threshold makes wrong` : `+ ${never} never wrong`);
    const line = y(Number.isFinite(limit) ? limit : low);
    const handle = shape(svg, "g", { class: "handle" });
    shape(handle, "rect", { x: left, width: right - left, y: line - 15, height: 30, opacity: 0 });
    shape(handle, "line", { class: "threshold", x1: left, x2: right, y1: line, y2: line });
    shape(handle, "circle", { class: "grip", cx: middle, cy: line, r: 7 });
    const above = line > bottom - 18; // the label stands where there are no dots
    shape(handle, "text", { x: right, y: line + (above ? -7 : 15), "text-anchor": "end" }, !Number.isFinite(limit) ? "nothing stops" : wide ? "it stops below this line" : "stops below");
    return missed;
  }
}

/* Wilson's interval of a share, at 95 %. */
function wilson(hits, n) {
  const z = 1.959963984540054;
  const middle = (hits + z ** 2 / 2) / (n + z ** 2);
  const half = (z / (n + z ** 2)) * Math.sqrt((hits * (n - hits)) / n + z ** 2 / 4);
  return [middle - half, middle + half];
}
