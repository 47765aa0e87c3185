/* The page: reads the embedded data, lets inputs pass in front of the ensemble, and keeps count. DATA is written by `export/page.py`. */

const ARRAYS = { float32: Float32Array, int8: Int8Array, uint16: Uint16Array };
const RECENT = 50; // answers in the moving coverage
const FEW = 10; // fewer answers are counted, and not a percentage
const LOWEST = -4 * Math.LN10; // the smallest log-risk that the chart of calibration shows
const NUMBERS = [, , "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"];
const BROKEN = 50; // the strength of the drift that the button gives
const HEALING = 120; // the inputs that the button shows to a threshold that heals

/* A base64 text as a typed array. */
function decode({ type, data }) {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  if (type !== "bfloat16") return new ARRAYS[type](bytes.buffer);
  const upper = new Uint16Array(bytes.buffer); // bfloat16 is the upper half of a float32
  return new Float32Array(Uint32Array.from(upper, (half) => half << 16).buffer);
}

/* The networks. Their weights are read on first use, after the first input was painted. */
let decoded = null;
function networks() {
  decoded ||= DATA.members.map((layers) =>
    layers.map((layer) => ({ ...layer, weights: decode(layer.weights), scale: decode(layer.scale), bias: decode(layer.bias) })),
  );
  return decoded;
}

const newRule = (numbers) => new Rule(numbers, DATA.classes.length);
const rules = DATA.rules.map(newRule);
const sizes = [...new Set(rules.map((rule) => rule.maxSetSize))].sort((one, other) => one - other);
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
  const watch = new Watch(networks(), rule, threshold);
  for (const step of events) if (watch.push(step)) break;
  return watch.decision;
}

// ---- the state

