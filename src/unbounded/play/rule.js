"use strict";
// `HeldOutAscent` of the library: q(ℓ; μ, s) goes where held-out rows say that layers are worth
// something. The names and constants are those of src/unbounded/steps/held_out.py.

const LITTLE = 1e-3;
// The library keeps the grid in single precision.
const PLACES = [-4, -2, -1, -0.5, -0.2, 0, 0.2, 0.5, 1, 2, 4].map(Math.fround);
const STRETCHES = [-0.8, -0.4, -0.2, -0.1, 0, 0.1, 0.2, 0.4, 0.8].map((step) =>
  Math.fround(Math.exp(Math.fround(step))),
);

/** Means and standard errors over the rows `out[at … at+rows)`. */
function meanOf(values, at, rows) {
  let sum = 0;
  for (let i = at; i < at + rows; i++) sum += values[i];
  return sum / rows;
}

function errorOf(values, at, rows, mean) {
  let sum = 0;
  for (let i = at; i < at + rows; i++) sum += (values[i] - mean) ** 2;
  return Math.sqrt(sum / rows / Math.max(rows - 1, 1));
}

/** How far scores drift apart under q, other than by deeper depths pulling ahead. */
function behind(gaps, q, depth) {
  let gap = 0;
  let place = 0;
  for (let l = 0; l < depth; l++) {
    gap += q[l] * gaps[l];
    place += q[l] * (l + 1);
  }
  let [squares, along, wide] = [0, 0, 0];
  for (let l = 0; l < depth; l++) {
    const offset = l + 1 - place;
    squares += q[l] * (gaps[l] - gap) ** 2;
    along += q[l] * (gaps[l] - gap) * offset;
    wide += q[l] * offset ** 2;
  }
  along = Math.max(along / Math.sqrt(Math.max(wide, 1e-12)), 0);
  return Math.sqrt(Math.max(squares - along ** 2, 0));
}

class HeldOutAscent {
  constructor(options = {}) {
    const usual = { memory: 0.05, speed: 0.0125, price: 0.5, floor: 11, caution: 32, narrowest: 0.5 };
    Object.assign(this, usual, options); // and `reference`, place and spread of ρ
    Object.assign(this, { since: 0, drift: 0, generalises: 0, looks: 0, mean: 0, width: 0 });
    Object.assign(this, { arrived: 0, rests: 0, total: 0, learnt: 0, ahead: 0, rows: 0, size: 0 });
    this.makeRoom(32, 0);
  }

  /** Arrays for so many depths and held-out rows; what is there stays. */
  makeRoom(size, rows) {
    const before = this.size ? this : null;
    for (const name of ["sums", "train", "fast", "seen", "slow", "gaps"]) {
      const found = new Float64Array(size);
      if (before) found.set(before[name]);
      this[name] = found;
    }
    const gains = new Float64Array(size * rows);
    if (before && rows === this.rows) gains.set(this.gains);
    this.gains = gains; // of r, (depth, rows)
    this.scores = new Float64Array(rows); // of the last depth, row by row
    this.before = new Float64Array(rows);
    this.underQ = new Float64Array(rows);
    this.worth = new Float64Array(size);
    this.size = size;
    this.rows = rows;
  }

  /** Whether it looks after so many epochs: once q rests, 32 times within the memory or more. */
  isDue(epoch) {
    const longest = Math.max(1, Math.floor((this.memory * epoch) / 32));
    return this.rests === 0 || epoch % 2 ** Math.floor(Math.log2(longest)) === 0;
  }

  /** Add up what each depth explains of the training rows of a step. */
  update(logLik, last) {
    if (last > this.size) this.makeRoom(2 * last, this.rows);
    for (let l = 0; l < last; l++) this.sums[l] += logLik[l];
    this.since += 1;
  }

