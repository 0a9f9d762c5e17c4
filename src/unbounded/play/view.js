"use strict";
// What is seen and pressed. The training happens in a worker, which sends news.

const byId = (id) => document.getElementById(id);
const [plane, form, status] = [byId("plane"), byId("controls"), byId("status")];
const RANGE = 1.25; // the plane is shown from −RANGE to RANGE
const NEW_FOR = 25; // epochs for which a layer counts as just born
const LINE_HIGH = 170; // of the charts with lines
const NAMES = ["A", "B"];

const source = new Blob([byId("worker").textContent], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(source));
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const state = {
  run: 0,
  playing: false, // as the button says
  training: false, // as the worker said last: a pause takes effect after an epoch
  wanting: false, // own points are too few
  stopped: "",
  epoch: 0,
  layers: 0,
  q: [],
  rows: [],
  births: [],
  picture: null, // { size, values }
  x: [],
  y: [],
  own: [], // x, y, class in turn
  puts: [], // how many points each click has put
  cross: [0, 0],
  spoken: 0, // when the summary was last said
};

// Settings ---------------------------------------------------------------------------------------

function valueOf(input) {
  const value = Number(input.value);
  return "log" in input.dataset ? Number((10 ** value).toPrecision(2)) : value;
}

function settings() {
  const field = (name) => form.elements[name].value;
  const number = (name) => valueOf(form.elements[name]);
  const heldOut = field("rule") === "held-out";
  return {
    kind: field("kind"),
    omega: number("omega"),
    rings: number("rings"),
    rows: number("rows"),
    seed: number("seed"),
    points: state.own,
    rule: field("rule"),
    place: number("place"),
    spread: number("spread"),
    ascent: { floor: number("floor") },
    rate: number("rate"),
    prior: heldOut ? 0.5 : number("prior"),
    depthRatio: number("depthRatio"),
    norm: field("layers") === "norm",
    init: field("layers") === "default" ? "default" : "he",
    width: number("width"),
    lr: number("lr"),
    batch: 256,
    // As in the library's presets "settled" and "paper".
    average: heldOut ? 0.998 : 0,
    clip: heldOut ? 1 : 0,
  };
}

/** Values beside the sliders, and only the settings that matter. */
function showSettings() {
  for (const input of form.querySelectorAll("input[type=range]")) {
    const value = valueOf(input);
    const text = value < 1 && "log" in input.dataset ? String(value) : value.toLocaleString("en");
    input.parentElement.querySelector(".value").textContent = text;
    input.setAttribute("aria-valuetext", text);
  }
  const chosen = [form.elements.kind.value, form.elements.rule.value];
  for (const part of form.querySelectorAll("[data-for]")) {
    part.hidden = !part.dataset.for.split(" ").some((name) => chosen.includes(name));
  }
  const own = form.elements.kind.value === "own";
  plane.classList.toggle("own", own);
  byId("plane-keys").hidden = !own;
  // Keys reach the plane only where they do something.
  plane.tabIndex = own ? 0 : -1;
  plane.setAttribute("role", own ? "application" : "img");
}

function reset(goOn = state.playing) {
  const empty = { epoch: 0, layers: 0, q: [], rows: [], births: [], picture: null, stopped: "" };
  Object.assign(state, empty, { run: state.run + 1, playing: false, wanting: false });
  worker.postMessage({ type: "reset", settings: settings(), number: state.run });
  if (goOn) play(true);
  else show();
}

function play(on) {
  state.playing = on;
  worker.postMessage({ type: on ? "play" : "pause" });
  show();
  if (!on) say();
}

// News -------------------------------------------------------------------------------------------

const HEARS = {
  points({ x, y }) {
    Object.assign(state, { x, y });
  },
  wanting() {
    Object.assign(state, { wanting: true, playing: false });
  },
  news({ rows, births, q, layers, epoch, playing }) {
    state.rows.push(...rows);
    state.births.push(...births);
    Object.assign(state, { q, layers, epoch, training: playing });
  },
  picture({ size, values }) {
    state.picture = { size, values };
  },
  stopped({ why }) {
    Object.assign(state, { stopped: why, playing: false });
  },
};