const now = {
  rule: rules[DATA.first],
  input: -1,
  begun: false, // whether the input that the page begins with was watched
  following: 0, // the recorded input that comes next
  drawn: false,
  drawing: "", // the image of the last drawing, as in the address
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
const agreement = new AgreementView(byId("agreement"), DATA.classes, DATA.members.length);
const calibration = new CalibrationView(byId("calibration"), dragThreshold);
const stillness = matchMedia("(prefers-reduced-motion: reduce)");

function startAgain() {
  const { adaptive } = now.rule;
  count = { hits: [], times: [], changes: [], since: 0, seen: new Set(), adaptive: null };
  if (isPressed("heal") && adaptive) count.adaptive = new AdaptiveRule(adaptive);
  renewMonitor();
  drawCounts();
}

/* The monitor begins anew with the next answer. */
function renewMonitor() {
  count.monitor = new DriftMonitor(now.rule.monitor);
  count.monitored = count.times.length;
}

/* From here on the inputs, or the threshold, are others. */
function noteChange() {
  count.since = count.times.length;
  count.seen.clear();
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
  now.watch = new Watch(networks(), now.rule, input < 0 || !count.adaptive ? null : count.adaptive.threshold);
  camera.clear();
  byId("later").hidden = true;
  byId("which").textContent = input < 0 ? "your drawing" : `input ${input + 1} of ${recorded.length}`;
}

/* Compute one step; the decision once there is one. */
function stepOnce() {
  const { watch } = now;
  const events = now.events[watch.time];
  const decision = watch.push(events);
  camera.add(events);
  if (watch.last) now.levels[watch.time - 1] = watch.last.level;
  return decision;
}

function drawInput() {
  const { watch, rule } = now;
  const everything = DATA.classes.map((_, label) => label);
  const even = everything.map(() => 1 / everything.length);
  const { set, posterior, limit } = watch.last || { set: everything, posterior: even, limit: null };
  camera.draw();
  const beliefs = watch.members.map(({ counts }, k) => (k < watch.joined ? logSoftmax(counts).map(Math.exp) : null));
  agreement.draw(beliefs, posterior, set);
  const left = watch.decision ? rule.horizon - watch.time : 0;
  byId("step").textContent = `step ${watch.time} of ${rule.horizon}`;
  byId("computed").style.width = `${(100 * watch.time) / rule.horizon}%`;
  byId("saved").style.width = `${(100 * left) / rule.horizon}%`;
  byId("saved-words").textContent = left ? `${left} steps are not computed` : "";
  byId("set-words").textContent = set.length === everything.length ? "every class is possible" : `still possible: ${set.map(named).join(", ") || "no class"}`;
  drawCalibration(watch.last ? watch.last.level : null, limit);
}

const ranksRisks = (rule) => rule.policy === "AG_RISK" && rule.thresholds.length === 1;
const riskInWords = (level) => (level < Math.log(0.01) ? `${Number((100 * Math.exp(level)).toPrecision(2))} %` : percent(Math.exp(level), 1));

/* The risk of this input, and the calibration examples on both sides of the threshold. */
function drawCalibration(level, limit) {
  const { rule } = now;
  const isRisk = ranksRisks(rule);
  const what =
    rule.maxSetSize === 1 ? "the risk that the most probable class is wrong" : `the risk that the right class is not among the best ${rule.maxSetSize}`;
  const shown = Number.isFinite(limit) && limit !== null ? limit : rule.thresholds[0][0];
  if (!isRisk) {
    byId("risk-words").textContent = `This rule compares ${rule.policy === "AG_CONFIDENCE" ? "the largest confidence" : "the score of every class"} with what calibration found.`;
    drawChart(byId("calibration"), {
      lines: [{ values: Array.from(now.levels, (value) => (Number.isFinite(value) ? value : 0)) }], length: rule.horizon,
      low: Math.floor(Math.min(...now.levels.filter(Number.isFinite), shown, -1)), high: Math.ceil(Math.max(...now.levels.filter(Number.isFinite), shown, 0)),
      limit: shown, limitName: "it stops here", label: "Score over time", unit: (value) => value.toFixed(1),
    }); // prettier-ignore
    byId("missed-words").textContent = "";
    return;
  }
  const examples = rule.examples || [];
  const levels = Array.from(now.levels, (value) => (value === undefined || value > 0 ? 0 : value)); // before the first checkpoint all are possible
  const missed = calibration.draw({ examples, levels, limit: shown, horizon: rule.horizon, low: LOWEST, what });
  byId("risk-words").textContent =
    `The networks’ own estimate of ${what}: ${level === null ? "not known yet" : riskInWords(level)}. ` +
    (count.adaptive
      ? `It stops below ${riskInWords(shown)}: this threshold follows the labels of the answers.`
      : `An estimate is no guarantee, so calibration on examples with known labels chose where to stop: below ${riskInWords(shown)}.`);
  const most = Math.floor((examples.length + 1) * (1 - rule.target) + 1e-9);
  byId("missed-words").textContent = examples.length
    ? `the threshold misses ${missed} of the ${examples.length} calibration examples; a guarantee of ${percent(rule.target)} allows at most ${Math.max(most - 1, 0)}.`
    : "";
}

/* Drag the threshold to a share of the height: the rule with the nearest one is taken. */
function dragThreshold(share) {
  if (now.busy || !now.rule.examples) return;
  const offered = rulesOfSize();
  const thresholds = offered.map((rule) => rule.thresholds[0][0]);
  const wanted = LOWEST * (1 - Math.min(Math.max(share, 0), 1));
  const distances = thresholds.map((threshold) => Math.abs(threshold - wanted));
  const nearest = distances.indexOf(Math.min(...distances.filter(Number.isFinite)));
  if (nearest >= 0 && offered[nearest] !== now.rule) chooseRule(offered[nearest]);
}

const named = (label) => DATA.classes[label];

function inWords(classes) {
  const names = classes.map(named);
  if (!names.length) return "no class";
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names[0];
}

const article = (name) => (/^(8|11$|18$|[aeiou])/i.test(name) ? "an" : "a");

function answerInWords({ time, classes }) {
  const all = classes.length === DATA.classes.length;
  const one = classes.length === 1;
  const answer = all ? "anything" : one && named(classes[0]).length < 3 ? `${article(named(classes[0]))} ${named(classes[0])}` : inWords(classes);
  return `It is <b>${escapeText(answer)}</b>. <span class="at">Step ${time} of ${now.rule.horizon}.</span>`;
}

function escapeText(text) {
  const element = document.createElement("span");
  element.textContent = text;
  return element.innerHTML;
}

/* Count a decision on a recorded input, the first since the last change. A drawing has no label and is not counted. */
function record(decision, input) {
  const miss = DATA.inputs.labels ? !decision.classes.includes(DATA.inputs.labels[input]) : null;
  if (count.seen.has(input)) return miss;
  count.seen.add(input);
  count.times.push(decision.time);
  if (miss !== null) {
    count.hits.push(!miss);
    if (count.adaptive) count.adaptive.update(miss);
  }
  if (!count.adaptive) count.monitor.add(decision, miss);
  return miss;
}

/* Say what came of an input; of a drawing also beside it, since the verdict is far away on a small screen. */
function sayVerdict(html, drawn = now.drawn) {
  byId("verdict").innerHTML = html;
  if (drawn) byId("drawn").innerHTML = html;
}

function sayProgress() {
  const { last } = now.watch;
  const open = !last || last.set.length === DATA.classes.length || last.set.length > 4;
  byId("verdict").textContent = open ? (now.drawn ? "Watching your drawing …" : "What is it?") : `They begin to agree: ${inWords(last.set)} …`;
}

/* Once the answer stands: the events that came after it, in grey. */
function showLater() {
  camera.addLater(now.events.slice(now.watch.time, now.rule.horizon));
  camera.draw();
  byId("later").hidden = now.watch.time === now.rule.horizon;
}

function finish(decision) {
  const words = answerInWords(decision);
  sayVerdict(words);
  drawInput();
  if (now.drawn) {
    showLater();
    return;
  }
  const miss = record(decision, now.input);
  const { input } = now;
  const reveal = () => {
    if (now.input !== input || now.drawn || miss === null) return;
    const truth = escapeText(named(DATA.inputs.labels[input]));
    sayVerdict(`${words} <span class="truth">${miss ? `Wrong: the label is ${truth}.` : `Right: the label is ${truth}.`}</span>`);
    showLater();
    drawCounts();
  };
  if (stillness.matches) reveal();
  else setTimeout(reveal, 800);
  if (now.playing) now.timer = setTimeout(playNext, stillness.matches ? 3000 : 2600);
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
    sayProgress();
    now.timer = setTimeout(run, Number(byId("pace").value));
  }
}

