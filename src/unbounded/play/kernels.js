"use strict";
// The loops that take the time, in WebAssembly with two doubles at a time. They are assembled here,
// instruction by instruction; for browsers without them the same stands below in plain
// JavaScript. All arrays live in one memory and are named by the index of their first number.

const PAGE_FLOATS = 8192; // numbers in a page of WebAssembly's memory
const NORM_EPS = 1e-5;

// Instructions, each a list of bytes.
const [GET, SET, ADD, TIMES, LESS, AT_MOST] = [0x20, 0x21, 0x6a, 0x6c, 0x48, 0x4c];
const [BLOCK, LOOP, IF, END, AGAIN, LEAVE_IF, NOT] = [0x02, 0x03, 0x04, 0x0b, 0x0c, 0x0d, 0x45];
const vector = (...code) => [0xfd, ...code];
const [V_ADD, V_SUB, V_MUL, V_MAX] = [0xf0, 0xf1, 0xf2, 0xf5].map((code) => vector(code, 1));
const [V_LOAD, V_STORE, V_SPREAD] = [vector(0, 4), vector(0x0b, 4), vector(0x0a, 3)];
const [V_OF, V_ABOVE, V_AND, LANE_0, LANE_1] = [
  vector(0x14), vector(0x4a), vector(0x4e), vector(0x21, 0), vector(0x21, 1),
];
const [D_ADD, D_DIV, D_ROOT, D_STORE, D_OF] = [
  [0xa0], [0xa3], [0x9f], [0x39, 3, 0], [0xb7],
];

