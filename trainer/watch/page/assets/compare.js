// Comparison: two versions of the weights on one prompt, from one run or two; and the options of two runs.

import { get, query } from "./api.js";
import { calm, h, num, plural, segmented, show } from "./dom.js";
import { rewardBadge, STATUS } from "./samples.js";

export const title = "Compare";
export const keys = [["j k", "next, previous prompt"], ["o", "prompts or options"]];

export function mount(root, app) {
  const o = { what: app.params.what || "prompt", set: app.params.set || "", line: app.params.line || "", left: app.params.left || "", right: app.params.right || "", other: app.params.other ?? "" };
  const body = h("div"), mode = segmented([["prompt", "one prompt, two versions"], ["options", "options of two runs"]], o.what, (v) => { o.what = v; keep(); draw(); }, "what");
  let prompts = null, answers = {}, shownFor = "";
  show(root, h("div", { class: "bar" }, mode), body);
  const keep = () => app.keep({ what: o.what === "prompt" ? "" : o.what, set: o.set, line: o.line, left: o.left, right: o.right, other: o.other });
  const runName = (r) => r.dir.split("/").filter(Boolean).pop();
  const otherRun = () => app.runs()[o.other === "" ? app.run().run : Number(o.other)] || app.run();

  async function options() {
    const a = app.run(), b = o.other === "" ? app.runs().find((r) => r !== a) || a : otherRun();
    const [x, y] = await Promise.all([a, b].map((r) => get(`runs/${r.run}/options`)));
    const left = flat(x), right = flat(y), names = [...new Set([...Object.keys(left), ...Object.keys(right)])].sort();
    const all = h("input", { type: "checkbox", onchange: fill }), find = h("input", { type: "search", id: "find", placeholder: "Find an option", "aria-label": "find an option", oninput: fill }), table = h("table");
    function fill() {
      const rows = names.filter((n) => (all.checked || a === b || left[n] !== right[n]) && n.includes(find.value.trim()));
      show(table, h("tr", {}, h("th", {}, "option"), h("th", {}, runName(a)), a === b ? null : h("th", {}, runName(b))), rows.map((n) => h("tr", { class: a !== b && left[n] !== right[n] ? "differs" : "" }, h("td", { class: "mono" }, n), h("td", { class: "mono wrap" }, left[n] ?? "–"), a === b ? null : h("td", { class: "mono wrap" }, right[n] ?? "–"))), rows.length ? null : h("tr", {}, h("td", { colspan: 3, class: "soft" }, "The two runs have the same options.")));
    }
    fill();
    show(body, h("div", { class: "bar" }, find, a === b ? h("span", { class: "small soft" }, "One run is open: clime-train page RUN1 RUN2 compares two.") : [h("label", {}, all, "also those that are the same"), runSelect("with")]), h("div", { class: "card scroll" }, table));
  }

  // Options that affect the weights, and the checksums of the run's inputs.
  function flat(x) {
    const out = {};
    for (const [k, v] of Object.entries((x.run && x.run.options) || {})) out["--" + k] = typeof v === "string" ? v : JSON.stringify(v);
    for (const i of x.inputs) out["input: " + i.name] = i.checksum;
    return out;
  }

  function runSelect(label) {
    if (app.runs().length < 2) return null;
    return h("label", {}, label, h("select", { "aria-label": label, onchange: (e) => { o.other = e.target.value; o.right = ""; keep(); draw(); } }, app.runs().map((r) => h("option", { value: r.run, selected: r === otherRun() }, runName(r)))));
  }

  const key = (a) => (a.version !== undefined ? `step ${a.version}` : `rollout ${a.rollout}`);
  const orderOf = (a) => (a.version !== undefined ? a.version : a.rollout);

  async function prompt() {
    if (!prompts) prompts = await get(`runs/${app.run().run}/prompts`);
    if (o.line === "" && prompts.sets.length) { o.set = prompts.sets[0].name; o.line = "0"; }
    else if (o.line === "" && prompts.lines.length) o.line = String(prompts.lines[0].line);
    if (o.line === "") return show(body, h("p", { class: "empty" }, "No prompt was answered twice yet: neither in two evaluations nor in a second epoch."));
    const ask = (r) => get(`runs/${r.run}/answers` + query({ set: o.set, line: o.line }));
    const b = otherRun();
    [answers.left, answers.right] = await Promise.all(b === app.run() ? [ask(app.run())].flatMap((p) => [p, p]) : [ask(app.run()), ask(b)]);
    const sources = [...prompts.sets.map((s) => ["set:" + s.name, `${s.name} (${plural(s.n_evals, "evaluation")})`]), ...(prompts.lines.length || !o.set ? [["", "prompts of the training data"]] : [])];
    const source = h("select", { "aria-label": "prompts of", onchange: () => { o.set = source.value.slice(4); o.line = source.value ? "0" : String(prompts.lines[0]?.line ?? ""); o.left = o.right = ""; keep(); draw(); } }, sources.map(([v, text]) => h("option", { value: v, selected: v === (o.set ? "set:" + o.set : "") }, text)));
    const which = h("input", { type: "number", min: o.set ? 0 : 1, value: o.line, size: 6, "aria-label": "prompt", oninput: calm(() => { o.line = which.value; keep(); draw(); }, 250) });
    show(body, h("div", { class: "bar" }, source, h("label", {}, o.set ? "prompt" : "line", which), h("button", { onclick: () => step(-1) }, "←"), h("button", { onclick: () => step(1) }, "→"), runSelect("right side of")),
      h("div", { class: "card" }, h("pre", {}, textOf(answers.left) || `Prompt ${o.line} of ${o.set}`), labelOf(answers.left)),
      h("div", { class: "two" }, side("left", app.run()), side("right", b)));
  }

  const textOf = (a) => (typeof a.prompt === "string" ? a.prompt : a.prompt ? a.prompt.prompt : "");
  function labelOf(a) {
    const label = a.prompt && a.prompt.label !== undefined ? a.prompt.label : a.answers[0] && a.answers[0].label;
    return label === undefined || label === null ? null : h("p", { class: "small soft" }, "label ", h("code", {}, typeof label === "string" ? label : JSON.stringify(label)));
  }

  function side(name, run) {
    const all = answers[name].answers, found = [...new Map(all.map((a) => [key(a), orderOf(a)])).entries()].sort((a, b) => a[1] - b[1]).map(([k]) => k);
    if (!found.length) return h("div", { class: "card" }, h("p", { class: "empty" }, `${runName(run)} has no answer to it.`));
    const now = found.includes(o[name]) ? o[name] : name === "left" ? found[0] : found[found.length - 1];
    const select = h("select", { "aria-label": `${name} version`, onchange: () => { o[name] = select.value; keep(); draw(); } }, found.map((k) => h("option", { value: k, selected: k === now }, k)));
    const mine = all.filter((a) => key(a) === now), rewards = mine.map((a) => a.reward).filter((r) => r !== null);
    return h("section", {}, h("div", { class: "bar" }, app.runs().length > 1 ? h("b", {}, runName(run)) : null, select, h("span", { class: "small soft number" }, rewards.length ? `mean reward ${num(rewards.reduce((a, b) => a + b, 0) / rewards.length)} of ${plural(mine.length, "answer")}` : plural(mine.length, "answer"))),
      mine.map((a) => h("article", { class: "card answer" }, h("div", { class: "chart-head" }, a.id !== undefined ? h("a", { href: app.link("sample", { id: a.id, run: run.run || "" }), class: "number" }, `member ${a.member}`) : h("span", { class: "soft small" }, `member ${a.member}`), rewardBadge(a.reward), h("span", { class: `badge ${STATUS[a.status] || ""}` }, a.status), h("span", { class: "small soft number" }, plural(a.n_response ?? 0, "token"))), a.error ? h("p", { class: "error small" }, a.error) : null, h("pre", {}, a.response ?? ""))));
  }

  function step(d) {
    if (o.set) o.line = String(Math.max(0, Number(o.line) + d));
    else {
      const lines = prompts.lines.map((l) => l.line), i = lines.indexOf(Number(o.line));
      o.line = String(i >= 0 && lines[i + d] !== undefined ? lines[i + d] : Math.max(1, Number(o.line) + d));
    }
    keep();
    draw();
  }

  async function draw() {
    try {
      await (o.what === "options" ? options() : prompt());
    } catch (e) {
      if (e.message !== "no answer") show(body, h("p", { class: "empty error" }, e.message));
    }
  }

  return {
    async update() {
      const now = `${app.run().run} ${app.run().step}`; // newer weights may have answered
      if (shownFor === now || body.contains(document.activeElement)) return;
      shownFor = now;
      prompts = null;
      await draw();
    },
    key(k) {
      if (k === "o") mode.choose(o.what === "prompt" ? "options" : "prompt");
      else if (o.what === "prompt" && prompts && (k === "j" || k === "k")) step(k === "j" ? 1 : -1);
      else return false;
      return true;
    },
  };
}
