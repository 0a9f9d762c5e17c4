"use strict";
// Dynamic variational inference of one network on points of the plane: the body of the paper's
// Algorithm 1, as the library has it. All numbers are doubles in one `Memory`.

const [BETA1, BETA2, ADAM_EPS] = [0.9, 0.999, 1e-8];
const MOST_LAYERS = 64; // the page would become slow

/** A layer or head born with weights (outputs × inputs) and biases, all one after another. */
class Unit {
  constructor(memory, outputs, inputs, first) {
    Object.assign(this, { outputs, inputs, steps: 0, averaged: 0 });
    this.size = outputs * (inputs + 1);
    for (const name of ["value", "grad", "moment", "square", "average"]) {
      this[name] = memory.alloc(this.size);
    }
    memory.floats.set(first, this.value);
    memory.floats.set(first, this.average);
  }
}

/** First weights as the library draws them, by the page's own random numbers. */
function firstWeights(seed, role, depth, outputs, inputs, init) {
  const random = new Random(seed, role === "hidden" ? 1 : 2, depth);
  const found = new Float64Array(outputs * (inputs + 1));
  const he = role === "hidden" && init === "he";
  const count = he ? outputs * inputs : found.length;
  for (let i = 0; i < count; i++) {
    if (he) found[i] = random.normal() * Math.sqrt(2 / inputs);
    else found[i] = (2 * random.uniform() - 1) / Math.sqrt(inputs);
  }
  return found;
}

class Trainer {
  /**
   * options: width, norm (pre-norm layers or plain ones), init ("he" or "default"), rule
   *   ("held-out" or "gradient"), rate (λ of the Poisson), place and spread (of ρ), ascent
   *   (options of the rule), prior (the Poisson prior's rate), lr, depthRatio, average and clip (0
   *   for none), batch, seed, fast.
   * data: { train: { x, y }, held: { x, y } }, x of (rows, 2) and y of classes 0 and 1.
   * given: { first(role, depth, outputs, inputs), order(epoch, rows) } instead of random numbers.
   */
  constructor(options, data, given = {}) {
    this.options = options;
    this.classes = 2;
    this.memory = new Memory(options.fast ?? true);
    const { first, order } = given;
    this.first = first ?? ((...at) => firstWeights(options.seed, ...at, options.init));
    this.random = new Random(options.seed, 3);
    this.givenOrder = order;
    if (options.rule === "gradient") {
      this.family = new TruncatedPoisson(options.rate);
      this.rule = null;
    } else {
      this.family = new TruncatedNormal(options.place, options.spread);
      const reference = [options.place, options.spread];
      this.rule = new HeldOutAscent({ reference, ...options.ascent });
    }
    const count = this.family.numbers.length;
    this.depthGrad = new Float64Array(count);
    this.depthMoment = new Float64Array(count);
    this.depthSquare = new Float64Array(count);
    this.depthAverage = null; // begins with the first step
    this.depthSteps = 0;
    this.hidden = [];
    this.heads = [];
    this.states = []; // of each layer what a batch leaves: hidden states, normed inputs, …
    this.births = [];
    this.epoch = 0;
    this.steps = 0;
    this.place(data);
    this.logQ = new Float64Array(2 * MOST_LAYERS);
    this.q = new Float64Array(2 * MOST_LAYERS);
    this.slopes = new Float64Array(2 * MOST_LAYERS);
    this.costs = new Float64Array(2 * MOST_LAYERS);
    this.meanLogLik = new Float64Array(2 * MOST_LAYERS);
    this.terms = { logLik: 0, depthKl: 0, weightKl: 0, elbo: 0 };
    this.grow();
  }

