/* The calibrated rule: from spike counts to "not yet" or a set of classes. Its numbers come from Python (`export/page.py`).
 *
 *     f_k    log-softmax of the spike counts of member k
 *     g      log M_r(f_1 ... f_K), the generalised mean over the members that the look asks for; r = 1 averages their confidences
 *     S      score of a class: -g, or with temperatures -log-softmax(τ g); less the offset of the look
 *     ρ      posterior mass, softmax(τ g), of a class and of all less probable ones; e = ρ of rank I + 1, the risk; both in logarithms,
 *            less the offset of the look
 *
 * The last bits of Math.exp and Math.log1p may differ from those of numpy. A threshold is the risk of a calibration example, and counts are
 * small integers, so a risk is often equal to its threshold. So numbers that differ by less than TIED are taken as equal, and `margin`
 * keeps the smallest distance of all others.
 */

const TIED = 1e-11;
const LARGEST_LOGIT = 1e300;

/* Numbers in increasing order, so that sums do not depend on the order of classes or members. */
function sorted(values) {
  return Float64Array.from(values).sort();
}

/* log Σ exp(value), as the largest value and the logarithm of the rest. */
function logTotal(values) {
  const order = sorted(values);
  const top = order[order.length - 1];
  let sum = 0;
  for (let j = 0; j + 1 < order.length; j++) sum += Math.exp(order[j] - top);
  return { top, rest: Math.log1p(sum) };
}

/* log-softmax of spike counts or logits. */
function logSoftmax(values) {
  const { top, rest } = logTotal(values);
  return Array.from(values, (value) => value - top - rest);
}

function logMean(logs, exponent) {
  const n = logs.length;
  if (n === 1) return logs[0];
  const order = sorted(logs);
  if (exponent === Infinity) return order[n - 1];
  if (exponent === -Infinity) return order[0];
  if (exponent === 0) return order.reduce((sum, value) => sum + value, 0) / n;
  const top = exponent > 0 ? order[n - 1] : order[0];
  const others = exponent > 0 ? order.subarray(0, n - 1) : order.subarray(1);
  let sum = 0;
  for (const value of others) sum += Math.expm1((value - top) * exponent);
  return Math.log1p(sum / n) / exponent + top;
}

function logAdd(x, y) {
  return x === y ? x + Math.LN2 : Math.max(x, y) + Math.log1p(Math.exp(-Math.abs(x - y)));
}

/* The classes from the most to the least probable, the lowest first on ties. */
function byProbability(logits) {
  return Array.from(logits, (_, label) => label).sort((one, other) => logits[other] - logits[one] || one - other);
}

class Rule {
  constructor(numbers, classes) {
    Object.assign(this, numbers); // see `_rule` in page.py
    this.classes = classes;
    this.margin = { nearest: Infinity, ties: 0 };
  }

  /* Watch one input; a threshold is given where an adaptive rule has moved it. */
  begin(threshold = null) {
    return new Judgement(this, threshold);
  }

  get horizon() {
    return this.times[this.times.length - 1];
  }

  /* -1, 0 or 1: whether the value is below the limit, equal to it, or above it. */
  compare(value, limit) {
    if (!Number.isFinite(value) || !Number.isFinite(limit)) return Math.sign(value === limit ? 0 : value < limit ? -1 : 1);
    const gap = Math.abs(value - limit);
    if (gap <= TIED * (1 + Math.abs(limit))) {
      this.margin.ties += 1;
      return 0;
    }
    this.margin.nearest = Math.min(this.margin.nearest, gap);
    return value < limit ? -1 : 1;
  }

  /* g of every class, tempered where the rule has temperatures. */
  logits(look, counts) {
    const logs = counts.map(logSoftmax);
    const tau = this.temperatures && this.temperatures[look];
    return Array.from({ length: this.classes }, (_, label) => {
      const pooled = logMean(logs.map((member) => member[label]), this.exponent);
      return tau === null ? pooled : Math.max(tau * pooled, -LARGEST_LOGIT);
    });
  }
}

/* What a rule remembers of one input. `judge` returns
 *     answer     the classes of the answer, or null: not yet
 *     set        the classes that are still possible: for AgreeStop those whose ρ reaches the threshold, and their ties; else the set of the look
 *     posterior  softmax(τ g) of every class
 *     level      log e, the least score or the largest log-confidence, and its `limit`
 */
class Judgement {
  constructor(rule, threshold) {
    this.rule = rule;
    this.threshold = threshold;
    this.block = -1; // of a rule with a gate, before its gate opens
    this.largest = null; // of AG_RUNNING: the largest score of each class so far
    this.firstRisk = null;
  }