/* The next recorded input: of those that were not counted since the last change, while there are some. */
function nextInput() {
  if (!now.begun) {
    now.begun = true;
    return DATA.inputs.start;
  }
  for (let tried = 0; tried < recorded.length && count.seen.has(now.following); tried++) now.following = (now.following + 1) % recorded.length;
  const input = now.following;
  now.following = (input + 1) % recorded.length;
  return input;
}

function playNext() {
  const input = nextInput();
  begin(eventsOf(input), input);
  byId("verdict").textContent = "What is it?";
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
    begin(eventsOf(input), input);
    let decision = null;
    while (!decision) decision = stepOnce();
    record(decision, input);
    if (done % 5 === 4 || done === number - 1) {
      drawCounts();
      drawInput();
      byId("verdict").innerHTML = answerInWords(decision);
    }
    await pause(0);
  }
  setBusy(false);
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function setBusy(busy) {
  now.busy = busy;
  for (const id of ["play", "next", "many", "show", "target", "reset", "race", "break", "heal"]) if (byId(id)) byId(id).disabled = busy;
  for (const button of byId("sizes").querySelectorAll("input")) button.disabled = busy;
}

// ---- many inputs

function drawCounts() {
  const { hits, times, since, changes, monitor } = count;
  const { target, horizon, range } = now.rule;
  const recent = hits.slice(since);
  const n = recent.length;
  if (n) {
    const right = recent.filter(Boolean).length;
    const [low, high] = wilson(right, n);
    byId("coverage").innerHTML = n < FEW ? `${right} of ${n}` : `${percent(right / n, 1)} <small>between ${percent(low)} and ${percent(high)}</small>`;
  } else byId("coverage").textContent = "–";
  const goal = target === null ? "" : `. The guarantee is at least ${percent(target)} on average over calibration draws`;
  const one = range ? `; this one draw may lie anywhere from ${percent(range[0])} to ${percent(range[1])} (shaded)` : "";
  const asCalibrated = !count.adaptive && !driftNow().strength;
  let promise = goal + one;
  if (count.adaptive) promise = `. The threshold follows the labels and brings ${percent(target)} back in the long run`;
  else if (driftNow().strength) promise = ". The guarantee is for inputs as recorded, and ended when the camera broke";
  const where = since ? " since the last change" : "";
  const again = count.seen.size === recorded.length ? " All inputs have been counted: more do not change these figures." : "";
  byId("coverage-words").textContent = !DATA.inputs.labels
    ? "The inputs have no labels."
    : n === 0
    ? `No answer${where} yet: press Play, or “50 at once”.`
    : `${n < FEW ? "" : `of ${n} `}answer${n > 1 ? "s" : ""}${where} hold${n > 1 ? "" : "s"} the right class${promise}.${again}`;
  const moving = [];
  let sum = 0;
  hits.forEach((hit, index) => {
    sum += hit - (index >= RECENT ? hits[index - RECENT] : 0);
    moving.push(sum / Math.min(index + 1, RECENT));
  });
  const length = Math.max(times.length, RECENT);
  drawChart(byId("coverage-chart"), {
    lines: [{ values: moving }], length, low: moving.some((share) => share < 0.5) ? 0 : 0.5, high: 1, limit: target, limitName: "guarantee", band: asCalibrated ? range : null, marks: changes,
    label: `Coverage of the last ${RECENT} answers`, unit: (value) => percent(value),
  }); // prettier-ignore
  const latest = times.slice(since);
  const mean = latest.reduce((total, time) => total + time, 0) / latest.length;
  byId("latency").innerHTML = latest.length ? `step ${mean.toFixed(1)} <small>of ${horizon}, ${percent(mean / horizon)}</small>` : "–";
  byId("latency-words").textContent = latest.length ? `mean of the answers${where}.` : `No answer${where} yet.`;
  drawChart(byId("latency-chart"), {
    lines: [{ values: times.map((time) => time / horizon) }], length, low: 0, high: 1, marks: changes,
    label: "Stopping time of each answer", unit: (value) => percent(value),
  }); // prettier-ignore
  drawAlarm(monitor, length, changes);
  sayGuarantee();
  const healing = count.adaptive ? count.adaptive.threshold : null;
  if (healing !== null) {
    const said = (value) => (!Number.isFinite(value) ? "closed, nothing stops" : ranksRisks(now.rule) ? riskInWords(value) : value.toFixed(2));
    byId("adaptive-words").textContent = `The threshold follows the labels: it is ${said(healing)}, and was calibrated to ${said(now.rule.adaptive.threshold)}. What holds now: ${now.rule.adaptive.guarantee} Here labels come at once: of any 100 answers at most ${Math.floor(100 * count.adaptive.bound(100))} miss.`;
  } else byId("adaptive-words").textContent = now.rule.adaptive ? "" : now.rule.notAdaptive;
}

