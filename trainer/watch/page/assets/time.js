// Time of a run: shares of the stages, one column per rollout, and a timeline of a few rollouts in lanes.

import { get } from "./api.js";
import { bytes, clock, colour, h, num, percent, plural, seconds, show } from "./dom.js";
import { niceTicks, prepare } from "./chart.js";

export const title = "Time";
export const keys = [["h l", "earlier, later rollouts"], ["+ -", "fewer, more rollouts at once"]];

// Stages of a rollout's time, from its line of metrics; the rest of step_time is "other". rewards: the seconds from the
// last answer to the first step, part of rollout_time. In an asynchronous run generation and rewards overlap training:
// only the wait for them counts.
const STAGES = [
  ["generation", "--run0", (m, async, rewards) => (async ? Math.max(0, m["perf/train_wait_time"] - m["perf/update_weights_time"]) : m["perf/rollout_time"] - rewards)],
  ["rewards", "--run3", (m, async, rewards) => (async ? 0 : rewards)],
  ["training", "--run1", (m) => m["perf/train_time"]],
  ["hand-over", "--run2", (m) => m["perf/update_weights_time"]],
  ["checkpoint", "--run5", (m) => m["perf/save_model_time"]],
];
const OTHER = ["other", "--faint"];

export function mount(root, app) {
  let rollouts = new Map(), steps = new Map(), versions = new Map(), evals = new Map(), asked = false, last = null, wide = 12, async = false;
  const shares = h("div"), memory = h("div", { class: "card" }), columns = h("canvas", { class: "chart tall", role: "img", "aria-label": "time of each rollout by stage" });
  const lanes = h("canvas", { class: "chart lanes", role: "img", "aria-label": "stages on the clock" }), note = h("p", { class: "small soft number" }, " ");
  const where = h("span", { class: "small soft number" });
  let boxes = [], plan = null;
  columns.addEventListener("click", (e) => { const i = columnAt(e.offsetX); if (i !== null) { last = i; draw(); } });
  lanes.addEventListener("pointermove", (e) => say(boxes.find((b) => e.offsetX >= b.x && e.offsetX <= b.x + b.w && e.offsetY >= b.y && e.offsetY <= b.y + b.h)));
  lanes.addEventListener("click", (e) => { const b = boxes.find((c) => e.offsetX >= c.x && e.offsetX <= c.x + c.w && e.offsetY >= c.y && e.offsetY <= c.y + c.h); if (b && b.rollout >= 0) app.go("samples", { rollout: b.rollout }); });
  show(root, h("div", { class: "section" }, h("h2", {}, "By stage")), h("div", { class: "card" }, shares),
    h("div", { class: "section" }, h("h2", {}, "By rollout"), h("span", { class: "small soft" }, "a column is a rollout; click one to see it below")), h("div", { class: "card" }, columns),
    h("div", { class: "section" }, h("h2", {}, "On the clock"), where, h("button", { onclick: () => move(-1), title: "earlier (h)" }, "←"), h("button", { onclick: () => move(1), title: "later (l)" }, "→"), h("button", { onclick: () => zoom(0.5), title: "fewer rollouts (+)" }, "+"), h("button", { onclick: () => zoom(2), title: "more rollouts (-)" }, "−")),
    h("div", { class: "card" }, lanes, note),
    h("div", { class: "section" }, h("h2", {}, "Memory of the trainer")), memory);

  const say = (b) => (note.textContent = b ? b.text : "Point at a bar for its figures; click it for its samples.");
  const ids = () => [...rollouts.keys()].sort((a, b) => a - b);
  const newest = () => ids().pop() ?? 0;
  function move(d) { last = Math.max(0, Math.min(newest(), (last ?? newest()) + d * Math.max(1, Math.round(wide / 2)))); if (last === newest()) last = null; draw(); }
  function zoom(f) { wide = Math.max(2, Math.min(200, Math.round(wide * f))); draw(); }

  // When each rollout's first step was chosen: its samples and rewards were complete.
  function chosen() {
    const found = new Map();
    for (const s of steps.values()) if (!(found.get(s.rollout) <= s.chosen_us)) found.set(s.rollout, s.chosen_us);
    return found;
  }

  function times() {
    const out = [], first = chosen();
    for (const [rollout, lines] of [...app.metrics(app.run().run).byRollout("perf")].sort((a, b) => a[0] - b[0])) {
      const m = lines[lines.length - 1];
      const r = rollouts.get(rollout), rewards = r && r.end_us && first.has(rollout) ? Math.max(0, Math.min(m["perf/rollout_time"] || 0, (first.get(rollout) - r.end_us) / 1e6)) : 0;
      const parts = STAGES.map(([name, ink, of]) => ({ name, ink, s: of(m, async, rewards) || 0 }));
      const sum = parts.reduce((a, p) => a + p.s, 0), total = Math.max(m["perf/step_time"] || 0, sum);
      parts.push({ name: OTHER[0], ink: OTHER[1], s: total - sum });
      out.push({ rollout, parts, total });
    }
    return out;
  }

  function drawShares(all) {
    const total = all.reduce((a, r) => a + r.total, 0);
    if (!total) return show(shares, h("p", { class: "soft" }, "No rollout is done yet."));
    const tokens = [...rollouts.values()].reduce((a, r) => a + (r.tokens || 0), 0);
    const sums = all[0].parts.map((p, i) => ({ ...p, s: all.reduce((a, r) => a + r.parts[i].s, 0) }));
    show(shares, h("div", { class: "share-bar" }, sums.filter((p) => p.s > 0).map((p) => h("span", { style: { flexGrow: String(p.s / total), background: `var(${p.ink})` }, title: `${p.name} ${percent(p.s / total)}` }))),
      h("div", { class: "legend" }, sums.map((p) => h("span", {}, h("i", { style: { background: `var(${p.ink})` } }), p.name === "generation" && async ? "waiting for samples" : p.name, " ", h("b", { class: "number" }, percent(p.s / total)), h("span", { class: "faint number" }, " " + seconds(p.s))))),
      h("p", { class: "small soft number" }, `${plural(all.length, "rollout")} in ${seconds(total)}, ${seconds(total / all.length)} each, ${num(tokens / total)} sampled tokens per second over all`));
  }

  let shownColumns = [];
  function columnAt(x) { const c = shownColumns.find((b) => x >= b.x && x < b.x + b.w); return c ? c.rollout : null; }

  function drawColumns(all) {
    const { c, width, height } = prepare(columns), left = 46, bottom = 20;
    shownColumns = [];
    if (!all.length) return;
    const fit = Math.max(1, Math.floor((width - left - 8) / 3)), part = all.slice(-fit), w = Math.min(36, (width - left - 8) / part.length);
    const top = Math.max(...part.map((r) => r.total)) * 1.05 || 1, toY = (s) => 8 + (1 - s / top) * (height - bottom - 8);
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const t of niceTicks(0, top, 4)) {
      c.strokeStyle = colour("--line");
      c.beginPath(); c.moveTo(left, toY(t)); c.lineTo(width - 8, toY(t)); c.stroke();
      c.fillStyle = colour("--faint");
      c.fillText(num(t) + " s", left - 6, toY(t));
    }
    const from = (last ?? newest()) - wide + 1;
    part.forEach((r, i) => {
      const x = left + i * w;
      let s = 0;
      for (const p of r.parts) {
        c.fillStyle = colour(p.ink);
        c.globalAlpha = r.rollout >= from && r.rollout <= (last ?? newest()) ? 1 : 0.45;
        c.fillRect(x, toY(s + p.s), Math.max(1, w - (w > 4 ? 2 : 0.5)), toY(s) - toY(s + p.s));
        s += p.s;
      }
      c.globalAlpha = 1;
      shownColumns.push({ x, w, rollout: r.rollout });
    });
    c.fillStyle = colour("--faint");
    c.textAlign = "center";
    c.textBaseline = "alphabetic";
    const every = Math.max(1, Math.ceil(64 / w));
    part.forEach((r, i) => { if (i % every === 0) c.fillText(String(r.rollout), left + (i + 0.5) * w, height - 5); });
  }

  // Intervals between begin and end that `busy` does not cover.
  function gaps(busy, begin, end) {
    const out = [];
    let at = begin;
    for (const [a, b] of busy.filter(([x, y]) => y > begin && x < end).sort((p, q) => p[0] - q[0])) {
      if (a > at) out.push([at, a]);
      at = Math.max(at, b);
    }
    if (at < end) out.push([at, end]);
    return out;
  }

  function drawLanes() {
    const to = last ?? newest(), from = Math.max(0, to - wide + 1);
    const inside = [...rollouts.values()].filter((r) => r.rollout >= from && r.rollout <= to && r.begin_us);
    boxes = [];
    where.textContent = inside.length ? `rollouts ${from} to ${to}` : "";
    if (!inside.length) return prepare(lanes), say(null);
    const mine = [...steps.values()].filter((s) => s.rollout >= from && s.rollout <= to);
    const ends = [...inside.map((r) => r.end_us || r.begin_us), ...mine.map((s) => s.done_us || s.chosen_us)];
    const begin = Math.min(...inside.map((r) => r.begin_us)), end = Math.max(...ends, begin + 1);
    const perf = app.metrics(app.run().run).byRollout("perf");
    const work = mine.map((s) => [s.chosen_us, s.done_us || end]), gen = inside.map((r) => [r.begin_us, r.end_us || end]);
    const hand = [], save = [];
    for (const r of inside) {
      const m = (perf.get(r.rollout) || []).at(-1), done = Math.max(...mine.filter((s) => s.rollout === r.rollout).map((s) => s.done_us || 0), 0);
      if (!m || !done) continue;
      const u = (m["perf/update_weights_time"] || 0) * 1e6, s = (m["perf/save_model_time"] || 0) * 1e6;
      if (u) hand.push([done, done + u, r.rollout]);
      if (s) save.push([done + u, done + u + s, r.rollout]);
    }
    // From the last answer to the choice of the steps, without the trainer's other work.
    const first = chosen(), rewards = inside.filter((r) => r.end_us && first.get(r.rollout) > r.end_us).flatMap((r) => gaps([...work, ...hand, ...save], r.end_us, first.get(r.rollout)).map(([a, b]) => [a, b, r.rollout, "rewards of the last answers"]));
    // Each rank's part of a step: its packs from the step's start, its update at the end, waiting for others in between.
    const byStep = new Map([...app.metrics(app.run().run).byRollout("train").values()].flat().map((m) => [m.step, m]));
    const ranks = [];
    for (const s of mine) {
      const m = byStep.get(s.step) || {}, part = (r, what) => (m[`perf/rank/${r}/${what}_time`] || 0) * 1e6;
      for (let r = 0; `perf/rank/${r}/wait_time` in m; r++) {
        const packs = part(r, "forward") + part(r, "backward"), update = part(r, "optimizer"), from = Math.max(s.chosen_us, s.done_us - packs - update - part(r, "wait"));
        const whom = m[`perf/rank_waits_for/${r}`], slowest = m["perf/straggler_rank"] === r ? ", the slowest" : "";
        ranks[r] = ranks[r] || [`rank ${r}`, "--run1", []];
        ranks[r][2].push([from, from + packs, s.rollout, `step ${s.step}, its packs${slowest}; ${seconds(part(r, "wait") / 1e6)} waiting${whom === undefined ? "" : `, longest for rank ${whom}`}`], [s.done_us - update, s.done_us, s.rollout, `step ${s.step}, its update`]);
      }
    }
    const rows = [
      ["generation", "--run0", inside.map((r) => [r.begin_us, r.end_us || end, r.rollout, `${plural(r.n, "sample")}, ${num(r.tokens)} tokens${r.end_us ? `, ${num((r.tokens / (r.end_us - r.begin_us)) * 1e6)} per second` : ", not done"}`])],
      ["rewards", "--run3", rewards],
      ["training", "--run1", mine.map((s) => [s.chosen_us, s.done_us || end, s.rollout, `step ${s.step}${s.done_us ? "" : ", under way"}`])],
      ...ranks,
      ["hand-over", "--run2", hand],
      ["checkpoint", "--run5", save],
      ["evaluation", "--run4", [...evals.values()].filter((v) => v.done_us >= begin && v.done_us <= end).map((v) => [v.done_us, v.done_us, v.rollout, `${v.name} ${num(v.score)}, done at ${clock(v.done_us)}`])],
      ["trainer waits", "--faint", gaps([...work, ...hand, ...save], begin, end).map(([a, b]) => [a, b, -1])],
      ["servers wait", "--faint", gaps(gen, begin, end).map(([a, b]) => [a, b, -1])],
    ];
    lanes.style.height = ranks.length ? `${(rows.length + 1) * 32}px` : "";
    lanes.setAttribute("aria-label", `on the clock: ${rows.map(([name]) => name).join(", ")}`);
    const { c, width, height } = prepare(lanes), left = width < 520 ? 78 : 110;
    const toX = (us) => left + ((us - begin) / (end - begin)) * (width - left - 10), tall = (height - 24) / rows.length;
    c.textBaseline = "middle";
    rows.forEach(([name, ink, bars], i) => {
      const y = i * tall;
      c.fillStyle = colour("--soft");
      c.textAlign = "left";
      c.fillText(name, 0, y + tall / 2);
      c.strokeStyle = colour("--line");
      c.beginPath(); c.moveTo(left, y + tall - 0.5); c.lineTo(width - 10, y + tall - 0.5); c.stroke();
      c.fillStyle = colour(ink);
      for (const [a, b, rollout, more] of bars) {
        const box = { x: toX(a), w: Math.max(2, toX(b) - toX(a) - 1), y: y + 4, h: tall - 9, rollout };
        c.globalAlpha = name.endsWith("waits") || name.endsWith("wait") ? 0.45 : 0.9;
        c.fillRect(box.x, box.y, box.w, box.h);
        box.text = `${name}${rollout >= 0 ? ` of rollout ${rollout}` : ""}: ${b > a ? seconds((b - a) / 1e6) + ", " : ""}${more ? more + ", " : ""}${clock(a)}`;
        boxes.push(box);
      }
      c.globalAlpha = 1;
    });
    c.fillStyle = colour("--faint");
    c.textAlign = "center";
    for (const t of niceTicks(0, (end - begin) / 1e6, Math.max(2, Math.floor(width / 140)))) c.fillText(t ? "+" + seconds(t) : clock(begin), Math.min(width - 40, Math.max(left + 24, toX(begin + t * 1e6))), height - 8);
    say(null);
  }

  // Planned and used memory: of the device, and of the host if separate.
  function drawMemory() {
    const m = [...app.metrics(app.run().run).byRollout("perf")].sort((a, b) => b[0] - a[0]).map(([, lines]) => lines[lines.length - 1]).find((l) => "perf/memory_used_bytes" in l);
    const bar = (name, used, planned) => {
      if (used === undefined) return null;
      const most = Math.max(used, planned || 0, 1);
      return [h("p", { class: "small number" }, `${bytes(used)} in use by ${name}${planned ? `; planned: ${bytes(planned)}` : ""}`), h("div", { class: "meter" }, h("span", { style: { width: `${(100 * used) / most}%` } }))];
    };
    show(memory, m ? [bar(m["perf/memory_host_used_bytes"] === undefined ? "the process, its code and files too" : "the device", m["perf/memory_used_bytes"], m["perf/memory_planned_bytes"]), bar("the process on the host", m["perf/memory_host_used_bytes"], m["perf/memory_host_planned_bytes"])] : h("p", { class: "soft" }, "No rollout has said it yet."),
      plan ? h("p", { class: "small soft", id: "plan" }, `The plan: ${plan}`) : null);
  }

  function draw() {
    drawMemory();
    const all = times();
    drawShares(all);
    drawColumns(all);
    drawLanes();
  }

  const resize = new ResizeObserver(() => { if (asked) draw(); });
  resize.observe(columns);
  return {
    async update() {
      const run = app.run().run;
      const from = asked ? Math.max(0, newest() - 2) : 0;
      const once = (path) => (asked ? null : get(`runs/${run}/${path}`));
      const [t, options, planned] = await Promise.all([get(`runs/${run}/times?from=${from}`), once("options"), once("events?kind=memory&limit=1"), app.metrics(run).refresh()]);
      if (options) async = (options.run?.options || {}).async === true;
      if (planned) plan = planned.events[0]?.detail;
      asked = true;
      for (const r of t.rollouts) rollouts.set(r.rollout, r);
      for (const s of t.steps) steps.set(s.step, s);
      for (const v of t.versions) versions.set(v.version, v);
      for (const v of t.evals) evals.set(v.id, v);
      draw();
    },
    key(k) {
      if (k === "h" || k === "ArrowLeft") move(-1);
      else if (k === "l" || k === "ArrowRight") move(1);
      else if (k === "+") zoom(0.5);
      else if (k === "-") zoom(2);
      else return false;
      return true;
    },
    unmount: () => resize.disconnect(),
  };
}