worker.onmessage = ({ data }) => {
  if (data.run !== state.run) return;
  HEARS[data.type](data);
  const births = data.type === "news" && data.births.length > 0;
  if (data.type === "stopped" || data.type === "wanting") say();
  else if (births || !state.playing || performance.now() - state.spoken > 5000) {
    say(births && state.playing);
  }
  show(data.type !== "news");
};

worker.onerror = (event) => {
  HEARS.stopped({ why: event.message || "the browser does not let this page start a worker" });
  say();
  show();
};

let asked = false;
let planeAsked = false;
/** Draw at the next chance, once; the plane only if it has changed, since it takes longest. */
function show(withPlane = true) {
  planeAsked ||= withPlane !== false;
  showButtons();
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
    if (planeAsked) drawPlane();
    planeAsked = false;
  });
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const newborn = () => state.births.filter((birth) => birth.epoch > state.epoch - NEW_FOR);

/** What has happened, in a sentence; births are told at once, but not too often. */
function say(births = false) {
  const now = performance.now();
  if (births && now - state.spoken < 1500) return;
  state.spoken = now;
  status.textContent = summary();
}

function summary() {
  if (state.wanting) {
    return "Put points of both classes on the plane, at least four clicks with ten points each.";
  }
  const row = state.rows.at(-1);
  const end = state.stopped ? ` Training stopped: ${state.stopped}.` : "";
  if (!row && end) return end;
  if (!row) return `${state.layers} layers are there. Nothing has been learnt yet.`;
  const parts = [
    `Epoch ${row.epoch.toLocaleString("en")}: ${percent(row.held)} of the held-out points are right`,
    `expected depth ${row.mean.toFixed(2)}, ${state.q.length} of ${state.layers} layers in use`,
  ];
  const born = newborn().map((birth) => birth.depth);
  if (born.length) parts.push(`just born: layer ${born.join(", ")}`);
  if (row.rests) parts.push("q(ℓ) is at rest");
  return `${parts.join("; ")}.${end}`;
}

// Drawing ----------------------------------------------------------------------------------------

function showButtons() {
  byId("play").textContent = state.playing ? "Pause" : "Play";
  for (const id of ["play", "step"]) byId(id).disabled = state.wanting || Boolean(state.stopped);
}