function sayGuarantee() {
  const { guarantee } = now.rule;
  byId("guarantee").textContent = count.adaptive
    ? "This guarantee has given way to that of the threshold which follows the labels: see “Break the camera”."
    : driftNow().strength
    ? "The camera is broken: its events are not exchangeable with the calibration examples, and this guarantee does not hold."
    : guarantee.charAt(0).toUpperCase() + guarantee.slice(1);
}

function drawAlarm(monitor, length, changes) {
  const raised = count.adaptive ? [] : Object.entries(monitor.alarms);
  const because = { inputs: "the inputs differ from the calibration examples", misses: "the answers miss more often than promised" };
  byId("alarm").textContent = count.adaptive ? "Healing" : raised.length ? "Drift" : monitor.number ? "No alarm" : "–";
  byId("alarm").classList.toggle("alarmed", raised.length > 0);
  const found = raised.map(([kind, { number }]) => `After ${number} answers: ${because[kind]}. `).join("");
  const chance = raised.length ? "" : ` A false alarm has probability at most ${percent(1 / monitor.limit)} for each.`;
  byId("alarm-words").textContent = count.adaptive
    ? "The alarm is off while the threshold follows the labels: see it move, from where calibration put it."
    : `${found}Evidence against “nothing has changed”: from the inputs (line) and from misses (dots).${chance}`;
  if (count.adaptive) {
    drawHealing(count.adaptive, length);
    return;
  }
  const [limit, first] = [Math.log10(monitor.limit), count.monitored + 1];
  const tallest = [...monitor.inputs.log, ...monitor.misses.log].reduce((most, value) => Math.max(most, value), 2);
  drawChart(byId("alarm-chart"), {
    lines: [{ values: monitor.inputs.log, first }, { values: monitor.misses.log, kind: "second", first }], length, low: -1,
    high: Math.min(Math.ceil(tallest), 12), limit, limitName: "alarm", marks: changes, label: "Evidence of drift, as powers of ten",
    unit: (value) => `10${superscript(value)}`,
  }); // prettier-ignore
}

