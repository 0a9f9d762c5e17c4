"use strict";
// The trainer in a thread of its own: epochs in slices, and news for the page at a limited rate.

const RANGE = 1.25; // the plane is shown from −RANGE to RANGE
const SLICE = 30; // milliseconds of training between looks at messages
const NEWS = 120; // milliseconds between news; twice as many, at least, between pictures
const FINE = 128; // points across the plane when training pauses; half as many on the way

let trainer = null;
let playing = false;
let pace = 0; // epochs a second; 0 for as many as there can be
let run = 0; // which run the news are about
let rows = []; // of the history, not sent yet
let births = 0; // how many were sent
let sent = 0;
let drawn = 0;
let drawing = 0; // milliseconds that the last picture took
let calm = false; // fewer pictures, for who wants little motion
let waiting = false; // whether `work` will be called
const wake = new MessageChannel();
wake.port1.onmessage = () => work();

function soon(milliseconds) {
  if (waiting) return;
  waiting = true;
  if (milliseconds > 0) setTimeout(work, milliseconds);
  else wake.port2.postMessage(null); // at once; a timer would wait
}

function news() {
  const last = trainer.hidden.length ? trainer.posterior() : 0;
  const born = trainer.births.slice(births);
  births = trainer.births.length;
  postMessage({
    type: "news",
    run,
    rows,
    births: born,
    q: Array.from(trainer.q.subarray(0, last)),
    layers: trainer.hidden.length,
    epoch: trainer.epoch,
    playing,
  });
  rows = [];
  sent = performance.now();
}

/** P(class B) over the plane, row by row from the top. */
function picture(size) {
  const start = performance.now();
  const points = new Float64Array(2 * size * size);
  for (let i = 0; i < size; i++) {
    for (let j = 0; j < size; j++) {
      points[2 * (i * size + j)] = RANGE * ((2 * j + 1) / size - 1);
      points[2 * (i * size + j) + 1] = RANGE * (1 - (2 * i + 1) / size);
    }
  }
  const values = Float32Array.from(trainer.predict(points));
  drawn = performance.now();
  drawing = drawn - start;
  postMessage({ type: "picture", run, size, values }, [values.buffer]);
}

function epoch() {
  try {
    rows.push(trainer.run());
    return true;
  } catch (error) {
    playing = false;
    postMessage({ type: "stopped", run, why: error.message });
    return false;
  }
}

function work() {
  waiting = false;
  if (!playing) return;
  const start = performance.now();
  do {
    if (!epoch()) break;
  } while (!pace && performance.now() - start < SLICE);
  const now = performance.now();
  if (!playing || pace || now - sent >= (calm ? 1000 : NEWS)) news();
  // Pictures may take a tenth of the time.
  if (!playing || now - drawn >= Math.max(calm ? 2000 : 2 * NEWS, 9 * drawing)) {
    picture(playing ? FINE / 2 : FINE);
  }
  if (playing) soon(pace ? 1000 / pace - (performance.now() - start) : 0);
}

const DOES = {
  reset({ settings, number }) {
    playing = false;
    run = number;
    rows = [];
    births = 0;
    const data = makeData(settings);
    trainer = null;
    const { x, y } = data.train;
    postMessage({ type: "points", run, x: Float32Array.from(x), y: Uint8Array.from(y) });
    const both = [data.train, data.held].every((part) => new Set(part.y).size === 2);
    if (!both) {
      postMessage({ type: "wanting", run });
      return;
    }
    try {
      trainer = new Trainer(settings, data);
    } catch (error) {
      postMessage({ type: "stopped", run, why: error.message });
      return;
    }
    news();
    picture(FINE / 2);
  },
  play() {
    if (!trainer || playing) return;
    playing = true;
    soon(0);
  },
  pause() {
    if (!trainer || !playing) return;
    playing = false;
    news();
    picture(FINE);
  },
  step() {
    if (!trainer) return;
    playing = false;
    if (epoch()) {
      news();
      picture(FINE);
    }
  },
  pace(message) {
    pace = message.pace;
  },
  calm(message) {
    calm = message.calm;
  },
};

onmessage = ({ data }) => DOES[data.type](data);