function leb(value) {
  const bytes = [];
  do {
    bytes.push((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    value >>>= 7;
  } while (value);
  return bytes;
}
const sized = (bytes) => [...leb(bytes.length), ...bytes];
const letters = (word) => sized([...word].map((letter) => letter.charCodeAt(0)));
const number = (value) => [0x41, ...leb(value)]; // an integer of 0 … 63
const double = (value) => [0x44, ...new Uint8Array(new Float64Array([value]).buffer)];
const twice = (code) => [...code, ...V_OF];

/** A function in the making: names of its integers, doubles and vectors, of which the first are given. */
class Assembly {
  constructor(name, given, integers, doubles, vectors) {
    Object.assign(this, { name, given: given.length });
    this.names = [...given, ...integers, ...doubles, ...vectors];
    this.locals = [3, integers.length, 0x7f, doubles.length, 0x7c, vectors.length, 0x7b];
    this.code = [];
  }

  get = (name) => [GET, this.names.indexOf(name)];
  set = (name, ...code) => [...code.flat(), SET, this.names.indexOf(name)];
  sum = (one, ...others) => [...one, ...others.flatMap((other) => [...other, ADD])];
  times = (one, other) => [...one, ...other, TIMES];
  load = (from, offset = 0) => [...this.get(from), ...V_LOAD, offset];
  store = (to, ...code) => [...this.get(to), ...code.flat(), ...V_STORE, 0];
  less = (one, other) => [...this.get(one), ...this.get(other), LESS];
  /** While the condition holds. */
  loop = (condition, ...body) => [
    ...[BLOCK, 0x40, LOOP, 0x40, ...condition, NOT, LEAVE_IF, 1],
    ...[...body.flat(), AGAIN, 0, END, END],
  ];
  /** Move pointers on by so many bytes. */
  on = (bytes, ...names) => names.flatMap((name) => this.set(name, this.sum(this.get(name), bytes)));
  /** A pointer from `start` up to, not including, `end`, two numbers at a time. */
  pairs = (at, end, others, ...body) =>
    this.loop(this.less(at, end), ...body, this.on(number(16), at, ...others));
  /** Both halves of a vector, added. */
  whole = (name) => [...this.get(name), ...LANE_0, ...this.get(name), ...LANE_1, ...D_ADD];
}

/** See `Plain.product`. */
function assembleProduct() {
  const [ROWS, VECTORS] = [2, 4];
  const sums = Array.from({ length: ROWS * VECTORS }, (_, index) => `sum${index}`);
  const f = new Assembly(
    "product",
    ["a", "aRow", "aStep", "b", "c", "n", "k", "m", "first", "firstRow"],
    ["i", "j", "left", "cRow", "pb", "pc", "pf", "pa0", "pa1"],
    [],
    [...sums, "v", "x0", "x1"],
  );
  const { get, set, sum, times, loop } = f;
  // `rows` rows of c from row i on, 2·`count` columns from column j on.
  const tile = (rows, count) => {
    const at = times(get("j"), number(8));
    const code = [
      set("pc", sum(get("c"), times(get("i"), get("cRow")), at)),
      set("pf", sum(get("first"), times(get("i"), get("firstRow")), at)),
      set("pb", sum(get("b"), at)),
      set("pa0", sum(get("a"), times(get("i"), get("aRow")))),
      set("pa1", sum(get("pa0"), get("aRow"))),
      set("left", number(0)),
    ];
    for (let r = 0; r < rows; r++) {
      for (let v = 0; v < count; v++) code.push(set(sums[r * VECTORS + v], f.load("pf", 16 * v)));
      code.push(f.on(get("firstRow"), "pf"));
    }
    const inner = [];
    for (let r = 0; r < rows; r++) inner.push(set(`x${r}`, get(`pa${r}`), [...V_SPREAD, 0]));
    for (let v = 0; v < count; v++) {
      inner.push(set("v", f.load("pb", 16 * v)));
      for (let r = 0; r < rows; r++) {
        const name = sums[r * VECTORS + v];
        inner.push(set(name, get(name), get("v"), get(`x${r}`), V_MUL, V_ADD));
      }
    }
    for (let r = 0; r < rows; r++) inner.push(f.on(get("aStep"), `pa${r}`));
    inner.push(f.on(get("cRow"), "pb"), f.on(number(1), "left"));
    code.push(loop(f.less("left", "k"), ...inner));
    for (let r = 0; r < rows; r++) {
      for (let v = 0; v < count; v++) {
        code.push([...get("pc"), ...get(sums[r * VECTORS + v]), ...V_STORE, 16 * v]);
      }
      code.push(f.on(get("cRow"), "pc"));
    }
    return code.flat();
  };
  const within = (name, size, limit) => [...sum(get(name), number(size)), ...get(limit), AT_MOST];
  const columns = (rows) => [
    ...set("j", number(0)),
    ...loop(within("j", 2 * VECTORS, "m"), tile(rows, VECTORS), f.on(number(2 * VECTORS), "j")),
    ...loop(f.less("j", "m"), tile(rows, 1), f.on(number(2), "j")),
  ];
  f.code = [
    ...set("cRow", times(get("m"), number(8))),
    ...set("i", number(0)),
    ...loop(within("i", ROWS, "n"), columns(ROWS), f.on(number(ROWS), "i")),
    ...[...f.less("i", "n"), IF, 0x40, ...columns(1), END],
  ];
  return f;
}

/** See `Plain.rectify`. */
function assembleRectify() {
  const f = new Assembly("rectify", ["before", "h", "size"], ["end"], [], []);
  const end = f.set("end", f.sum(f.get("before"), f.get("size")));
  const value = [...f.load("before"), ...twice(double(0)), ...V_MAX];
  f.code = [...end, ...f.pairs("before", "end", ["h"], f.store("h", value))];
  return f;
}

/** See `Plain.addRectified`. */
function assembleAddRectified() {
  const f = new Assembly("addRectified", ["before", "under", "h", "size"], ["end"], [], []);
  const end = f.set("end", f.sum(f.get("before"), f.get("size")));
  const value = [...f.load("before"), ...twice(double(0)), ...V_MAX, ...f.load("under"), ...V_ADD];
  f.code = [...end, ...f.pairs("before", "end", ["under", "h"], f.store("h", value))];
  return f;
}

/** See `Plain.mask`. */
function assembleMask() {
  const f = new Assembly("mask", ["before", "up", "to", "size"], ["end"], [], []);
  const end = f.set("end", f.sum(f.get("before"), f.get("size")));
  const open = [...f.load("before"), ...twice(double(0)), ...V_ABOVE];
  const value = [...open, ...f.load("up"), ...V_AND];
  f.code = [...end, ...f.pairs("before", "end", ["up", "to"], f.store("to", value))];
  return f;
}

/** See `Plain.normalise`. */
function assembleNormalise() {
  const given = ["from", "to", "scale", "rows", "width"];
  const f = new Assembly(
    "normalise", given, ["row", "p", "end", "bytes"], ["mean", "factor"], ["sum", "shift"],
  );
  const { get, set } = f;
  const rewind = [...set("p", get("from")), ...set("end", f.sum(get("p"), get("bytes")))];
  const apart = [...f.load("p"), ...get("shift"), ...V_SUB];
  const share = [...f.whole("sum"), ...get("width"), ...D_OF, ...D_DIV];
  f.code = [
    ...set("bytes", f.times(get("width"), number(8))),
    ...set("row", number(0)),
    ...f.loop(
      f.less("row", "rows"),
      rewind,
      set("sum", twice(double(0))),
      f.pairs("p", "end", [], set("sum", get("sum"), f.load("p"), V_ADD)),
      set("shift", twice(share)),
      rewind,
      set("sum", twice(double(0))),
      f.pairs("p", "end", [], set("sum", get("sum"), apart, apart, V_MUL, V_ADD)),
      set("factor", double(1), share, double(NORM_EPS), D_ADD, D_ROOT, D_DIV),
      [...get("scale"), ...get("factor"), ...D_STORE],
      f.on(number(8), "scale"),
      rewind,
      f.pairs("p", "end", ["to"], f.store("to", apart, twice(get("factor")), V_MUL)),
      f.on(get("bytes"), "from"),
      f.on(number(1), "row"),
    ),
  ];
  return f;
}

/** See `Plain.addNormGradient`. */
function assembleNormGradient() {
  const f = new Assembly(
    "addNormGradient",
    ["below", "normed", "scale", "up", "rows", "width"],
    ["row", "p", "end", "bytes", "n"],
    [],
    ["sum", "along", "factor"],
  );
  const { get, set } = f;
  const rewind = [
    ...set("p", get("below")), ...set("n", get("normed")),
    ...set("end", f.sum(get("p"), get("bytes"))),
  ];
  const share = (name) => twice([...f.whole(name), ...get("width"), ...D_OF, ...D_DIV]);
  const rest = [
    ...f.load("p"), ...get("sum"), ...V_SUB,
    ...f.load("n"), ...get("along"), ...V_MUL, ...V_SUB,
  ];
  f.code = [
    ...set("bytes", f.times(get("width"), number(8))),
    ...set("row", number(0)),
    ...f.loop(
      f.less("row", "rows"),
      rewind,
      set("sum", twice(double(0))),
      set("along", twice(double(0))),
      f.pairs(
        "p", "end", ["n"],
        set("sum", get("sum"), f.load("p"), V_ADD),
        set("along", get("along"), f.load("p"), f.load("n"), V_MUL, V_ADD),
      ),
      set("sum", share("sum")),
      set("along", share("along")),
      set("factor", get("scale"), [...V_SPREAD, 0]),
      f.on(number(8), "scale"),
      rewind,
      f.pairs(
        "p", "end", ["n", "up"],
        f.store("up", f.load("up"), rest, get("factor"), V_MUL, V_ADD),
      ),
      f.on(get("bytes"), "below", "normed"),
      f.on(number(1), "row"),
    ),
  ];
  return f;
}

/** The bytes of a WebAssembly module with all of these functions. */
function assemble() {
  const functions = [
    assembleProduct(), assembleRectify(), assembleAddRectified(), assembleMask(),
    assembleNormalise(), assembleNormGradient(),
  ];
  const section = (id, parts) => [id, ...sized([...leb(parts.length), ...parts.flat()])];
  const types = functions.map((f) => [0x60, f.given, ...Array(f.given).fill(0x7f), 0]);
  const memory = [...letters("page"), ...letters("memory"), 2, 0, 1];
  return new Uint8Array([
    ...[0x00, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, types),
    ...section(2, [memory]),
    ...section(3, functions.map((_, index) => [index])),
    ...section(7, functions.map((f, index) => [...letters(f.name), 0, index])),
    ...section(10, functions.map((f) => sized([...f.locals, ...f.code, END]))),
  ]);
}

/** Numbers that grow in place, and the loops over them; widths are even numbers. */
class Memory {
  /** `fast` false leaves WebAssembly aside. */
  constructor(fast = true) {
    this.used = 2; // so that 0 names nothing
    this.room = 64 * PAGE_FLOATS;
    this.fast = false;
    if (fast) {
      try {
        this.pages = new WebAssembly.Memory({ initial: this.room / PAGE_FLOATS });
        const module = new WebAssembly.Module(assemble());
        this.own = new WebAssembly.Instance(module, { page: { memory: this.pages } }).exports;
        this.fast = true;
      } catch {
        this.fast = false; // no WebAssembly here, or none with vectors
      }
    }
    this.floats = new Float64Array(this.fast ? this.pages.buffer : this.room);
  }

  /** The index of `count` new numbers, all 0. `floats` may be another array afterwards. */
  alloc(count) {
    const at = this.used;
    this.used += count + (count & 1); // pairs stay pairs
    if (this.used > this.room) {
      const more = Math.max(Math.ceil((this.used - this.room) / PAGE_FLOATS), 64);
      this.room += more * PAGE_FLOATS;
      if (this.fast) {
        this.pages.grow(more);
        this.floats = new Float64Array(this.pages.buffer);
      } else {
        const before = this.floats;
        this.floats = new Float64Array(this.room);
        this.floats.set(before);
      }
    }
    return at;
  }

  product(a, aRow, aStep, b, c, n, k, m, first, firstRow) {
    if (this.fast) {
      this.own.product(
        8 * a, 8 * aRow, 8 * aStep, 8 * b, 8 * c, n, k, m, 8 * first, 8 * firstRow,
      );
    } else Plain.product(this.floats, a, aRow, aStep, b, c, n, k, m, first, firstRow);
  }

  rectify(before, h, size) {
    if (this.fast) this.own.rectify(8 * before, 8 * h, 8 * size);
    else Plain.rectify(this.floats, before, h, size);
  }

  addRectified(before, under, h, size) {
    if (this.fast) this.own.addRectified(8 * before, 8 * under, 8 * h, 8 * size);
    else Plain.addRectified(this.floats, before, under, h, size);
  }

  mask(before, up, to, size) {
    if (this.fast) this.own.mask(8 * before, 8 * up, 8 * to, 8 * size);
    else Plain.mask(this.floats, before, up, to, size);
  }

  normalise(from, to, scale, rows, width) {
    if (this.fast) this.own.normalise(8 * from, 8 * to, 8 * scale, rows, width);
    else Plain.normalise(this.floats, from, to, scale, rows, width);
  }

  addNormGradient(below, normed, scale, up, rows, width) {
    if (this.fast) {
      this.own.addNormGradient(8 * below, 8 * normed, 8 * scale, 8 * up, rows, width);
    } else Plain.addNormGradient(this.floats, below, normed, scale, up, rows, width);
  }
}

const Plain = {
  /**
   * C = first + A B: `n` rows, `m` columns (an even number), sums over `k`.
   *
   * Element (i, s) of A stands at a + i·aRow + s·aStep, so that A may be read transposed; B and C
   * are row by row. `first` is what sums begin with, a row each `firstRow` numbers: a bias where
   * that is 0, or C itself.
   */
  product(M, a, aRow, aStep, b, c, n, k, m, first, firstRow) {
    for (let i = 0; i < n; i++) {
      const row = a + i * aRow;
      const from = first + i * firstRow;
      for (let j = 0; j < m; j += 2) {
        let s = M[from + j];
        let t = M[from + j + 1];
        for (let l = 0, p = row, q = b + j; l < k; l++, p += aStep, q += m) {
          const x = M[p];
          s += x * M[q];
          t += x * M[q + 1];
        }
        M[c + i * m + j] = s;
        M[c + i * m + j + 1] = t;
      }
    }
  },

  /** h = max(before, 0). */
  rectify(M, before, h, size) {
    for (let i = 0; i < size; i++) M[h + i] = Math.max(M[before + i], 0);
  },

  /** h = under + max(before, 0). */
  addRectified(M, before, under, h, size) {
    for (let i = 0; i < size; i++) M[h + i] = M[under + i] + Math.max(M[before + i], 0);
  },

  /** to = up where before > 0, else 0. */
  mask(M, before, up, to, size) {
    for (let i = 0; i < size; i++) M[to + i] = M[before + i] > 0 ? M[up + i] : 0;
  },

  /** Each row to mean 0 and deviation 1; one over the deviation into `scale`. */
  normalise(M, from, to, scale, rows, width) {
    for (let r = 0, start = 0; r < rows; r++, start += width) {
      let sum = 0;
      for (let i = start; i < start + width; i++) sum += M[from + i];
      const mean = sum / width;
      let squares = 0;
      for (let i = start; i < start + width; i++) squares += (M[from + i] - mean) ** 2;
      const factor = 1 / Math.sqrt(squares / width + NORM_EPS);
      M[scale + r] = factor;
      for (let i = start; i < start + width; i++) M[to + i] = (M[from + i] - mean) * factor;
    }
  },

  /** Add to `up` the gradient of what was normed, from that of its result in `below`. */
  addNormGradient(M, below, normed, scale, up, rows, width) {
    for (let r = 0, start = 0; r < rows; r++, start += width) {
      let sum = 0;
      let along = 0;
      for (let i = start; i < start + width; i++) {
        sum += M[below + i];
        along += M[below + i] * M[normed + i];
      }
      const mean = sum / width;
      along /= width;
      for (let i = start; i < start + width; i++) {
        M[up + i] += M[scale + r] * (M[below + i] - mean - M[normed + i] * along);
      }
    }
  },
};
