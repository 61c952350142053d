// Overlaid curves of the chosen runs. A point links to the samples of its rollout.

import { calm, h, num, runColour, segmented, show } from "./dom.js";
import { arrange } from "./catalogue.js";
import { LineChart } from "./chart.js";

export const title = "Curves";
export const keys = [["s", "smoother, and back"], ["l", "logarithmic scale"], ["x", "by step or by rollout"]];

export function mount(root, app) {
  const o = { smoothing: Number(app.params.smooth || 0), log: app.params.log === "1", axis: app.params.x || "step", text: app.params.find || "" };
  const cards = new Map();
  let shape = "";
  const smoothing = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: o.smoothing, oninput: () => { o.smoothing = Number(smoothing.value); drawAll(); keep(); } });
  const log = h("input", { type: "checkbox", checked: o.log, onchange: () => { o.log = log.checked; drawAll(); keep(); } });
  const axis = segmented([["step", "by step"], ["rollout", "by rollout"]], o.axis, (v) => { o.axis = v; drawAll(); keep(); }, "axis");
  const find = h("input", { type: "search", class: "grow", id: "find", placeholder: "Find a curve", "aria-label": "find a curve", value: o.text, oninput: () => { o.text = find.value; layout(); keep(); } });
  const body = h("div");
  const keep = calm(() => app.keep({ smooth: o.smoothing || "", log: o.log ? 1 : "", x: o.axis === "step" ? "" : o.axis, find: o.text }), 300);
  const seen = new IntersectionObserver((entries) => { for (const e of entries) { const c = cards.get(e.target.dataset.name); if (c) { c.visible = e.isIntersecting; if (c.visible) draw(c); } } }, { rootMargin: "200px" });
  show(root, h("div", { class: "bar" }, find, h("label", {}, "Smoothing", smoothing), h("label", {}, log, "Log scale"), axis), body);

  function lines(name) {
    return app.chosen().map((r) => ({ run: r.run, colour: runColour(r.run), ...app.metrics(r.run).series(name, o.axis) })).filter((l) => l.x.length);
  }

  function draw(card) {
    const found = lines(card.name);
    card.chart.set(found, { smoothing: o.smoothing, log: o.log });
    show(card.latest, found.map((l) => h("span", { class: "number", style: { color: `var(${l.colour})` } }, num(l.y[l.y.length - 1]))));
  }

  const drawAll = () => { for (const c of cards.values()) if (c.visible) draw(c); };

  function makeCard({ name, title: text, help }) {
    const latest = h("span", { class: "latest" }), note = h("div", { class: "chart-note small soft number" }, help || " ");
    const canvas = h("canvas", { class: "chart", role: "img", "aria-label": `${text}, curve` });
    const card = { name, latest, visible: false };
    card.chart = new LineChart(canvas, {
      pick: (points) => {
        if (!points || !points.length) return show(note, help || " ");
        const p = points[0];
        show(note, o.axis === "step" ? `step ${p.x}, rollout ${p.rollout}` : `rollout ${p.rollout}`, points.map((q) => h("span", { style: { color: `var(${q.colour})` } }, "  " + num(q.y))), h("span", { class: "faint" }, p.rollout >= 0 ? "  click: its samples" : ""));
      },
      open: (p) => { if (p.rollout >= 0) app.go("samples", { run: p.run, rollout: p.rollout }); },
    });
    card.element = h("section", { class: "card chart-card", "data-name": name, title: name }, h("div", { class: "chart-head" }, h("h3", {}, text), latest), canvas, note);
    cards.set(name, card);
    seen.observe(card.element);
    return card.element;
  }

  function layout() {
    const names = new Set();
    for (const r of app.chosen()) for (const n of app.metrics(r.run).names()) names.add(n);
    const wanted = [...names].filter((n) => !o.text || n.toLowerCase().includes(o.text.toLowerCase()));
    const titled = o.text ? arrange(names).map(([s, rows]) => [s, rows.filter((r) => wanted.includes(r.name) || r.title.toLowerCase().includes(o.text.toLowerCase()))]).filter(([, rows]) => rows.length) : arrange(names);
    const now = JSON.stringify(titled);
    if (now === shape) return drawAll();
    shape = now;
    seen.disconnect();
    cards.clear();
    if (!titled.length) return show(body, h("p", { class: "empty" }, names.size ? `No curve has “${o.text}” in its name.` : "No rollout is done yet. The first curves come with it."));
    show(body, titled.map(([section, rows]) => [h("div", { class: "section" }, h("h2", {}, section)), h("div", { class: "grid" }, rows.map(makeCard))]));
  }

  const resize = new ResizeObserver(calm(drawAll, 60));
  resize.observe(body);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", drawAll);
  return {
    async update() {
      await Promise.all(app.chosen().map((r) => app.metrics(r.run).refresh()));
      layout();
    },
    key(k) {
      if (k === "s") { smoothing.value = o.smoothing >= 0.9 ? 0 : o.smoothing >= 0.6 ? 0.9 : 0.6; smoothing.dispatchEvent(new Event("input")); }
      else if (k === "l") log.click();
      else if (k === "x") axis.choose(o.axis === "step" ? "rollout" : "step");
      else return false;
      return true;
    },
    unmount() { seen.disconnect(); resize.disconnect(); scheme.removeEventListener("change", drawAll); },
  };
}
