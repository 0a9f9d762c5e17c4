"use strict";
// Pure functions: the normal distribution, the families q(ℓ; λ), the prior p(ℓ), random numbers.

const NO_MASS = -1e30; // stands for log 0
const TINY = 1e-30; // mass below this is none

/** erf(x), by a series of terms of one sign; for small |x|. */
function erfSeries(x) {
  let term = x;
  let sum = x;
  for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
    term *= (2 * x * x) / (2 * n + 1);
    sum += term;
  }
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

/** exp(x²) erfc(x) for x ≥ 2, by its continued fraction. */
function erfcxFraction(x) {
  let below = x;
  for (let n = Math.ceil(12 + 260 / (x * x)); n >= 1; n--) below = x + n / 2 / below;
  return 1 / (Math.sqrt(Math.PI) * below);
}

/** The error function. */
function erf(x) {
  if (Math.abs(x) < 2) return erfSeries(x);
  return x < 0 ? erfc(-x) - 1 : 1 - erfc(x);
}

/** 1 − erf(x), without loss where that is small. */
function erfc(x) {
  if (x < 2) return 1 - erf(x);
  return x > 27 ? 0 : Math.exp(-x * x) * erfcxFraction(x);
}

/** log Φ(z) of the standard normal distribution. */
function logNdtr(z) {
  const x = -z * Math.SQRT1_2;
  if (x >= 2) return Math.log(erfcxFraction(x) / 2) - x * x;
  return x < 0 ? Math.log1p(-erfc(-x) / 2) : Math.log(erfc(x) / 2);
}

const softplus = (x) => (x > 30 ? x : Math.log1p(Math.exp(x)));
const inverseSoftplus = (x) => x + Math.log(-Math.expm1(-x));

/** log k! for k = 0, 1, …; a table that grows. */
const LOG_FACTORIALS = [0];
function logFactorial(k) {
  while (LOG_FACTORIALS.length <= k) {
    const last = LOG_FACTORIALS.length;
    LOG_FACTORIALS.push(LOG_FACTORIALS[last - 1] + Math.log(last));
  }
  return LOG_FACTORIALS[k];
}

/** In place: scores of `out[0 … size)` to log-probabilities. */
function logSoftmax(out, size) {
  let largest = -Infinity;
  for (let i = 0; i < size; i++) largest = Math.max(largest, out[i]);
  let sum = 0;
  for (let i = 0; i < size; i++) sum += Math.exp(out[i] - largest);
  const constant = largest + Math.log(sum);
  for (let i = 0; i < size; i++) out[i] -= constant;
}

/** The paper's family: ℓ−1 ~ Poisson(λ), cut at the δ-quantile; λ = softplus(raw). */
class TruncatedPoisson {
  constructor(rate, quantile = 0.95) {
    this.quantile = quantile;
    this.numbers = new Float64Array([inverseSoftplus(rate)]);
  }

  /** m(q), the last depth with mass, no further than `most`. */
  end(numbers = this.numbers, most = 1000) {
    const rate = softplus(numbers[0]);
    let below = 0;
    let depth = 0;
    do {
      below += Math.exp(depth * Math.log(rate) - rate - logFactorial(depth));
      depth++;
    } while (below < this.quantile && depth < most);
    return depth;
  }

  /** log q(ℓ) of the depths 1 … size into `out`. */
  logProbs(out, size, numbers = this.numbers) {
    const logRate = Math.log(softplus(numbers[0]));
    for (let k = 0; k < size; k++) out[k] = k * logRate - logFactorial(k);
    logSoftmax(out, size);
  }

  /** From the derivative of something in log q(ℓ) to that in `numbers`, into `out`. */
  backward(slopes, logQ, size, out) {
    const rate = softplus(this.numbers[0]);
    let total = 0;
    for (let k = 0; k < size; k++) total += slopes[k];
    let found = 0;
    for (let k = 0; k < size; k++) found += k * (slopes[k] - Math.exp(logQ[k]) * total);
    out[0] = (found * -Math.expm1(-rate)) / rate;
  }
}