/* The threshold since healing began. */
function drawHealing({ log }, length) {
  const calibrated = now.rule.adaptive.threshold;
  const known = [...log.filter(Number.isFinite), calibrated];
  const ofRisk = ranksRisks(now.rule);
  drawChart(byId("alarm-chart"), {
    lines: [{ values: log.map((value) => (Number.isFinite(value) ? value : LOWEST)), first: count.since + 1 }], length, limit: calibrated, limitName: "as calibrated",
    low: ofRisk ? LOWEST : Math.floor(Math.min(...known) - 1), high: ofRisk ? 0 : Math.ceil(Math.max(...known)),
    label: "The threshold", unit: (value) => (ofRisk ? percent(Math.exp(value), value < -1 ? 2 : 0) : value.toFixed(1)),
  }); // prettier-ignore
}

const superscript = (value) => [...String(value)].map((character) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[character] || "⁻").join("");

// ---- a race of several rules on the same inputs

const racers = [...DATA.beside.map(newRule), rules[DATA.first]];

function bindRace() {
  if (racers.length < 2) {
    byId("race-card").remove();
    return;
  }
  const { target, maxSetSize } = rules[DATA.first];
  byId("race-words").textContent =
    `${NUMBERS[racers.length] || racers.length} rules with one guarantee, ${percent(target)}, and at most ${maxSetSize} class${maxSetSize > 1 ? "es" : ""} in an early answer, watch the same inputs as recorded. ` +
    "A bar ends where its rule stops; the mark is the mean.";
  byId("lanes").innerHTML = "<thead><tr><th>rule</th><th>stops at</th><th>answer</th><th>mean step</th><th>right</th></tr></thead>";
  const body = byId("lanes").appendChild(document.createElement("tbody"));
  const lanes = racers.map((rule) => {
    const row = body.insertRow();
    row.innerHTML = `<th scope="row"></th><td><span class="lane"><i></i><b hidden></b></span></td><td>–</td><td>–</td><td>–</td>`;
    row.cells[0].textContent = rule === racers.at(-1) ? `ours: ${rule.name}` : rule.name;
    row.className = rule === racers.at(-1) ? "ours" : "";
    return { rule, row, bar: row.querySelector("i"), mark: row.querySelector("b"), steps: 0, right: 0, n: 0 };
  });
  let at = 0;
  byId("race").addEventListener("click", async () => {
    setPlaying(false);
    setBusy(true);
    for (let done = 0; done < 20 && at < recorded.length; done++, at++) {
      // no input is counted twice
      for (const lane of lanes) lane.found = decide(at, lane.rule);
      if (!stillness.matches) await runLanes(lanes);
      lanes.forEach((lane) => showLane(lane, DATA.inputs.labels && DATA.inputs.labels[at]));
      await pause(stillness.matches ? 0 : 150);
    }
    sayRace(lanes);
    setBusy(false);
    byId("race").disabled = at >= recorded.length;
  });
}

/* All bars grow alike, each to the step at which its rule stops. */
async function runLanes(lanes) {
  const began = performance.now();
  for (let shown = 0; shown < 1; await pause(16)) {
    shown = Math.min((performance.now() - began) / 500, Math.max(...lanes.map(({ found, rule }) => found.time / rule.horizon)));
    for (const { bar, found, rule } of lanes) bar.style.width = `${100 * Math.min(shown, found.time / rule.horizon)}%`;
    if (lanes.every(({ found, rule }) => shown >= found.time / rule.horizon)) return;
  }
}