  /** Put the rows into memory, and make room for batches. */
  place(data) {
    const { memory, options } = this;
    this.rows = data.train.y.length;
    this.heldRows = data.held.y.length;
    this.batch = Math.min(options.batch, this.rows);
    this.chunk = Math.max(this.batch, 256);
    const width = options.width;
    const put = (values) => {
      const at = memory.alloc(values.length);
      memory.floats.set(values, at);
      return at;
    };
    this.x = put(data.train.x);
    this.y = Uint8Array.from(data.train.y);
    this.heldX = put(data.held.x);
    this.heldY = Uint8Array.from(data.held.y);
    this.batchX = memory.alloc(2 * this.chunk);
    this.batchY = new Uint8Array(this.chunk);
    this.order = new Uint32Array(this.rows);
    this.turned = memory.alloc(width * Math.max(width, 2)); // weights, transposed
    this.zeros = memory.alloc(Math.max(width, 2));
    this.up = memory.alloc(this.chunk * width); // dLoss/dh of the layer at hand
    this.inner = memory.alloc(this.chunk * width);
    this.below = memory.alloc(this.chunk * width);
    this.mixed = new Float64Array(this.chunk * this.classes);
    this.guess = new Float64Array(this.heldRows);
    const counts = [1, 1]; // frequencies, with one row more of each
    for (const label of this.heldY) counts[label] += 1;
    for (let i = 0; i < this.heldRows; i++) {
      this.guess[i] = Math.log(counts[this.heldY[i]] / (this.heldRows + 2));
    }
    this.heldLogLik = new Float64Array(0);
  }

  // Growth -----------------------------------------------------------------------------------

  /** Create the layers that the support of q needs; later steps use depths 1 … `last`. */
  grow() {
    const last = this.family.end(this.family.numbers, MOST_LAYERS + 1);
    if (last > MOST_LAYERS) {
      throw new RangeError(`q(ℓ) asks for more than the ${MOST_LAYERS} layers that fit here`);
    }
    const { memory, classes, chunk } = this;
    const width = this.options.width;
    while (this.hidden.length < last) {
      const depth = this.hidden.length + 1;
      const inputs = depth === 1 ? 2 : width;
      const weights = this.first("hidden", depth, width, inputs);
      this.hidden.push(new Unit(memory, width, inputs, weights));
      this.heads.push(new Unit(memory, classes, width, this.first("heads", depth, classes, width)));
      this.states.push({
        hidden: memory.alloc(chunk * width),
        before: memory.alloc(chunk * width), // before the activation
        normed: memory.alloc(chunk * width),
        scale: memory.alloc(chunk), // one over the deviation of what was normed
        out: memory.alloc(chunk * classes), // outputs, then their derivatives
      });
      if (this.steps > 0) this.births.push({ depth, epoch: this.epoch + 1, step: this.steps + 1 });
    }
    this.last = last;
  }

  // The network ------------------------------------------------------------------------------

  /** Ω_ℓ(x) for ℓ = 1 … last into `states[ℓ−1].out`; `which` is "value" or "average". */
  forward(x, rows, last, which) {
    const { memory, hidden, heads, states, turned, classes } = this;
    const { width, norm } = this.options;
    const M = memory.floats;
    for (let l = 0; l < last; l++) {
      const { hidden: h, before, normed, scale, out } = states[l];
      const under = l ? states[l - 1].hidden : x;
      const adds = norm && l > 0;
      const input = adds ? normed : under;
      if (adds) memory.normalise(under, normed, scale, rows, width);
      const layer = hidden[l];
      const weights = layer[which];
      transpose(M, weights, turned, width, layer.inputs);
      const bias = weights + width * layer.inputs;
      memory.product(input, layer.inputs, 1, turned, before, rows, layer.inputs, width, bias, 0);
      if (adds) memory.addRectified(before, under, h, rows * width);
      else memory.rectify(before, h, rows * width);
      const head = heads[l][which];
      transpose(M, head, turned, classes, width);
      memory.product(h, width, 1, turned, out, rows, width, classes, head + classes * width, 0);
    }
  }

  /** Gradients of all active weights from the derivatives of the loss in the outputs. */
  backward(x, rows, last) {
    const { memory, hidden, heads, states, up, inner, below, zeros, classes } = this;
    const { width, norm } = this.options;
    const M = memory.floats;
    for (let l = last - 1; l >= 0; l--) {
      const { hidden: h, before, normed, scale, out } = states[l];
      const head = heads[l];
      memory.product(out, 1, classes, h, head.grad, classes, rows, width, zeros, 0);
      columnSums(M, out, head.grad + classes * width, rows, classes);
      const [first, step] = l === last - 1 ? [zeros, 0] : [up, width];
      memory.product(out, classes, 1, head.value, up, rows, classes, width, first, step);
      memory.mask(before, up, inner, rows * width);
      const layer = hidden[l];
      const adds = norm && l > 0;
      const input = adds ? normed : l ? states[l - 1].hidden : x;
      const inputs = layer.inputs;
      memory.product(inner, 1, width, input, layer.grad, width, rows, inputs, zeros, 0);
      columnSums(M, inner, layer.grad + width * inputs, rows, width);
      if (l === 0) break;
      const into = adds ? below : up;
      memory.product(inner, width, 1, layer.value, into, rows, width, width, zeros, 0);
      if (adds) memory.addNormGradient(below, normed, scale, up, rows, width);
    }
  }

