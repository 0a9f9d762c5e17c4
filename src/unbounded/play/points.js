"use strict";
// Data sets: points of the plane in two classes, drawn by the page's own random numbers.

const STREAMS = { train: 11, held: 12 };

/** The paper's spiral D(ω): u = √t, t ~ U(0, 1), x ~ N(±u·(cos ωuπ/2, sin ωuπ/2), noise²). */
function spiral(omega, rows, seed, part, noise = 0.02) {
  const random = new Random(seed, STREAMS[part]);
  const x = new Float64Array(2 * rows);
  const y = new Uint8Array(rows);
  for (let i = 0; i < rows; i++) {
    const radius = Math.sqrt(random.uniform());
    y[i] = random.uniform() < 0.5 ? 0 : 1;
    const angle = (omega * radius * Math.PI) / 2;
    const signed = y[i] ? radius : -radius;
    x[2 * i] = signed * Math.cos(angle) + noise * random.normal();
    x[2 * i + 1] = signed * Math.sin(angle) + noise * random.normal();
  }
  return { x, y };
}

/** Rings around the origin, of the classes in turn. */
function circles(rings, rows, seed, part, noise = 0.04) {
  const random = new Random(seed, STREAMS[part]);
  const x = new Float64Array(2 * rows);
  const y = new Uint8Array(rows);
  for (let i = 0; i < rows; i++) {
    const ring = Math.floor(random.uniform() * rings);
    y[i] = ring % 2;
    const radius = (ring + 1) / rings + (noise * random.normal() * 2) / rings;
    const angle = 2 * Math.PI * random.uniform();
    x[2 * i] = radius * Math.cos(angle);
    x[2 * i + 1] = radius * Math.sin(angle);
  }
  return { x, y };
}

/** One's own points (x, y, class in turn): every third is held out. */
function ownPoints(points) {
  const parts = { train: { x: [], y: [] }, held: { x: [], y: [] } };
  for (let i = 0; i < points.length; i += 3) {
    const part = (i / 3) % 3 === 2 ? parts.held : parts.train;
    part.x.push(points[i], points[i + 1]);
    part.y.push(points[i + 2]);
  }
  return parts;
}

/** The training and held-out rows that the settings ask for. */
function makeData({ kind, omega, rings, rows, seed, points }) {
  if (kind === "own") return ownPoints(points);
  const draw = (part) =>
    kind === "spiral" ? spiral(omega, rows, seed, part) : circles(rings, rows, seed, part);
  return { train: draw("train"), held: draw("held") };
}
