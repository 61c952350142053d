// Curves of a live run: lines of metrics by step, reread from the first that may still change.

import { get } from "./api.js";

export class Metrics {
  constructor(run) {
    this.run = run;
    this.lines = [];
    this.version = 0;
    this.cache = new Map();
  }

  // Lines of the last two rollouts are reloaded: a rollout's times are rewritten at its end.
  from() {
    const last = this.lines.length ? this.lines[this.lines.length - 1].rollout : 0;
    let i = this.lines.length;
    while (i > 0 && this.lines[i - 1].rollout >= last - 1) i--;
    return i < this.lines.length ? this.lines[i].step : 0;
  }

  async refresh() {
    if (this.busy) return this.busy;
    this.busy = this.read().finally(() => (this.busy = null));
    return this.busy;
  }

  async read() {
    let from = this.from();
    let known = this.lines.filter((m) => m.step < from);
    for (;;) {
      const page = await get(`runs/${this.run}/metrics?from=${from}`);
      known = known.concat(page.lines);
      if (page.next === null) break;
      from = page.next;
    }
    const same = known.length === this.lines.length && JSON.stringify(known.slice(-6)) === JSON.stringify(this.lines.slice(-6));
    if (same) return false;
    this.lines = known;
    this.cache.clear();
    this.version++;
    return true;
  }

  names() {
    const found = new Set();
    for (const m of this.lines) for (const k in m) if (k.includes("/") && typeof m[k] === "number" && !k.endsWith("/step")) found.add(k);
    return found;
  }

  // {x: steps or rollouts, y, rollout} of one name.
  series(name, axis) {
    const key = axis + " " + name;
    if (!this.cache.has(key)) {
      const s = { x: [], y: [], rollout: [] };
      for (const m of this.lines)
        if (typeof m[name] === "number") {
          s.x.push(axis === "rollout" ? m.rollout : m.step);
          s.y.push(m[name]);
          s.rollout.push(m.rollout);
        }
      this.cache.set(key, s);
    }
    return this.cache.get(key);
  }

  // The lines of one kind, by rollout.
  byRollout(kind) {
    const found = new Map();
    for (const m of this.lines) if (m.kind === kind) found.set(m.rollout, [...(found.get(m.rollout) || []), m]);
    return found;
  }
}

// Exponential mean, corrected for its start at 0. A few points are not smoothed.
export function smooth(y, weight) {
  if (!weight || y.length < 8) return y;
  let sum = 0, scale = 0;
  return y.map((v) => {
    if (!Number.isFinite(v)) return v;
    sum = sum * weight + v * (1 - weight);
    scale = scale * weight + 1 - weight;
    return sum / scale;
  });
}