  /**
   * From outputs to log p(y; Ω_ℓ(x)): means by depth into `meanLogLik`, single ones into
   * `kept` (depth × stride, from column `at`). The mixture goes into `mixed`. With `slopes` the
   * outputs turn into dLoss/dΩ = q(ℓ)/rows · (p − 1_y).
   */
  score(y, yAt, rows, last, { slopes = false, kept = null, stride = 0, at = 0 } = {}) {
    const { mixed, q, states } = this;
    const M = this.memory.floats;
    mixed.fill(0, 0, 2 * rows);
    for (let l = 0; l < last; l++) {
      const out = states[l].out;
      const mass = q[l];
      let sum = 0;
      for (let i = 0; i < rows; i++) {
        const gap = M[out + 2 * i + 1] - M[out + 2 * i];
        const label = y[yAt + i];
        const towards = label ? gap : -gap;
        // log σ(t), by the side on which exp does not overflow
        const small = Math.exp(-Math.abs(towards));
        const found = Math.min(towards, 0) - Math.log1p(small);
        sum += found;
        const one = (gap > 0 ? 1 : small) / (1 + small);
        mixed[2 * i] += mass * (1 - one);
        mixed[2 * i + 1] += mass * one;
        if (kept) kept[l * stride + at + i] = found;
        if (slopes) {
          const slope = (mass / rows) * (label ? -(gap > 0 ? small : 1) / (1 + small) : one);
          M[out + 2 * i] = -slope;
          M[out + 2 * i + 1] = slope;
        }
      }
      this.meanLogLik[l] = sum / rows;
    }
    let right = 0;
    for (let i = 0; i < rows; i++) right += mixed[2 * i + 1] > mixed[2 * i] === y[yAt + i] > 0;
    return right;
  }

  // A step -----------------------------------------------------------------------------------

  /** Before the first step of an epoch. */
  beginEpoch() {
    if (this.rule) this.rule.settle(this.family);
    if (this.givenOrder) this.order.set(this.givenOrder(this.epoch, this.rows));
    else this.random.permute(this.order, this.rows);
    this.next = 0;
    this.right = 0;
    this.sums = { logLik: 0, depthKl: 0, weightKl: 0, elbo: 0, steps: 0 };
  }

  /** The next batch of the epoch; whether there is a further one. */
  step() {
    this.grow();
    if (this.depthAverage === null) this.depthAverage = this.family.numbers.slice();
    const { batchX, batchY, order, last, q, logQ } = this;
    const M = this.memory.floats;
    const rows = Math.min(this.batch, this.rows - this.next);
    for (let i = 0; i < rows; i++) {
      const row = order[this.next + i];
      M[batchX + 2 * i] = M[this.x + 2 * row];
      M[batchX + 2 * i + 1] = M[this.x + 2 * row + 1];
      batchY[i] = this.y[row];
    }
    this.next += rows;
    this.family.logProbs(logQ, last);
    for (let l = 0; l < last; l++) q[l] = Math.exp(logQ[l]);
    this.forward(batchX, rows, last, "value");
    this.right += this.score(batchY, 0, rows, last, { slopes: true });
    this.evaluate(last);
    this.backward(batchX, rows, last);
    this.addPrior(last);
    if (this.rule) this.rule.update(this.meanLogLik, last);
    else this.family.backward(this.slopes, logQ, last, this.depthGrad);
    this.descend(last);
    this.steps += 1;
    return this.next < this.rows;
  }