function draw() {
  const row = state.rows.at(-1);
  byId("fact-epoch").textContent = state.epoch.toLocaleString("en");
  byId("fact-held").textContent = row ? percent(row.held) : "–";
  const mean = row ? row.mean : state.q.reduce((sum, q, index) => sum + q * (index + 1), 0);
  byId("fact-mean").textContent = state.q.length ? mean.toFixed(2) : "–";
  byId("fact-layers").textContent = state.layers ? `${state.q.length} / ${state.layers}` : "–";
  drawBars();
  drawScores();
  drawDepths();
  if (byId("numbers").open) drawNumbers();
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shades = (name) => colour(name).split(" ").map(Number);

function drawPlane() {
  const side = Math.round(plane.clientWidth * (window.devicePixelRatio || 1)) || 480;
  if (plane.width !== side) plane.width = plane.height = side;
  const pen = plane.getContext("2d");
  pen.fillStyle = `rgb(${colour("--paper-field")})`;
  pen.fillRect(0, 0, side, side);
  if (state.picture && state.epoch) {
    drawField(pen, side);
    drawBoundary(pen, side);
  }
  pen.drawImage(pointsAt(side), 0, 0);
  if (form.elements.kind.value === "own" && document.activeElement === plane) drawCross(pen, side);
  const right = state.rows.length ? `, ${percent(state.rows.at(-1).held)} right` : "";
  const what = `${state.y.length} points in two classes and where the network decides for which`;
  plane.setAttribute("aria-label", what + right);
}

const field = document.createElement("canvas");
/** Each point of the plane in the colour of the probable class, the surer the stronger. */
function drawField(pen, side) {
  const { size, values } = state.picture;
  const [a, b, none] = ["--a-field", "--b-field", "--paper-field"].map(shades);
  field.width = field.height = size;
  const ink = field.getContext("2d");
  const image = ink.createImageData(size, size);
  for (let i = 0; i < values.length; i++) {
    const sure = 2 * values[i] - 1;
    const [towards, share] = [sure > 0 ? b : a, Math.abs(sure)];
    for (let c = 0; c < 3; c++) {
      image.data[4 * i + c] = none[c] + (towards[c] - none[c]) * share;
    }
    image.data[4 * i + 3] = 255;
  }
  ink.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(field, 0, 0, side, side);
}

/** Where both classes are as probable: lines through the squares of the picture. */
function drawBoundary(pen, side) {
  const { size, values } = state.picture;
  const step = side / size;
  pen.beginPath();
  for (let i = 0; i + 1 < size; i++) {
    for (let j = 0; j + 1 < size; j++) {
      const at = i * size + j;
      const [p, q, r, s] = [values[at], values[at + 1], values[at + size + 1], values[at + size]];
      const crossings = [];
      // Along the four sides, in turn: top, right, bottom, left.
      if (p > 0.5 !== q > 0.5) crossings.push([j + (0.5 - p) / (q - p), i]);
      if (q > 0.5 !== r > 0.5) crossings.push([j + 1, i + (0.5 - q) / (r - q)]);
      if (s > 0.5 !== r > 0.5) crossings.push([j + (0.5 - s) / (r - s), i + 1]);
      if (p > 0.5 !== s > 0.5) crossings.push([j, i + (0.5 - p) / (s - p)]);
      for (let k = 0; k + 1 < crossings.length; k += 2) {
        pen.moveTo((crossings[k][0] + 0.5) * step, (crossings[k][1] + 0.5) * step);
        pen.lineTo((crossings[k + 1][0] + 0.5) * step, (crossings[k + 1][1] + 0.5) * step);
      }
    }
  }
  pen.strokeStyle = colour("--ink");
  pen.lineWidth = Math.max(1.5, side / 320);
  pen.stroke();
}

const across = (value, side) => ((value / RANGE + 1) / 2) * side;

const dots = document.createElement("canvas");
let dotted = []; // what was drawn there last
/** The points as a picture of their own, which is kept. */
function pointsAt(side) {
  const now = [state.x, state.y, side, dark.matches];
  if (now.some((value, index) => value !== dotted[index])) {
    dots.width = dots.height = side;
    drawPoints(dots.getContext("2d"), side);
    dotted = now;
  }
  return dots;
}

/** Class A as discs, class B as triangles. */
function drawPoints(pen, side) {
  const { x, y } = state;
  const scale = window.devicePixelRatio || 1;
  const radius = y.length > 400 ? Math.max(side / 200, 2 * scale) : Math.max(side / 133, 3 * scale);
  for (const label of [0, 1]) {
    pen.beginPath();
    for (let i = 0; i < y.length; i++) {
      if (y[i] !== label) continue;
      const [left, top] = [across(x[2 * i], side), across(-x[2 * i + 1], side)];
      if (label) {
        pen.moveTo(left, top - 1.3 * radius);
        pen.lineTo(left + 1.2 * radius, top + 0.8 * radius);
        pen.lineTo(left - 1.2 * radius, top + 0.8 * radius);
        pen.closePath();
      } else {
        pen.moveTo(left + radius, top);
        pen.arc(left, top, radius, 0, 2 * Math.PI);
      }
    }
    pen.fillStyle = colour(label ? "--b" : "--a");
    pen.strokeStyle = colour("--card");
    pen.lineWidth = radius / 4;
    pen.fill();
    pen.stroke();
  }
}

function drawCross(pen, side) {
  const [left, top] = [across(state.cross[0], side), across(-state.cross[1], side)];
  const arm = side / 30;
  pen.beginPath();
  pen.moveTo(left - arm, top);
  pen.lineTo(left + arm, top);
  pen.moveTo(left, top - arm);
  pen.lineTo(left, top + arm);
  pen.strokeStyle = colour("--focus");
  pen.lineWidth = 3;
  pen.stroke();
}

/** A new element of a drawing. */
function shape(name, attributes, text) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

/** One unit of a drawing is a pixel of the page, so that letters stay legible in narrow windows. */
function widthOf(svg) {
  return Math.max(svg.parentElement.clientWidth - 26, 240);
}

function drawBars() {
  const svg = byId("bars");
  const wide = widthOf(svg);
  const [high, left, top, floor] = [230, 34, 18, 170];
  const count = Math.max(state.layers, 8);
  const width = (wide - left) / count;
  const most = Math.max(0.15, ...state.q);
  const rise = (q) => (q / most) * (floor - top);
  const parts = [];
  const ticks = most > 0.5 ? [0, 0.5, 1] : most > 0.25 ? [0, 0.25, 0.5] : [0, 0.1, 0.2];
  for (const tick of ticks.filter((value) => value <= most)) {
    const y = floor - rise(tick);
    parts.push(shape("line", { class: "grid", x1: left, x2: wide, y1: y, y2: y }));
    parts.push(shape("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, tick));
  }
  const young = new Set(newborn().map((birth) => birth.depth));
  const every = width < 18 ? 5 : 1;
  const box = Math.min(width * 0.76, 18);
  const likely = state.q.indexOf(Math.max(...state.q));
  for (let l = 0; l < count; l++) {
    const middle = left + (l + 0.5) * width;
    const q = state.q[l] ?? 0;
    parts.push(shape("rect", {
      class: "bar", x: middle - width * 0.38, width: width * 0.76, y: floor - rise(q), height: rise(q),
    }));
    if (q && (width > 38 || l === likely)) {
      const text = q < 0.005 ? "<.01" : q.toFixed(2).replace(/^0/, "");
      const at = { x: middle, y: floor - rise(q) - 5, "text-anchor": "middle" };
      parts.push(shape("text", { class: "strong", ...at }, text));
    }
    if (l < state.layers) {
      const kind = young.has(l + 1) ? "new" : l < state.q.length ? "used" : "idle";
      const at = { x: middle - box / 2, y: floor + 8, width: box, height: box };
      parts.push(shape("rect", { class: kind, ...at }));
      if (kind === "new") {
        const place = { x: middle, y: floor + 8 + box / 2 + 4.5, "text-anchor": "middle" };
        parts.push(shape("text", { class: "star", ...place }, "✶"));
      }
    }
    if ((l + 1) % every === 0 || l === 0) {
      parts.push(shape("text", { x: middle, y: floor + 43, "text-anchor": "middle" }, l + 1));
    }
  }
  parts.push(shape("line", { class: "axis", x1: left, x2: wide, y1: floor, y2: floor }));
  parts.push(shape("text", { x: wide, y: high - 2, "text-anchor": "end" }, "depth ℓ"));
  svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
  svg.replaceChildren(...parts);
  const told = state.q.length
    ? `most probable depth ${likely + 1}, with probability ${state.q[likely].toFixed(2)}`
    : "nothing yet";
  svg.setAttribute("aria-label", `q(ℓ) as bars: ${told}; ${state.layers} layers are born`);
}

/**
 * Lines over the epochs. lines: { name, kind, value(row), steps }; ticks: heights with a label;
 * marks: epochs to mark at the foot.
 */
function drawLines(svg, lines, ticks, text, marks = []) {
  const wide = widthOf(svg);
  const [left, right, top, floor] = [44, wide - 88, 12, LINE_HIGH - 26];
  const [low, most] = [ticks[0], ticks.at(-1)];
  const rows = state.rows;
  const end = Math.max(rows.length, 10);
  const x = (epoch) => left + ((right - left) * epoch) / end;
  const y = (value) => floor - ((floor - top) * (value - low)) / (most - low);
  const parts = [];
  for (const tick of ticks) {
    const at = { x1: left, x2: right, y1: y(tick), y2: y(tick) };
    parts.push(shape("line", { class: tick === low ? "axis" : "grid", ...at }));
    parts.push(shape("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, text(tick)));
  }
  parts.push(shape("text", { x: left, y: LINE_HIGH - 6 }, "0"));
  const last = { x: right, y: LINE_HIGH - 6, "text-anchor": "end" };
  parts.push(shape("text", last, `epoch ${end.toLocaleString("en")}`));
  for (const epoch of marks) {
    const at = x(epoch);
    const points = `${at - 4},${floor + 9} ${at + 4},${floor + 9} ${at},${floor + 1}`;
    parts.push(shape("polygon", { class: "birth", points }));
  }
  const stride = Math.max(1, Math.ceil(rows.length / 280));
  const labels = [];
  for (const { name, kind, value, steps } of rows.length ? lines : []) {
    let path = "";
    let before = null;
    for (let i = rows.length - 1; i >= 0; i -= stride) { // the latest is always there
      const [at, height] = [x(rows[i].epoch).toFixed(1), y(value(rows[i])).toFixed(1)];
      if (before !== null && steps) path += `H${at}`;
      path += before === null ? `M${at} ${height}` : `L${at} ${height}`;
      before = height;
    }
    parts.push(shape("path", { class: kind, d: path }));
    labels.push({ name, kind, y: y(value(rows.at(-1))) + 4 });
  }
  labels.sort((one, other) => one.y - other.y);
  for (let i = 1; i < labels.length; i++) labels[i].y = Math.max(labels[i].y, labels[i - 1].y + 15);
  const beyond = labels.length ? Math.max(0, labels.at(-1).y - floor - 8) : 0;
  for (const { name, kind, y: at } of labels) {
    parts.push(shape("text", { class: kind, x: right + 6, y: at - beyond }, name));
  }
  svg.setAttribute("viewBox", `0 0 ${wide} ${LINE_HIGH}`);
  svg.replaceChildren(...parts);
}

function drawScores() {
  const low = state.rows.reduce((least, row) => Math.min(least, row.held, row.train), 0.5);
  const ticks =
    low < 0.4 ? [0, 0.2, 0.4, 0.6, 0.8, 1]
    : low < 0.5 ? [0.4, 0.6, 0.8, 1]
    : [0.5, 0.6, 0.7, 0.8, 0.9, 1];
  drawLines(
    byId("scores"),
    [
      { name: "held-out", kind: "one", value: (row) => row.held },
      { name: "training", kind: "two", value: (row) => row.train },
    ],
    ticks,
    (tick) => `${Math.round(100 * tick)} %`,
  );
  const row = state.rows.at(-1);
  const told = row ? `${percent(row.held)} held-out, ${percent(row.train)} training` : "nothing yet";
  byId("scores").setAttribute("aria-label", `Share of points that are right: ${told}`);
}

function drawDepths() {
  const rows = state.rows;
  const most = rows.reduce((found, row) => Math.max(found, row.last), 4);
  const step = [1, 2, 5, 10, 20].find((size) => most / size <= 5) ?? 20;
  const ticks = Array.from({ length: Math.ceil(most / step) + 1 }, (_, index) => index * step);
  const births = state.births.map((birth) => birth.epoch);
  drawLines(
    byId("depths"),
    [
      { name: "last, m(q)", kind: "two", value: (row) => row.last, steps: true },
      { name: "mean, E[ℓ]", kind: "one", value: (row) => row.mean },
    ],
    ticks,
    String,
    births,
  );
  const row = rows.at(-1);
  const told = row ? `mean ${row.mean.toFixed(2)}, last ${row.last}` : "nothing yet";
  const born = births.length ? `; ${births.length} layers born in training, marked below` : "";
  byId("depths").setAttribute("aria-label", `Depth over the epochs: ${told}${born}`);
}

function drawNumbers() {
  const born = new Map(state.births.map((birth) => [birth.depth, birth.epoch]));
  const lines = Array.from({ length: state.layers }, (_, index) => {
    const line = document.createElement("tr");
    const q = state.q[index];
    const when = born.has(index + 1) ? `born in epoch ${born.get(index + 1)}` : "there from the start";
    const cells = [index + 1, q === undefined ? "none" : q.toFixed(4), when];
    for (const [place, text] of cells.entries()) {
      const cell = document.createElement(place ? "td" : "th");
      if (!place) cell.scope = "row";
      cell.textContent = text;
      line.append(cell);
    }
    return line;
  });
  byId("rows").replaceChildren(...lines);
}

// Own points -------------------------------------------------------------------------------------

let changing = 0;
/** Begin anew once nobody has put points for a moment. */
function changed() {
  clearTimeout(changing);
  const goOn = state.playing;
  if (goOn) play(false);
  state.goOn = state.goOn || goOn;
  changing = setTimeout(() => {
    const again = state.goOn;
    state.goOn = false;
    reset(again);
  }, 250);
}

function put(x, y) {
  const label = Number(form.elements.brush.value);
  const count = Number(form.elements.spray.value);
  const noise = () => (Math.random() + Math.random() + Math.random() - 1.5) * 0.12;
  for (let i = 0; i < count; i++) {
    const [dx, dy] = count > 1 ? [noise(), noise()] : [0, 0];
    state.own.push(x + dx, y + dy, label);
  }
  state.puts.push(count);
  showOwn();
  changed();
}

/** At once, before the trainer has them; the worker sends those that are learnt from. */
function showOwn() {
  const points = state.own.length / 3;
  state.x = Float32Array.from({ length: 2 * points }, (_, i) => state.own[3 * (i >> 1) + (i & 1)]);
  state.y = Uint8Array.from({ length: points }, (_, i) => state.own[3 * i + 2]);
  show();
}

function takeBack() {
  const count = state.puts.pop() ?? 0;
  state.own.length -= 3 * count;
  showOwn();
  changed();
  status.textContent = `The last ${count} points are gone, ${state.own.length / 3} are left.`;
}

function placeOf(event) {
  const box = plane.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * 2 - 1;
  const y = 1 - ((event.clientY - box.top) / box.height) * 2;
  return [RANGE * x, RANGE * y];
}

let latest = null; // where points were last put while dragging
plane.addEventListener("pointerdown", (event) => {
  if (form.elements.kind.value !== "own") return;
  latest = placeOf(event);
  state.cross = latest;
  put(...latest);
  plane.setPointerCapture(event.pointerId);
});
plane.addEventListener("pointermove", (event) => {
  if (!latest) return;
  const place = placeOf(event);
  if (Math.hypot(place[0] - latest[0], place[1] - latest[1]) < 0.1) return;
  latest = place;
  put(...place);
});
for (const name of ["pointerup", "pointercancel"]) {
  plane.addEventListener(name, () => {
    latest = null;
  });
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
plane.addEventListener("keydown", (event) => {
  if (form.elements.kind.value !== "own" || event.ctrlKey || event.metaKey || event.altKey) return;
  const move = MOVES[event.key];
  if (move) {
    const size = event.shiftKey ? 0.02 : 0.1;
    const moved = state.cross.map((value, axis) => value + size * move[axis]);
    state.cross = moved.map((value) => Math.max(-1.2, Math.min(1.2, Number(value.toFixed(2)))));
    status.textContent = `The cross is at ${state.cross.join(", ")}.`;
    show();
  } else if (event.key === "Enter" || event.key === " ") {
    put(...state.cross);
    const label = NAMES[Number(form.elements.brush.value)];
    status.textContent = `Points of class ${label}; ${state.own.length / 3} points in all.`;
  } else if (event.key === "1" || event.key === "2") {
    form.elements.brush.value = String(Number(event.key) - 1);
    status.textContent = `New points are of class ${NAMES[Number(event.key) - 1]}.`;
  } else if (event.key === "Backspace") {
    takeBack();
  } else {
    return;
  }
  event.preventDefault();
});
for (const name of ["focus", "blur"]) plane.addEventListener(name, show);

// Buttons ----------------------------------------------------------------------------------------

byId("play").addEventListener("click", () => play(!state.playing));
byId("step").addEventListener("click", () => {
  state.playing = false;
  worker.postMessage({ type: "step" });
});
byId("reset").addEventListener("click", () => reset(false));
byId("clear").addEventListener("click", () => {
  Object.assign(state, { own: [], puts: [] });
  reset(false);
});
byId("pace").addEventListener("change", (event) => {
  worker.postMessage({ type: "pace", pace: Number(event.target.value) });
});
byId("numbers").addEventListener("toggle", show);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", showSettings);
form.addEventListener("change", (event) => {
  showSettings();
  if (!["brush", "spray"].includes(event.target.name)) reset();
});
/** What fits the rule, in the library and in the paper; one may choose otherwise afterwards. */
form.elements.rule.addEventListener("change", () => {
  form.elements.layers.value = form.elements.rule.value === "held-out" ? "norm" : "he";
});
dark.addEventListener("change", show);
addEventListener("resize", show);
const calm = () => worker.postMessage({ type: "calm", calm: still.matches });
still.addEventListener("change", calm);

calm();
showSettings();
reset(false);