  /**
   * Bring the running means up to date after an epoch.
   *
   * logLik: log p(y_i; Ω_ℓ(x_i)) of the held-out rows, (depth, rows); q: q(ℓ); guess: log p₀(y_i).
   */
  look(logLik, depth, rows, q, guess) {
    if (depth > this.size || rows !== this.rows) this.makeRoom(Math.max(2 * depth, 32), rows);
    const steps = Math.max(this.since, 1);
    this.total += steps;
    const memory = Math.max(this.memory * this.total, 64, 4 * steps);
    const { gains, scores, before, underQ, slow } = this;
    before.fill(0);
    underQ.fill(0);
    let fittedBefore = 0;
    for (let l = 0; l < depth; l++) {
      const inside = q[l] > 0;
      this.seen[l] = inside ? this.seen[l] + 1 : 0;
      const young = 2 / (this.seen[l] + 1);
      const rate = inside ? Math.min(Math.max(steps / memory, young), 1) : 0;
      const quick = inside ? Math.min(Math.max((4 * steps) / memory, young), 1) : 0;
      const at = l * rows;
      let fresh = 0;
      for (let i = 0; i < rows; i++) {
        const [one, other] = [logLik[at + i], guess[i]];
        const high = Math.max(one, other);
        const score = high + Math.log1p(Math.exp(Math.min(one, other) - high)) - Math.LN2;
        scores[i] = inside ? score : 0;
        const gain = scores[i] - before[i];
        fresh += gain;
        gains[at + i] += (gain - gains[at + i]) * rate;
        underQ[i] += q[l] * scores[i];
        before[i] = scores[i];
      }
      this.fast[l] += (fresh / rows - this.fast[l]) * quick;
      const fitted = this.sums[l] / steps;
      if (this.sums[l] !== 0) this.train[l] += (fitted - fittedBefore - this.train[l]) * quick;
      fittedBefore = fitted;
      slow[l] = meanOf(gains, at, rows) + (l ? slow[l - 1] : 0);
    }
    this.seen.fill(0, depth);
    this.noteDrift(q, depth, rows, guess, steps, memory);
    this.noteLearnt(q, depth, rows, guess);
    this.checkRest(q, depth, errorOf(underQ, 0, rows, meanOf(underQ, 0, rows)) * rows);
    this.sums.fill(0);
    this.ahead += this.since;
    this.since = 0;
  }

  noteDrift(q, depth, rows, guess, steps, memory) {
    let sum = 0;
    for (let l = 0; l < depth; l++) {
      sum += this.fast[l];
      this.gaps[l] = sum - this.slow[l];
    }
    let drift = behind(this.gaps, q, depth) * rows;
    if (this.looks === 0) { // at first everything is new
      const learnt = meanOf(this.underQ, 0, rows) - meanOf(guess, 0, rows);
      drift = Math.max(learnt, 0) * rows;
    }
    this.looks += 1;
    const rate = Math.min(Math.max((4 * steps) / memory, 2 / (this.looks + 1)), 1);
    this.drift += (drift - this.drift) * rate;
  }

  /** Whether held-out rows can tell what layers are worth, and how much is learnt of them. */
  noteLearnt(q, depth, rows, guess) {
    let best = 0;
    let highest = -Infinity;
    let fitted = -Infinity;
    let sum = 0;
    for (let l = 0; l < depth; l++) {
      sum += this.train[l];
      if (!(q[l] > LITTLE)) continue;
      if (this.slow[l] > highest) [best, highest] = [l, this.slow[l]];
      if (this.sums[l] !== 0) fitted = Math.max(fitted, sum);
    }
    const ahead = this.scores;
    for (let i = 0; i < rows; i++) ahead[i] = -guess[i];
    for (let l = 0; l <= best; l++) {
      for (let i = 0; i < rows; i++) ahead[i] += this.gains[l * rows + i];
    }
    const mean = meanOf(ahead, 0, rows);
    const sure = mean > 3 * errorOf(ahead, 0, rows, mean);
    fitted -= meanOf(guess, 0, rows);
    if (sure && (mean > 0.05 || fitted > 0.3)) this.generalises = 1;
    this.learnt = Math.max(mean, 0) * rows;
  }