  judge(look, counts) {
    const logits = this.rule.logits(look, counts);
    const judge = { AG_RISK: judgeRisk, AG_CONFIDENCE: judgeConfidence }[this.rule.policy] || judgeScores;
    const found = judge(this.rule, this, look, logits);
    if (look === 0) this.firstRisk = found.first;
    return { ...found, posterior: logSoftmax(logits).map(Math.exp) };
  }

  limits(look) {
    if (this.threshold !== null) return [this.threshold];
    const rows = this.rule.thresholds;
    return this.block >= 0 ? rows[this.block] : rows[rows.length > 1 && !this.rule.blocks ? look : 0];
  }
}

const chosen = (flags) => flags.flatMap((flag, label) => (flag ? [label] : []));

/* Stop where log e is below the threshold. Of the I most probable classes, the answer holds the best and those whose ρ reaches the
 * threshold. If nothing stopped, the last answer is the I most probable classes and all whose ρ reaches the threshold. */
function judgeRisk(rule, input, look, logits) {
  const last = look === rule.times.length - 1;
  const order = byProbability(logits);
  const never = rule.offsets[look] === -Infinity;
  const mass = new Array(rule.classes);
  let tail = 0;
  for (let rank = rule.classes - 1; rank >= 0; rank--) {
    const label = order[rank];
    tail = rank === rule.classes - 1 ? logits[label] : logAdd(tail, logits[label]);
    mass[label] = tail;
  }
  for (let label = 0; label < rule.classes; label++) mass[label] = never ? Infinity : mass[label] - tail - rule.offsets[look];
  let risk = never ? Infinity : -Infinity;
  if (!never && rule.fixedTime) risk = 1 / (look + 1) - rule.offsets[look];
  else if (!never && rule.maxSetSize < rule.classes) risk = mass[order[rule.maxSetSize]];
  const first = risk;
  let open = true;
  if (rule.blocks && input.block < 0) {
    if (rule.compare(risk, rule.slack) < 0) input.block = rule.blocks[look];
    else if (last) {
      input.block = rule.thresholds.length - 1;
      risk = Infinity;
    } else open = false;
  }
  const [limit] = input.limits(look);
  const stops = open && rule.compare(risk, limit) < 0;
  const ranked = sorted(mass);
  const best = ranked[rule.classes - 1];
  const least = ranked[rule.classes - rule.maxSetSize];
  let answer = null;
  if (stops) answer = mass.map((own) => own >= least && (rule.fill || own === best || rule.compare(own - rule.logTrim, limit) >= 0));
  else if (last && rule.final) answer = mass.map((own) => own === best);
  else if (last) answer = mass.map((own) => own >= least || rule.compare(own, limit) >= 0);
  const reaches = order.filter((label) => mass[label] === best || mass[label] - limit >= -TIED * (1 + Math.abs(limit)));
  const possible = logits.map((own) => own >= logits[reaches.at(-1)]); // for the eye: classes that tie are possible together
  return { answer: answer && chosen(answer), set: chosen(answer || possible), level: risk, limit, first };
}

/* Stop where the largest confidence reaches the threshold, and answer the I most probable classes. */
function judgeConfidence(rule, input, look, logits) {
  const [limit] = input.limits(look);
  const order = byProbability(logits);
  const level = logits[order[0]];
  const stops = rule.compare(level, limit) >= 0 || look === rule.times.length - 1;
  const top = order.slice(0, rule.maxSetSize).sort((one, other) => one - other);
  return { answer: stops ? top : null, set: top, level, limit, first: Math.min(...logits) };
}

/* The set holds the classes whose score is at most the threshold. Stop at a set of at most I classes. */
function judgeScores(rule, input, look, logits) {
  const last = look === rule.times.length - 1;
  const stopAware = rule.policy === "AG_STOPPING";
  const limits = input.limits(look);
  let scores = (rule.temperatures ? logSoftmax(logits) : logits).map((value) => -value - rule.offsets[look]);
  const first = Math.min(...scores);
  if (rule.policy === "AG_RUNNING") {
    scores = scores.map((score, label) => (input.largest ? Math.max(input.largest[label], score) : score));
    input.largest = scores;
  }
  const set = chosen(scores.map((score, label) => rule.compare(score, limits[label % limits.length]) <= 0));
  const best = scores.indexOf(Math.min(...scores));
  const small = set.length <= rule.maxSetSize && (set.length > 0 || !stopAware); // a stop-aware rule waits for a set that is not empty
  let answer = small || last ? set : null;
  if (answer && rule.final && !small) answer = [];
  if (answer && !answer.length && rule.policy !== "AG_CHECKPOINTS") answer = [best];
  return { answer, set: answer || set, level: scores[best], limit: limits[best % limits.length], first };
}
