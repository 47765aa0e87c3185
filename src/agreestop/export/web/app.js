/* The page: reads the embedded data, lets inputs pass in front of the ensemble, and keeps count. DATA is written by `export/page.py`. */

const ARRAYS = { float32: Float32Array, int8: Int8Array, uint16: Uint16Array };
const RECENT = 50; // answers in the moving coverage

/* A base64 text as a typed array. */
function decode({ type, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  return new ARRAYS[type](bytes.buffer);
}

const members = DATA.members.map((layers) =>
  layers.map((layer) => ({ ...layer, weights: decode(layer.weights), scale: decode(layer.scale), bias: decode(layer.bias) })),
);
const rules = DATA.rules.map((numbers) => new Rule(numbers, DATA.classes.length));
const cells = DATA.shape.reduce((product, size) => product * size, 1);

/* The recorded inputs: for each a list of events for each step. */
const recorded = (() => {
  const [counts, indices] = [decode(DATA.inputs.counts), decode(DATA.inputs.indices)];
  let at = 0;
  return Array.from({ length: DATA.inputs.n }, (_, input) =>
    Array.from({ length: DATA.steps }, (_, step) => {
      const first = at;
      at += counts[input * DATA.steps + step];
      return indices.subarray(first, at);
    }),
  );
})();

/* Decide on one recorded input without showing it. */
function decide(input, rule = rules[0], threshold = null, events = recorded[input]) {
  const watch = new Watch(members, rule, threshold);
  for (const step of events) if (watch.push(step)) break;
  return watch.decision;
}

// ---- the state

const now = {
  rule: rules[0],
  input: -1,
  drawn: false,
  playing: false,
  busy: false,
  timer: 0,
  watch: null,
  events: [],
  levels: [],
  seed: 1,
};
let count; // what is kept of all answers: see `startAgain`

const camera = new CameraView(byId("camera"), DATA.shape);
const memberViews = members.map((_, index) => new MemberView(byId("members"), index + 1, DATA.classes));
const pooledView = new PooledView(byId("pooled"), DATA.classes);
const stillness = matchMedia("(prefers-reduced-motion: reduce)");

function startAgain() {
  const { monitor, adaptive } = now.rule;
  count = { hits: [], times: [], changes: [], since: 0, spent: 0, steps: 0, monitor: new DriftMonitor(monitor), adaptive: null };
  if (byId("adaptive").checked && adaptive) count.adaptive = new AdaptiveRule(adaptive);
  drawCounts();
}

function noteChange() {
  count.since = count.times.length;
  if (count.since && count.changes.at(-1) !== count.since) count.changes.push(count.since);
  drawCounts();
}

const driftNow = () => ({ kind: DRIFTS[byId("drift-kind").value], strength: Number(byId("drift").value) / 100 });

/* The events of a recorded input, with the drift of the moment. */
function eventsOf(input) {
  const { kind, strength } = driftNow();
  return strength ? kind.events(recorded[input], strength, cells, uniforms(now.seed++), camera.width) : recorded[input];
}

// ---- one input

function begin(events, input) {
  clearTimeout(now.timer);
  Object.assign(now, { events, input, drawn: input < 0, levels: [] });
  now.watch = new Watch(members, now.rule, input < 0 || !count.adaptive ? null : count.adaptive.threshold);
  camera.clear();
  for (const view of memberViews) view.clear();
  const label = DATA.inputs.labels && input >= 0 ? `, label ${DATA.classes[DATA.inputs.labels[input]]}` : "";
  byId("which").textContent = input < 0 ? "your drawing" : `input ${input + 1} of ${recorded.length}${label}`;
}

/* Compute one step; the decision once there is one. */
function stepOnce() {
  const { watch } = now;
  const events = now.events[watch.time];
  const before = performance.now();
  const decision = watch.push(events);
  count.spent += performance.now() - before;
  count.steps += 1;
  camera.add(events);
  memberViews.forEach((view, k) => {
    view.joined = k < watch.joined;
    for (const label of view.joined ? watch.members[k].spikes : []) view.spikes.push([watch.time, label]);
    view.posterior = logSoftmax(watch.members[k].counts).map(Math.exp);
  });
  if (watch.last) now.levels[watch.time - 1] = watch.last.level;
  return decision;
}

function drawInput() {
  const { watch, rule } = now;
  const everything = DATA.classes.map((_, label) => label);
  const { set, posterior, limit } = watch.last || { set: everything, posterior: everything.map(() => 1 / everything.length), limit: null };
  camera.draw();
  memberViews.forEach((view) => view.draw(rule.horizon, set));
  pooledView.draw(posterior, set);
  byId("step").textContent = `step ${watch.time} of ${rule.horizon}`;
  byId("elapsed").style.width = `${(100 * watch.time) / rule.horizon}%`;
  byId("set-size").textContent = set.length === 1 ? "1 class left" : `${set.length} classes are possible`;
  drawLevel(rule, watch.last ? watch.last.level : null, limit);
}

/* The risk, confidence or score over time, and the level at which the rule stops. Probabilities have a logarithmic axis. */
function drawLevel(rule, level, limit) {
  const isScore = !["AG_RISK", "AG_CONFIDENCE"].includes(rule.policy);
  const scale = isScore ? 1 : 1 / Math.LN10;
  const values = Array.from(now.levels, (value) => (Number.isFinite(value) ? value * scale : 0));
  const line = Number.isFinite(limit) && limit !== null ? limit * scale : null;
  const shown = line === null ? values : [...values, line];
  const what = isScore ? "Least score" : rule.policy === "AG_CONFIDENCE" ? "Largest confidence" : `Risk that the right class is not among the best ${rule.maxSetSize}`;
  drawChart(byId("risk"), {
    lines: [{ values }], length: rule.horizon, low: Math.floor(Math.min(...shown, -1)), high: Math.ceil(Math.max(...shown, 0)), limit: line,
    limitName: isScore ? "in the set" : "stops here", label: `${what}, over time`,
    unit: (value) => (isScore ? value : percent(10 ** value, Math.max(0, -value - 2))),
  }); // prettier-ignore
  const inWords = (value) => (isScore ? value.toFixed(2) : percent(Math.exp(value), 1));
  const found = level === null ? "not known yet" : inWords(level);
  const stops = isScore ? `it stops with at most ${rule.maxSetSize} in the set` : line === null ? "nothing stops" : `it stops ${rule.policy === "AG_RISK" ? "below" : "from"} ${inWords(limit)}`;
  byId("risk-words").textContent = level === null ? `${what}: ${found}.` : `${what}: ${found}; ${stops}.`;
}

function answerInWords({ time, classes }) {
  const names = classes.map((label) => DATA.classes[label]);
  const answer = names.length === DATA.classes.length ? "any class" : names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names[0] || "no class";
  const { horizon } = now.rule;
  return `<b>${escapeText(answer)}</b>: ${time < horizon ? `stopped at ${time} of ${horizon}, saved ${percent(1 - time / horizon)}` : `ran to the end, ${horizon} of ${horizon}`}`;
}

function escapeText(text) {
  const element = document.createElement("span");
  element.textContent = text;
  return element.innerHTML;
}

/* Count a decision on a recorded input. A drawing has no label and is not counted. */
function record(decision, input) {
  const miss = DATA.inputs.labels ? !decision.classes.includes(DATA.inputs.labels[input]) : null;
  count.times.push(decision.time);
  if (miss !== null) {
    count.hits.push(!miss);
    if (count.adaptive) count.adaptive.update(miss);
  }
  count.monitor.add(decision, miss);
  return miss;
}

/* Say what came of an input; of a drawing also beside it, since the verdict is far away on a small screen. */
function sayVerdict(html, drawn = now.drawn) {
  byId("verdict").innerHTML = html;
  if (drawn) byId("drawn").innerHTML = html;
}

function finish(decision) {
  let words = answerInWords(decision);
  if (!now.drawn) {
    const miss = record(decision, now.input);
    if (miss !== null) words += miss ? `. Missed: the label is ${escapeText(DATA.classes[DATA.inputs.labels[now.input]])}.` : ". Right.";
    drawCounts();
  }
  sayVerdict(words);
  drawInput();
  if (now.playing) now.timer = setTimeout(playNext, stillness.matches ? 2500 : 1400);
}

function run() {
  if (stillness.matches) {
    let decision = null;
    while (!decision) decision = stepOnce();
    finish(decision);
    return;
  }
  const decision = stepOnce();
  if (decision) finish(decision);
  else {
    drawInput();
    now.timer = setTimeout(run, Number(byId("pace").value));
  }
}

function nextInput() {
  return now.drawn && now.resume !== undefined ? now.resume : (now.input + 1) % recorded.length;
}

function playNext() {
  const input = nextInput();
  now.resume = (input + 1) % recorded.length;
  begin(eventsOf(input), input);
  byId("verdict").textContent = "Watching …";
  run();
}

function setPlaying(playing) {
  now.playing = playing;
  byId("play").textContent = playing ? "Pause" : "Play";
  clearTimeout(now.timer);
}

/* Decide on many inputs without showing each step. The page stays alive: there is a pause after each input. */
async function runMany(number) {
  if (now.busy) return;
  setPlaying(false);
  setBusy(true);
  for (let done = 0; done < number; done++) {
    const input = nextInput();
    now.resume = (input + 1) % recorded.length;
    begin(eventsOf(input), input);
    let decision = null;
    while (!decision) decision = stepOnce();
    record(decision, input);
    if (done % 5 === 4 || done === number - 1) {
      drawCounts();
      drawInput();
      byId("verdict").innerHTML = answerInWords(decision);
    }
    await new Promise((resolve) => setTimeout(resolve));
  }
  setBusy(false);
}

function setBusy(busy) {
  now.busy = busy;
  for (const id of ["play", "next", "many", "show", "target", "reset"]) if (byId(id)) byId(id).disabled = busy;
}

// ---- many inputs

function drawCounts() {
  const { hits, times, since, changes, monitor } = count;
  const { target, horizon } = now.rule;
  const recent = hits.slice(since);
  const n = recent.length;
  if (n) {
    const right = recent.filter(Boolean).length;
    const [low, high] = wilson(right, n);
    byId("coverage").innerHTML = `${percent(right / n, 1)} <small>${percent(low)} to ${percent(high)}</small>`;
  } else byId("coverage").textContent = "–";
  const goal = target === null ? "" : `, and at least ${percent(target)} are promised`;
  const where = since ? " since the last change" : "";
  byId("coverage-words").textContent = !DATA.inputs.labels
    ? "The inputs have no labels."
    : n === 0
    ? `No answer${where} yet: press Play, or “50 at once”.${target === null ? "" : ` At least ${percent(target)} of the answers are promised to hold the right class.`}`
    : `of ${n} answers${where} hold the right class${goal}. The interval is at 95 %; the line is the share of the last ${RECENT}.`;
  const moving = [];
  let sum = 0;
  hits.forEach((hit, index) => {
    sum += hit - (index >= RECENT ? hits[index - RECENT] : 0);
    moving.push(sum / Math.min(index + 1, RECENT));
  });
  const length = Math.max(times.length, RECENT);
  drawChart(byId("coverage-chart"), {
    lines: [{ values: moving }], length, low: moving.some((share) => share < 0.5) ? 0 : 0.5, high: 1, limit: target, limitName: "promised", marks: changes, label: "Coverage over answers",
    unit: (value) => percent(value),
  }); // prettier-ignore
  const latest = times.slice(since);
  const mean = latest.reduce((total, time) => total + time, 0) / latest.length;
  byId("latency").innerHTML = latest.length ? `${percent(mean / horizon)} <small>step ${mean.toFixed(1)} of ${horizon}</small>` : "–";
  const speed = count.steps ? ` This browser takes ${(count.spent / count.steps).toFixed(2)} ms a step.` : "";
  byId("latency-words").textContent = `mean time of an answer${where}.${speed}`;
  drawChart(byId("latency-chart"), {
    lines: [{ values: times.map((time) => time / horizon) }], length, low: 0, high: 1, marks: changes,
    label: "Stopping time of each answer", unit: (value) => percent(value),
  }); // prettier-ignore
  drawAlarm(monitor, length, changes);
  const healing = count.adaptive ? count.adaptive.threshold : null;
  if (healing !== null) {
    byId("adaptive-words").textContent = `The threshold is ${Number.isFinite(healing) ? healing.toFixed(2) : "closed: nothing stops"}, it was calibrated to ${now.rule.adaptive.threshold.toFixed(2)}. Now the promise is another one: ${now.rule.adaptive.guarantee}`;
  } else byId("adaptive-words").textContent = now.rule.adaptive ? "" : now.rule.notAdaptive;
}

function drawAlarm(monitor, length, changes) {
  const raised = Object.entries(monitor.alarms);
  const because = { inputs: "the inputs differ from the calibration examples", misses: "the answers miss more often than promised" };
  byId("alarm").textContent = raised.length ? "Drift" : monitor.number ? "No alarm" : "–";
  byId("alarm").classList.toggle("alarmed", raised.length > 0);
  const found = raised.map(([kind, { number }]) => `After ${number} answers: ${because[kind]}. `).join("");
  const chance = raised.length ? "" : ` A false alarm has probability at most ${percent(1 / monitor.limit)} for each.`;
  byId("alarm-words").textContent = `${found}Evidence against “nothing has changed”: from the inputs (line) and from misses (dots).${chance}`;
  const limit = Math.log10(monitor.limit);
  const tallest = [...monitor.inputs.log, ...monitor.misses.log].reduce((most, value) => Math.max(most, value), 2);
  drawChart(byId("alarm-chart"), {
    lines: [{ values: monitor.inputs.log }, { values: monitor.misses.log, kind: "second" }], length, low: -1, high: Math.min(Math.ceil(tallest), 12), limit,
    limitName: "alarm", marks: changes, label: "Evidence of drift, as powers of ten", unit: (value) => `10${superscript(value)}`,
  }); // prettier-ignore
}

const superscript = (value) => [...String(value)].map((character) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[character] || "⁻").join("");

// ---- controls

function chooseRule() {
  const index = Number(byId("target").value);
  now.rule = rules[index];
  byId("target-value").textContent = now.rule.name;
  byId("target").setAttribute("aria-valuetext", now.rule.name);
  byId("guarantee").textContent = now.rule.guarantee;
  byId("adaptive").disabled = !now.rule.adaptive;
  startAgain();
  if (!now.watch || now.busy) return;
  const unfinished = !now.watch.decision;
  begin(now.events, now.input);
  if (unfinished || now.playing) run();
  else showAgain();
}

/* The same input under another rule, which is not counted again. */
function showAgain() {
  let decision = null;
  while (!decision) decision = stepOnce();
  sayVerdict(answerInWords(decision));
  drawInput();
}

function describeDrift() {
  const { kind, strength } = driftNow();
  byId("drift-words").textContent = strength ? `From the next input on, ${kind.describe(strength)}.` : "The inputs are as recorded.";
}

function bindControls() {
  byId("play").addEventListener("click", () => {
    setPlaying(!now.playing);
    if (!now.playing) return;
    if (now.watch && !now.watch.decision) run();
    else playNext();
  });
  byId("next").addEventListener("click", () => {
    clearTimeout(now.timer);
    playNext();
  });
  byId("many").addEventListener("click", () => runMany(50));
  byId("reset").addEventListener("click", startAgain);
  byId("target").max = rules.length - 1;
  byId("target").hidden = rules.length === 1;
  byId("target").value = Math.max(0, rules.findIndex((rule) => rule === now.rule));
  byId("target").addEventListener("input", chooseRule);
  for (const [id, { name }] of Object.entries(DRIFTS)) byId("drift-kind").add(new Option(name, id));
  for (const id of ["drift", "drift-kind"]) {
    byId(id).addEventListener("input", describeDrift);
    byId(id).addEventListener("change", noteChange);
  }
  byId("adaptive").addEventListener("change", () => {
    count.adaptive = byId("adaptive").checked && now.rule.adaptive ? new AdaptiveRule(now.rule.adaptive) : null;
    noteChange();
  });
}

// ---- begin

function open() {
  const many = members.length === 1 ? "One spiking network watches" : `${members.length} spiking networks watch`;
  byId("lead").textContent =
    `${many} events as they come. As soon as enough has been seen they stop, and answer with a set of classes ` +
    "that holds the right one as often as promised. All of it is computed in this page; nothing leaves it.";
  byId("about").textContent = DATA.about;
  if (camera.polarities === 1) byId("legend").remove();
  byId("camera").style.aspectRatio = `${camera.width} / ${camera.height}`;
  now.rule = rules[DATA.first];
  bindControls();
  bindDrawing();
  chooseRule();
  describeDrift();
  now.watch = new Watch(members, now.rule);
  drawInput();
  now.watch = null;
  const redraw = () => now.watch && drawInput();
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

open();
globalThis.agreestop = { decide, rules, members, recorded, fma, Member, Watch, DriftMonitor, AdaptiveRule, runMany }; // for tests, and for the curious