/* Add an answer to the totals of a lane. */
function showLane(lane, label) {
  const { rule, row, bar, mark, found } = lane;
  const known = typeof label === "number";
  const hit = !known || found.classes.includes(label);
  lane.n += 1;
  lane.steps += found.time;
  lane.right += hit;
  bar.style.width = `${(100 * found.time) / rule.horizon}%`;
  mark.hidden = false;
  mark.style.left = `${(100 * lane.steps) / lane.n / rule.horizon}%`;
  row.cells[2].textContent = `${inWords(found.classes)}${hit ? "" : " ✗"}`;
  row.cells[2].classList.toggle("wrong", !hit);
  row.cells[3].textContent = (lane.steps / lane.n).toFixed(1);
  row.cells[4].textContent = known ? `${lane.right} of ${lane.n}` : "–";
}

/* What the race has shown so far, and how much of it may be chance. */
function sayRace(lanes) {
  const ours = lanes.at(-1);
  const earlier = (lane) => Math.round(100 * (1 - ours.steps / lane.steps));
  const than = lanes.slice(0, -1).map((lane) => `${Math.abs(earlier(lane))} % ${earlier(lane) < 0 ? "later" : "earlier"} than ${lane.rule.name}`);
  const { target } = ours.rule;
  const chance = 1.96 * Math.sqrt(ours.n * target * (1 - target));
  const right = DATA.inputs.labels ? ` Of ${ours.n} answers, a rule at ${percent(target)} has ${Math.round(ours.n * target)} right on average; chance moves that by ${Math.round(chance)} either way.` : "";
  byId("race-result").textContent = `Ours stops ${than.join(", and ")}.${right}`;
}

// ---- controls

const rulesOfSize = (size = now.rule.maxSetSize) => rules.filter((rule) => rule.maxSetSize === size);

function chooseRule(rule) {
  now.rule = rule;
  const offered = rulesOfSize();
  const slider = byId("target");
  slider.max = offered.length - 1;
  slider.value = offered.indexOf(rule);
  slider.hidden = offered.length === 1;
  [byId("lowest").textContent, byId("highest").textContent] = offered.length === 1 ? ["", ""] : [offered[0], offered.at(-1)].map(({ target }) => (target === null ? "" : percent(target)));
  byId("target-value").textContent = `${rule.name}:`;
  slider.setAttribute("aria-valuetext", rule.name);
  byId("heal").disabled = !rule.adaptive;
  writeAddress();
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

/* The rule of this size whose target is nearest. */
function nearest(size, target) {
  const offered = rulesOfSize(size);
  const distances = offered.map((rule) => Math.abs((rule.target ?? -1) - target));
  return offered[distances.indexOf(Math.min(...distances))];
}

function bindSizes() {
  if (sizes.length < 2) {
    byId("sizes").remove();
    byId("reset").insertAdjacentHTML("beforebegin", '<span id="sizes"></span>');
    return;
  }
  for (const size of sizes) {
    const label = byId("sizes").appendChild(document.createElement("label"));
    label.innerHTML = `<input type="radio" name="size" value="${size}"> ${size}`;
    label.firstChild.checked = size === now.rule.maxSetSize;
    label.firstChild.addEventListener("change", () => chooseRule(nearest(size, now.rule.target ?? -1)));
  }
}

function describeDrift() {
  const { kind, strength } = driftNow();
  press("break", strength > 0);
  byId("break").textContent = strength ? "Repair the camera" : "Break the camera";
  byId("drift-words").textContent = strength ? `From the next input on, ${kind.describe(strength)}.` : "The inputs are as recorded.";
}

/* Many inputs at once, so that one sees what a change does; then the page goes on as before. */
async function showChange() {
  const { playing } = now;
  await runMany(isPressed("heal") ? HEALING : RECENT);
  if (!playing) return;
  setPlaying(true);
  now.timer = setTimeout(playNext, 2600);
}

const isPressed = (id) => byId(id).getAttribute("aria-pressed") === "true";
const press = (id, on) => byId(id).setAttribute("aria-pressed", String(on));

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
  byId("target").addEventListener("input", () => chooseRule(rulesOfSize()[Number(byId("target").value)]));
  for (const [id, { name }] of Object.entries(DRIFTS)) byId("drift-kind").add(new Option(name, id));
  for (const id of ["drift", "drift-kind"]) {
    byId(id).addEventListener("input", describeDrift);
    byId(id).addEventListener("change", noteChange);
  }
  byId("break").addEventListener("click", () => {
    byId("drift").value = isPressed("break") ? 0 : BROKEN;
    describeDrift();
    if (!driftNow().strength) renewMonitor(); // repaired: the alarm has done its work
    noteChange();
    showChange();
  });
  byId("heal").addEventListener("click", () => {
    press("heal", !isPressed("heal"));
    count.adaptive = isPressed("heal") ? new AdaptiveRule(now.rule.adaptive) : null;
    renewMonitor(); // the alarm has done its work
    noteChange();
    showChange();
  });
}