  /** The terms of 𝓛(q) in nats, and the derivative of −𝓛/n in log q(ℓ). */
  evaluate(last) {
    const { q, logQ, slopes, costs, terms, rows: n } = this;
    const M = this.memory.floats;
    let below = 0;
    Object.assign(terms, { logLik: 0, depthKl: 0, weightKl: 0 });
    for (let l = 0; l < last; l++) {
      below += squares(M, this.hidden[l]) / 2;
      costs[l] = below + squares(M, this.heads[l]) / 2;
      const logLik = n * this.meanLogLik[l];
      const ratio = logQ[l] - poissonLogPrior(l + 1, this.options.prior);
      terms.logLik += q[l] * logLik;
      terms.depthKl += q[l] * ratio;
      terms.weightKl += q[l] * costs[l];
      slopes[l] = (q[l] * (-logLik + ratio + 1 + costs[l])) / n;
    }
    terms.elbo = terms.logLik - terms.depthKl - terms.weightKl;
    if (!Number.isFinite(terms.elbo)) {
      throw new RangeError("the loss is no longer a number: try a lower learning rate");
    }
    for (const name of ["logLik", "depthKl", "weightKl", "elbo"]) this.sums[name] += terms[name];
    this.sums.steps += 1;
  }

  /** The gradient of the weights' term: layer k is used with q(ℓ≥k), head ℓ with q(ℓ). */
  addPrior(last) {
    const M = this.memory.floats;
    let used = 0;
    for (let l = last - 1; l >= 0; l--) {
      used += this.q[l];
      addScaled(M, this.hidden[l], used / this.rows);
      addScaled(M, this.heads[l], this.q[l] / this.rows);
    }
  }

  /** Adam on the active weights, with clipping, and the moving average of what moved. */
  descend(last) {
    const M = this.memory.floats;
    const { clip, lr, depthRatio, average } = this.options;
    let factor = 1;
    if (clip) {
      let total = 0;
      for (let l = 0; l < last; l++) {
        total += squares(M, this.hidden[l], "grad") + squares(M, this.heads[l], "grad");
      }
      if (!this.rule) for (const slope of this.depthGrad) total += slope * slope;
      factor = Math.min(clip / (Math.sqrt(total) + 1e-6), 1);
    }
    for (let l = 0; l < last; l++) {
      moveUnit(M, this.hidden[l], lr, factor, average);
      moveUnit(M, this.heads[l], lr, factor, average);
    }
    this.depthSteps += 1;
    const numbers = this.family.numbers;
    if (!this.rule) {
      const [one, two] = corrections(this.depthSteps);
      for (let i = 0; i < numbers.length; i++) {
        const slope = this.depthGrad[i] * factor;
        const moment = (this.depthMoment[i] += (slope - this.depthMoment[i]) * (1 - BETA1));
        const square = BETA2 * this.depthSquare[i] + (1 - BETA2) * slope * slope;
        this.depthSquare[i] = square;
        numbers[i] -= (((lr * depthRatio) / one) * moment) / (Math.sqrt(square) / two + ADAM_EPS);
      }
    }
    const kept = average ? shortMemory(this.depthSteps, average) : 0;
    for (let i = 0; i < numbers.length; i++) {
      this.depthAverage[i] += (numbers[i] - this.depthAverage[i]) * (1 - kept);
    }
  }

  /** Scores of the held-out rows by the averaged weights: the epoch's row of the history. */
  endEpoch() {
    const last = this.posterior();
    const size = last * this.heldRows;
    if (this.heldLogLik.length !== size) this.heldLogLik = new Float64Array(size);
    const options = { kept: this.heldLogLik, stride: this.heldRows };
    let right = 0;
    let logScore = 0;
    for (let at = 0; at < this.heldRows; at += this.chunk) {
      const rows = Math.min(this.chunk, this.heldRows - at);
      this.forward(this.heldX + 2 * at, rows, last, "average");
      right += this.score(this.heldY, at, rows, last, { ...options, at });
      for (let i = 0; i < rows; i++) logScore += Math.log(this.mixed[2 * i + this.heldY[at + i]]);
    }
    this.epoch += 1;
    if (this.rule?.isDue(this.epoch)) {
      this.rule.look(this.heldLogLik, last, this.heldRows, this.q, this.guess);
    }
    const sums = this.sums;
    return {
      epoch: this.epoch,
      train: this.right / this.rows,
      held: right / this.heldRows,
      logScore: logScore / this.heldRows,
      mean: this.mean,
      last: this.reach,
      layers: this.hidden.length,
      elbo: sums.elbo / sums.steps,
      rests: this.rule ? this.rule.rests > 0 : false,
    };
  }

