// A line chart on a canvas: several runs, linear or logarithmic, with the values under the pointer.

import { colour, short } from "./dom.js";
import { smooth } from "./metrics.js";

const LEFT = 46, BOTTOM = 20, TOP = 8, RIGHT = 8;

export function niceTicks(low, high, n) {
  const span = high - low || Math.abs(high) || 1, raw = span / n, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((m) => m * power >= raw * 0.999) * power;
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-6; t += step) ticks.push(Math.abs(t) < step * 1e-9 ? 0 : t);
  return ticks;
}

// Enough digits to distinguish neighbours: on a narrow scale `short` would repeat labels.
function tickText(t, ticks) {
  const digits = ticks.length > 1 ? Math.ceil(1 - Math.log10(ticks[1] - ticks[0])) : 0;
  return digits > 3 && digits < 7 ? String(Number(t.toFixed(digits))) : short(t);
}

function logTicks(low, high) {
  const ticks = [], every = Math.max(1, Math.ceil((high - low) / 4));
  for (let p = Math.ceil(low); p <= high + 1e-9; p += every) ticks.push(p);
  return ticks.length > 1 ? ticks : niceTicks(low, high, 3);
}

export function prepare(canvas) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(box.width * scale));
  canvas.height = Math.max(1, Math.round(box.height * scale));
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, box.width, box.height);
  c.font = "11px system-ui, sans-serif";
  return { c, width: box.width, height: box.height };
}

export class LineChart {
  // pick(point or null): under the pointer; open(point): clicked. A point is {run, x, y, rollout}.
  constructor(canvas, { pick, open }) {
    this.canvas = canvas;
    this.lines = [];
    this.options = { smoothing: 0, log: false };
    canvas.addEventListener("pointermove", (e) => this.hover(e, pick));
    canvas.addEventListener("pointerdown", (e) => this.hover(e, pick));
    canvas.addEventListener("pointerleave", () => { this.at = null; pick(null); this.draw(); });
    canvas.addEventListener("click", () => { if (this.at !== null && this.picked && this.picked.length) open(this.picked[0]); });
  }

  // lines: [{run, colour, x, y, rollout}]
  set(lines, options) {
    this.lines = lines;
    this.options = options;
    this.draw();
  }

  hover(e, pick) {
    const x = this.toX ? this.fromX(e.offsetX) : null;
    if (x === null) return;
    this.at = x;
    this.picked = this.lines.filter((l) => l.x.length).map((l) => {
      let best = 0;
      for (let i = 1; i < l.x.length; i++) if (Math.abs(l.x[i] - x) < Math.abs(l.x[best] - x)) best = i;
      return { run: l.run, colour: l.colour, x: l.x[best], y: l.y[best], rollout: l.rollout[best] };
    });
    pick(this.picked);
    this.draw();
  }

  draw() {
    const { c, width, height } = prepare(this.canvas);
    const { log, smoothing } = this.options;
    const value = (y) => (log ? (y > 0 ? Math.log10(y) : NaN) : y);
    const drawn = this.lines.map((l) => ({ ...l, raw: l.y.map(value), soft: smooth(l.y, smoothing).map(value) }));
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const l of drawn) {
      for (const x of l.x) { if (x < x0) x0 = x; if (x > x1) x1 = x; }
      for (const v of smoothing && l.raw.length > 8 ? l.soft.concat(percentiles(l.raw)) : l.raw) if (Number.isFinite(v)) { if (v < y0) y0 = v; if (v > y1) y1 = v; }
    }
    if (x0 > x1 || y0 > y1) {
      c.fillStyle = colour("--faint");
      c.fillText(x0 > x1 ? "nothing yet" : log ? "nothing above 0 to show on a logarithmic scale" : "nothing finite", LEFT, height / 2);
      this.toX = null;
      return;
    }
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (y1 - y0 <= 1e-9 * Math.max(Math.abs(y0), Math.abs(y1))) { const d = Math.abs(y0) * 0.1 || 1; y0 -= d; y1 += d; } else { const d = (y1 - y0) * 0.06; y0 -= d; y1 += d; }
    this.toX = (x) => LEFT + ((x - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    this.fromX = (p) => x0 + ((p - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    const toY = (y) => TOP + (1 - (y - y0) / (y1 - y0)) * (height - TOP - BOTTOM);
    this.axes(c, width, height, { x0, x1, y0, y1, toY, log });
    for (const l of drawn) {
      const ink = colour(l.colour);
      if (smoothing && l.x.length > 2) this.path(c, l.x, l.raw, toY, ink, 0.22, 1);
      this.path(c, l.x, l.soft, toY, ink, 1, 1.75);
      if (l.x.length < 8 || (l.x.length < 40 && !smoothing)) for (let i = 0; i < l.x.length; i++) dot(c, this.toX(l.x[i]), toY(l.raw[i]), ink, 2);
    }
    if (this.at !== null && this.at !== undefined && this.picked && this.picked.length) {
      c.strokeStyle = colour("--faint");
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(this.toX(this.picked[0].x), TOP);
      c.lineTo(this.toX(this.picked[0].x), height - BOTTOM);
      c.stroke();
      for (const p of this.picked) dot(c, this.toX(p.x), toY(value(p.y)), colour(p.colour), 4);
    }
  }

  axes(c, width, height, { x0, x1, y0, y1, toY, log }) {
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.lineWidth = 1;
    const ticks = log ? logTicks(y0, y1) : niceTicks(y0, y1, Math.max(2, Math.floor(height / 48)));
    for (const t of ticks) {
      const y = Math.round(toY(t)) + 0.5;
      c.strokeStyle = colour("--line");
      c.beginPath();
      c.moveTo(LEFT, y);
      c.lineTo(width - RIGHT, y);
      c.stroke();
      c.fillStyle = colour("--faint");
      c.fillText(log ? short(10 ** t) : tickText(t, ticks), LEFT - 6, y);
    }
    c.textAlign = "center";
    c.textBaseline = "alphabetic";
    for (const t of niceTicks(x0, x1, Math.max(2, Math.floor(width / 90))).filter(Number.isInteger)) c.fillText(short(t), Math.min(width - RIGHT - 8, Math.max(LEFT + 4, this.toX(t))), height - 5);
  }

  path(c, x, y, toY, ink, alpha, thick) {
    c.strokeStyle = ink;
    c.globalAlpha = alpha;
    c.lineWidth = thick;
    c.lineJoin = "round";
    c.beginPath();
    let pen = false;
    for (let i = 0; i < x.length; i++) {
      if (!Number.isFinite(y[i])) { pen = false; continue; }
      if (pen) c.lineTo(this.toX(x[i]), toY(y[i]));
      else c.moveTo(this.toX(x[i]), toY(y[i]));
      pen = true;
    }
    c.stroke();
    c.globalAlpha = 1;
  }
}

// With smoothing, single spikes may be cut off.
function percentiles(values) {
  const v = values.filter(Number.isFinite).sort((a, b) => a - b);
  return v.length ? [v[Math.floor(v.length * 0.01)], v[Math.ceil(v.length * 0.99) - 1]] : [];
}

function dot(c, x, y, ink, r) {
  if (!Number.isFinite(y)) return;
  c.fillStyle = ink;
  c.beginPath();
  c.arc(x, y, r, 0, 7);
  c.fill();
}