  /** Rest once q has stayed while the steps grew by half, and the score drifts no more. */
  checkRest(q, depth, noise) {
    let mean = 0;
    for (let l = 0; l < depth; l++) mean += q[l] * (l + 1);
    let width = 0;
    for (let l = 0; l < depth; l++) width += q[l] * (l + 1 - mean) ** 2;
    width = Math.sqrt(width);
    const apart = Math.abs(mean - this.mean) + Math.abs(width - this.width);
    const stays = apart < 0.05 * (1 + mean);
    const long = this.total > Math.max(1.5 * this.arrived, this.arrived + 500);
    const rests = stays && this.drift < noise && long && this.generalises > 0;
    this.rests = stays ? Math.max(this.rests, rests ? 1 : 0) : 0;
    if (!stays) [this.mean, this.width, this.arrived] = [mean, width, this.total];
  }

  /** Move μ and s before an epoch, by what the last look has seen. */
  settle(family) {
    if (this.looks === 0) { // what q was before is no evidence
      family.put(...this.reference);
      return;
    }
    const [place, spread] = [family.numbers[0], family.spread];
    const steps = this.ahead; // that the last look was about
    if (steps === 0) return;
    this.ahead = 0;
    const depth = Math.min(family.end(), this.size);
    const temperature = 1 + this.caution * Math.max(this.drift - 0.5, 0);
    this.findWorth(family, place, spread, depth);
    const pace = steps * this.speed * Math.max(place / 4, 1);
    const stretch = (steps * this.speed) / 5;
    const widest = Math.max(place / 2, this.reference[1]);
    let [highest, now, toPlace, toSpread] = [-Infinity, 0, place, spread];
    for (const step of PLACES) {
      for (const factor of STRETCHES) {
        const at = Math.max(place + step, 0.5);
        const wide = Math.max(Math.min(factor * spread, widest), this.narrowest);
        const bound = this.bound(family, at, wide, depth, temperature);
        if (bound > highest) [highest, toPlace, toSpread] = [bound, at, wide];
        if (step === 0 && factor === 1) now = bound;
      }
    }
    const clamp = (value, most) => Math.min(Math.max(value, -most), most);
    if (steps > 0 && highest > now + (this.rests > 0 ? 3 * this.floor : 1e-6)) {
      const change = clamp(Math.log(toSpread / spread), stretch);
      family.put(
        place + clamp(toPlace - place, pace),
        Math.max(spread * Math.exp(change), this.narrowest),
      );
    }
  }

  /** Σ_ℓ q(ℓ) U_ℓ − T·KL(q ‖ ρ) of the member at place and spread. */
  bound(family, place, spread, depth, temperature) {
    const size = Math.ceil(2.2 * depth) + 12; // as far as a member at the last depth can reach
    this.prepareReference(size);
    const [logQ, logRho] = [this.logQ, this.logRho];
    family.logProbsAt(place, spread, logQ, size);
    let found = 0;
    for (let l = 0; l < size; l++) {
      const q = Math.exp(logQ[l]);
      if (q === 0) continue;
      // Beyond the layers that there are nothing is known: neither gain nor loss.
      const value = this.worth[Math.min(l, depth - 1)];
      found += q * (value - temperature * (logQ[l] - logRho[l]));
    }
    return found;
  }

  /** log ρ(ℓ) for ℓ = 1 … size, and room for log q(ℓ). */
  prepareReference(size) {
    if (this.logRho && this.logRho.length === size) return;
    const [place, spread] = this.reference;
    this.logRho = new Float64Array(size);
    this.logQ = new Float64Array(size);
    for (let l = 0; l < size; l++) this.logRho[l] = -((l + 1 - place) ** 2) / (2 * spread ** 2);
    logSoftmax(this.logRho, size);
  }

  /** U_ℓ of the depths that there are. */
  findWorth(family, place, spread, depth) {
    const { gains, rows, worth, gaps } = this;
    family.logProbsAt(place, spread, gaps, depth);
    const floor = Math.min(0.05 * this.learnt, this.floor);
    worth[0] = 0;
    for (let l = 1; l < depth; l++) {
      const held = meanOf(gains, l * rows, rows);
      const error = errorOf(gains, l * rows, rows, held);
      let net = rows * (this.train[l] - 0.2 * this.price * error);
      if (this.generalises) net = rows * (held - this.price * error) - floor;
      const trained = Math.exp(gaps[l]) > LITTLE && this.seen[l] > 0;
      worth[l] = worth[l - 1] + (trained ? net : 0);
    }
  }
}