/** A normal distribution in pieces of one depth each, cut at δ without a jump; see the library. */
class TruncatedNormal {
  constructor(place, spread, quantile = 0.99) {
    this.quantile = quantile;
    this.logRest = Math.log1p(-quantile);
    this.numbers = new Float64Array([place, inverseSoftplus(spread)]);
  }

  get spread() {
    return spreadOf(this.numbers);
  }

  put(place, spread) {
    this.numbers[0] = place;
    this.numbers[1] = inverseSoftplus(spread);
  }

  end(numbers = this.numbers, most = 1000) {
    return this.endAt(numbers[0], spreadOf(numbers), most);
  }

  logProbs(out, size, numbers = this.numbers) {
    this.logProbsAt(numbers[0], spreadOf(numbers), out, size);
  }

  /** The first depth with F(ℓ) ≥ δ, no further than `most`. */
  endAt(place, spread, most) {
    const start = logNdtr((place - 0.5) / spread);
    let depth = 1;
    while (depth < most && logNdtr((place - depth - 0.5) / spread) - start > this.logRest + TINY) {
      depth++;
    }
    return depth;
  }

  /** log q(ℓ) of the member at μ = place, s = spread; `NO_MASS` beyond its support. */
  logProbsAt(place, spread, out, size) {
    const start = logNdtr((place - 0.5) / spread);
    let above = 0; // log P(depth > ℓ − 1)
    let depth = 1;
    for (; depth <= size && above > this.logRest + TINY; depth++) {
      const tail = logNdtr((place - depth - 0.5) / spread) - start;
      const gone = Math.min(Math.max(tail, this.logRest) - above, -TINY);
      const score = above + Math.log(-Math.expm1(gone)) - Math.log(this.quantile);
      out[depth - 1] = Math.max(score, Math.log(TINY));
      above = tail;
    }
    for (; depth <= size; depth++) out[depth - 1] = NO_MASS;
    logSoftmax(out, size);
  }
}

/** s of λ = (μ, softplus⁻¹(s)); never so narrow that ratios overflow. */
function spreadOf(numbers) {
  return Math.max(softplus(numbers[1]), 1e-3);
}

/** log p(ℓ) with ℓ−1 ~ Poisson(rate). */
function poissonLogPrior(depth, rate) {
  return (depth - 1) * Math.log(rate) - rate - logFactorial(depth - 1);
}

/** Random numbers from a seed and further whole numbers: streams of their own (sfc32). */
class Random {
  constructor(...seeds) {
    let [a, b, c, d] = [0x9e3779b9, 0x243f6a88, 0xb7e15162, 1];
    const next = () => {
      const t = (((a + b) | 0) + d) | 0;
      d = (d + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = (c << 21) | (c >>> 11);
      c = (c + t) | 0;
      return t >>> 0;
    };
    for (const seed of seeds) {
      a ^= seed;
      for (let i = 0; i < 20; i++) next();
    }
    this.integer = next;
    this.spare = null;
  }

  /** U(0, 1), never 0. */
  uniform() {
    return ((this.integer() >>> 5) * 67108864 + (this.integer() >>> 6) + 0.5) / 9007199254740992;
  }

  /** N(0, 1), by Box and Muller. */
  normal() {
    if (this.spare !== null) {
      const found = this.spare;
      this.spare = null;
      return found;
    }
    const radius = Math.sqrt(-2 * Math.log(this.uniform()));
    const angle = 2 * Math.PI * this.uniform();
    this.spare = radius * Math.sin(angle);
    return radius * Math.cos(angle);
  }

  /** An order of 0 … size−1, into `out`. */
  permute(out, size) {
    for (let i = 0; i < size; i++) out[i] = i;
    for (let i = size - 1; i > 0; i--) {
      const j = Math.floor(this.uniform() * (i + 1));
      [out[i], out[j]] = [out[j], out[i]];
    }
  }
}