  /**
   * q(ℓ) of the averages, over the layers that are born, into `q`; its last depth.
   *
   * Its mean and end, `mean` and `reach`, are those of q itself: right after a step that moved λ
   * it may reach beyond the layers.
   */
  posterior() {
    const { logQ, q } = this;
    const numbers = this.depthAverage ?? this.family.numbers;
    this.reach = this.family.end(numbers, MOST_LAYERS + 1);
    const last = Math.min(this.reach, this.hidden.length);
    this.family.logProbs(logQ, this.reach, numbers);
    this.mean = 0;
    for (let l = 0; l < this.reach; l++) this.mean += (l + 1) * Math.exp(logQ[l]);
    if (last < this.reach) logSoftmax(logQ, last);
    for (let l = 0; l < last; l++) q[l] = Math.exp(logQ[l]);
    return last;
  }

  /** A whole epoch. */
  run() {
    this.beginEpoch();
    while (this.step());
    return this.endEpoch();
  }

  /** P(class 1) of the mixture at each of the points, (rows, 2), by the averaged weights. */
  predict(points) {
    const found = new Float64Array(points.length / 2);
    if (!this.hidden.length) return found.fill(0.5);
    const last = this.posterior();
    const nobody = new Uint8Array(this.chunk);
    for (let at = 0; at < found.length; at += this.chunk) {
      const rows = Math.min(this.chunk, found.length - at);
      this.memory.floats.set(points.subarray(2 * at, 2 * (at + rows)), this.batchX);
      this.forward(this.batchX, rows, last, "average");
      this.score(nobody, 0, rows, last);
      for (let i = 0; i < rows; i++) found[at + i] = this.mixed[2 * i + 1];
    }
    return found;
  }
}

// Loops over numbers ---------------------------------------------------------------------------

function transpose(M, from, to, rows, columns) {
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) M[to + c * rows + r] = M[from + r * columns + c];
  }
}

function columnSums(M, from, to, rows, columns) {
  for (let c = 0; c < columns; c++) M[to + c] = 0;
  for (let r = 0, i = from; r < rows; r++) {
    for (let c = 0; c < columns; c++, i++) M[to + c] += M[i];
  }
}

function squares(M, unit, of = "value") {
  let sum = 0;
  for (let i = unit[of], end = i + unit.size; i < end; i++) sum += M[i] * M[i];
  return sum;
}

/** Add factor·ν to the gradient. */
function addScaled(M, unit, factor) {
  const { value, grad, size } = unit;
  for (let i = 0; i < size; i++) M[grad + i] += factor * M[value + i];
}

/** Bias corrections of Adam after so many steps. */
function corrections(steps) {
  return [1 - BETA1 ** steps, Math.sqrt(1 - BETA2 ** steps)];
}

/** The decay of the moving average: less at first, so that first weights are soon forgotten. */
function shortMemory(steps, decay) {
  return Math.min(decay, (1 + steps) / (10 + steps));
}

/** Adam, and the average. */
function moveUnit(M, unit, lr, factor, average) {
  const { value, grad, moment, square, average: mean, size } = unit;
  unit.steps += 1;
  const [one, two] = corrections(unit.steps);
  const rate = lr / one;
  const fresh = average ? 1 - shortMemory(unit.steps, average) : 1;
  for (let i = 0; i < size; i++) {
    const slope = M[grad + i] * factor;
    const first = M[moment + i] + (slope - M[moment + i]) * (1 - BETA1);
    const second = BETA2 * M[square + i] + (1 - BETA2) * slope * slope;
    M[moment + i] = first;
    M[square + i] = second;
    const moved = M[value + i] - (rate * first) / (Math.sqrt(second) / two + ADAM_EPS);
    M[value + i] = moved;
    M[mean + i] += (moved - M[mean + i]) * fresh;
  }
}
