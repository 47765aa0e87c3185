/* What watches the promise and what heals it: DriftMonitor and AdaptiveRule of Python (`decide/drift.py`, `decide/adaptive.py`).
 *
 *     C_b ← ((1-J)·C_b + (J·ΣC + w_s)/B)·f_b,    cash_s = 1/(1 + log(1+s)),    w_s = cash_(s-1) - cash_s,    E = ΣC + cash
 *     misses      f_ν = 1 + ν·(miss - α'),   J = 0                inputs      f_ε = 1 + ε·(p - ½),   ε in {-1, 0, 1},   J = 0.001
 *     threshold   ℓ ← min(ℓ_max, ℓ + η·(α - miss)),    decide with ℓ if ℓ > ℓ_min, else nothing stops
 *
 * An alarm is raised when E ≥ 1/δ. Labels come right after their decisions here, so there is no queue of labels.
 */

const SHARES = Array.from({ length: 16 }, (_, index) => 2 ** -(1 + index / 2));
const TILTS = [-1, 0, 1];
const JUMP = 0.001;
const MOST_CAPITAL = 1e200;
const GAMMA = 0x9e3779b97f4a7c15n;

/* The scrambled 64-bit word of SplitMix64. */
function mix(word) {
  let mixed = word ^ (word >> 30n);
  mixed = BigInt.asUintN(64, mixed * 0xbf58476d1ce4e5b9n);
  mixed ^= mixed >> 27n;
  mixed = BigInt.asUintN(64, mixed * 0x94d049bb133111ebn);
  return mixed ^ (mixed >> 31n);
}

/* What bets have made of 1. `log` holds log10 E after each step. */
class Wealth {
  constructor(bets, jump) {
    this.capital = new Float64Array(bets);
    this.jump = jump;
    this.count = 0;
    this.log = [];
  }

  bet(factors) {
    const cash = (count) => 1 / (1 + Math.log1p(count));
    const fresh = Math.log1p(1 / (1 + this.count)) * cash(this.count) * cash(this.count + 1);
    const total = () => this.capital.reduce((sum, value) => sum + value, 0);
    const shared = (this.jump * total() + fresh) / factors.length;
    this.capital = this.capital.map((own, bet) => Math.min(((1 - this.jump) * own + shared) * factors[bet], MOST_CAPITAL));
    this.count += 1;
    const evidence = total() + cash(this.count);
    this.log.push(Math.log10(evidence));
    return evidence;
  }
}

class DriftMonitor {
  /* level: α', or null where the rule allows no alarm from labels. risks: first risks of the calibration examples, on the grid of
   * `decide/risk_grid.py`, whose cells have this width and offset. */
  constructor({ level, risks, delta, width, offset }) {
    Object.assign(this, { level, width, offset });
    this.limit = 1 / delta;
    this.bag = sorted(risks);
    this.start = mix(0n);
    this.number = 0;
    this.misses = new Wealth(SHARES.length, 0);
    this.inputs = new Wealth(TILTS.length, JUMP);
    this.alarms = {}; // by kind: the number of decisions that it rests on, and the evidence
  }

  /* A decision and whether it missed; null where its label is not known. */
  add({ firstRisk }, miss) {
    const word = mix(BigInt.asUintN(64, this.start + BigInt(this.number) * GAMMA));
    this.number += 1;
    if (firstRisk !== null && !Number.isNaN(firstRisk)) {
      const p = this.smoothedRank(firstRisk, Number(word) / 2 ** 64);
      this.raise("inputs", this.inputs.bet(TILTS.map((tilt) => 1 + tilt * (p - 0.5))));
    }
    if (miss !== null && this.level !== null) {
      this.raise("misses", this.misses.bet(SHARES.map((share) => 1 + share * (Number(miss) / this.level - 1))));
    }
  }

  /* The middle of the cell of a risk: risks that rounding moves apart are equal. */
  middle(risk) {
    if (!Number.isFinite(risk)) return risk;
    return (Math.floor((risk - this.offset) / this.width) + 0.5) * this.width + this.offset;
  }

  /* (values below + uniform · (equal values and this one)) / (size + 1). */
  smoothedRank(firstRisk, uniform) {
    const risk = this.middle(firstRisk);
    const below = this.bag.filter((value) => value < risk).length;
    const equal = this.bag.filter((value) => value === risk).length;
    const p = (below + uniform * (equal + 1)) / (this.bag.length + 1);
    this.bag = sorted([...this.bag, risk]);
    return p;
  }

  raise(kind, evidence) {
    if (evidence >= this.limit && !this.alarms[kind]) this.alarms[kind] = { number: this.number, evidence };
  }
}

/* A threshold that follows the labels. `reach` holds the safest and the boldest threshold; large thresholds are safe where sign is -1. */
class AdaptiveRule {
  constructor({ threshold, reach, sign, alpha, rate }) {
    const [safe, bold] = reach.map((end) => sign * end);
    Object.assign(this, { sign, alpha, rate, low: safe - rate * alpha, high: Math.max(safe, bold) });
    this.position = Math.min(Math.max(sign * threshold, this.low), this.high);
    this.log = [];
  }

  /* The threshold of the next decision: infinite if nothing may stop. */
  get threshold() {
    return this.position > this.low ? this.sign * this.position : this.sign * -Infinity;
  }

  /* The largest share of misses in a window of inputs, whose labels all come at once. */
  bound(window) {
    return this.alpha + ((this.high - this.low) / this.rate + 1 - this.alpha) / window;
  }

  update(miss) {
    this.position = Math.min(this.high, this.position + this.rate * (this.alpha - Number(miss)));
    this.log.push(this.sign * Math.max(this.position, this.low));
  }
}
