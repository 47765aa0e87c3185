/* What one sees: canvases of events and spikes, bars, and small charts. Nothing here decides anything. */

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

/* Recent events of every cell: an event fades over the next steps. ON is drawn in the accent colour, OFF in the colour of soft text. */
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
  }

  add(events) {
    this.trace = this.trace.map((value) => 0.72 * value);
    for (const event of events) this.trace[event] = 1;
  }

  draw() {
    const { context, width, height } = beginDrawing(this.canvas);
    const [x, y] = [width / this.width, height / this.height];
    const colours = [colour("accent"), colour("soft")];
    for (let index = 0; index < this.trace.length; index++) {
      if (this.trace[index] < 0.05) continue;
      const cell = index % this.cells;
      context.globalAlpha = this.trace[index];
      context.fillStyle = colours[Math.floor(index / this.cells)];
      context.fillRect((cell % this.width) * x + 0.5, Math.floor(cell / this.width) * y + 0.5, x - 1, y - 1);
    }
    context.globalAlpha = 1;
  }
}

/* One member: its read-out spikes over time, a row for each class, and its posterior as bars. */
class MemberView {
  constructor(parent, number, names) {
    const caption = parent.appendChild(document.createElement("div"));
    caption.innerHTML = `<p class="soft">member ${number}</p>`;
    this.canvas = caption.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.number = number;
    this.names = names;
    this.clear();
  }

  clear() {
    this.spikes = [];
    this.posterior = this.names.map(() => 1 / this.names.length);
    this.joined = false;
  }

  draw(horizon, set) {
    const { context, width, height } = beginDrawing(this.canvas);
    const rows = this.names.length;
    const line = height / rows;
    const left = Math.max(...this.names.map((name) => name.length)) <= 2 ? 16 : 0;
    const middle = left + 0.6 * (width - left);
    const [ink, soft, faint, accent, rule] = ["ink", "soft", "faint", "accent", "rule"].map(colour);
    context.font = `${Math.min(10, line)}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.fillStyle = rule;
    context.fillRect(middle + 5, 0, 1, height);
    const best = Math.max(...this.posterior);
    for (let label = 0; label < rows; label++) {
      const inside = set.includes(label);
      context.fillStyle = inside ? ink : soft;
      if (left) context.fillText(this.names[label], 0, (label + 0.5) * line);
      const share = this.joined ? this.posterior[label] : 0;
      context.fillStyle = this.joined && share === best && inside ? accent : faint;
      context.fillRect(middle + 6, label * line + 0.2 * line, share * (width - middle - 6), 0.6 * line);
    }
    context.fillStyle = ink;
    const column = (middle - left) / horizon;
    for (const [time, label] of this.spikes) {
      context.fillRect(left + (time - 1) * column, label * line + 0.15 * line, Math.max(1.4, 0.8 * column), 0.7 * line);
    }
    const likely = this.posterior.indexOf(best);
    const words = this.joined ? `believes most in ${this.names[likely]}, ${percent(best)}` : "has not joined";
    this.canvas.setAttribute("aria-label", `Member ${this.number} ${words}, after ${this.spikes.length} read-out spikes.`);
  }
}

/* The pooled posterior as bars; classes that are still possible are in the accent colour. */
class PooledView {
  constructor(list, names) {
    this.rows = names.map((name) => {
      const row = list.appendChild(document.createElement("li"));
      row.innerHTML = "<span></span><div></div><span></span>";
      row.firstChild.textContent = name;
      return row;
    });
  }

  draw(posterior, set) {
    this.rows.forEach((row, label) => {
      row.className = set.includes(label) ? "in" : "";
      row.children[1].style.width = `${100 * posterior[label]}%`;
      row.children[2].textContent = percent(posterior[label]);
    });
  }
}

const SVG = "http://www.w3.org/2000/svg";

function shape(parent, name, attributes, text = null) {
  const element = parent.appendChild(document.createElementNS(SVG, name));
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

/* A chart of lines [{values, kind}] over their index, from 0 to `length`, with one dashed limit and marks at some indices. */
function drawChart(parent, { lines, length, low, high, limit = null, limitName = "", marks = [], label, unit = (value) => value }) {
  const [width, height, left, right, top, bottom] = [320, 104, 34, 6, 16, 16];
  parent.replaceChildren();
  const svg = shape(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const x = (index) => left + (index / Math.max(length, 1)) * (width - left - right);
  const y = (value) => top + (1 - (Math.min(Math.max(value, low), high) - low) / (high - low)) * (height - top - bottom);
  for (const value of [low, high]) {
    shape(svg, "line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) });
    shape(svg, "text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, unit(value));
  }
  for (const mark of marks) shape(svg, "line", { class: "mark", x1: x(mark), x2: x(mark), y1: top, y2: height - bottom });
  const limited = limit !== null && Number.isFinite(limit);
  if (limited) shape(svg, "line", { class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit) });
  for (const { values, kind = "", first = 1 } of lines) {
    const stride = Math.max(1, Math.floor(values.length / 400)); // a chart has no more points than it has pixels
    const points = values.map((value, index) => [index, value]).filter(([index]) => index % stride === 0 || index === values.length - 1);
    const path = points.map(([index, value]) => `${x(index + first).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    if (points.length) shape(svg, "polyline", { class: `line ${kind}`, points: points.length === 1 ? `${path} ${path}` : path });
  }
  if (limited) shape(svg, "text", { x: width - right, y: 10, "text-anchor": "end" }, `- - ${limitName}`);
  shape(svg, "text", { x: left, y: height - 2 }, "0");
  shape(svg, "text", { x: width - right, y: height - 2, "text-anchor": "end" }, String(length));
}

/* Wilson's interval of a share, at 95 %. */
function wilson(hits, n) {
  const z = 1.959963984540054;
  const middle = (hits + z ** 2 / 2) / (n + z ** 2);
  const half = (z / (n + z ** 2)) * Math.sqrt((hits * (n - hits)) / n + z ** 2 / 4);
  return [middle - half, middle + half];
}