// ---- the address keeps the target, the size of answers and the drawing

function writeAddress() {
  const { target, maxSetSize } = now.rule;
  const parts = [target === null ? "" : `target=${target}`, sizes.length > 1 ? `size=${maxSetSize}` : "", now.drawing && `draw=${now.drawing}`];
  history.replaceState(null, "", `#${parts.filter(Boolean).join("&")}`);
}

/* An image as one letter for each point, of 36 shades. */
const writeImage = (image) => Array.from(image, (value) => Math.round(35 * value).toString(36)).join("");

/* Watch the drawing of the address. */
function watchAddress() {
  setPlaying(false);
  const image = Float64Array.from(now.drawing, (letter) => parseInt(letter, 36) / 35);
  showDrawing(image);
  watchImage(image);
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [size, target, image] = [Number(given.get("size")), Number(given.get("target")), given.get("draw") || ""];
  const chosen = nearest(sizes.includes(size) ? size : now.rule.maxSetSize, given.has("target") && Number.isFinite(target) ? target : now.rule.target ?? -1);
  const valid = DATA.camera && image.length === DATA.camera.points ** 2 && /^[0-9a-z]+$/.test(image);
  now.drawing = valid ? image : "";
  return chosen;
}

// ---- begin

function open() {
  const members = DATA.members.length;
  const many = members === 1 ? "One spiking network watches" : `${NUMBERS[members] || members} spiking networks watch`;
  byId("lead").textContent =
    `${many} events as they come. Once they are sure enough they stop, and the answer is right as often as promised.`;
  byId("about").textContent = DATA.about;
  if (camera.polarities === 1) byId("legend").remove();
  byId("camera").style.aspectRatio = `${camera.width} / ${camera.height}`;
  now.rule = readAddress();
  bindSizes();
  bindControls();
  bindDrawing();
  chooseRule(now.rule);
  describeDrift();
  const first = recorded[DATA.inputs.start].slice(0, Math.ceil(DATA.steps / 4));
  for (const events of first) camera.add(events);
  camera.draw();
  const redraw = () => now.watch && drawInput();
  addEventListener("hashchange", () => {
    const drawn = now.drawing;
    chooseRule(readAddress());
    for (const one of byId("sizes").querySelectorAll("input")) one.checked = Number(one.value) === now.rule.maxSetSize;
    if (now.drawing && now.drawing !== drawn) watchAddress();
  });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  setTimeout(start, 30); // the first events are painted by then
}

function start() {
  bindRace();
  if (now.drawing) {
    watchAddress();
    return;
  }
  now.watch = new Watch(networks(), now.rule);
  drawInput();
  now.watch = null;
  if (stillness.matches || now.playing) return;
  setPlaying(true);
  playNext();
}

open();
globalThis.agreestop = {
  decide, rules, racers, recorded, labels: DATA.inputs.labels, fma, Member, Watch, DriftMonitor, AdaptiveRule, runMany,
  get members() {
    return networks();
  },
}; // prettier-ignore
// for tests, and for the curious
