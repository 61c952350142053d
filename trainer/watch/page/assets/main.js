// The frame: runs, tabs, keys, and a refresh of the current view every two seconds. The address holds the view's state.

import { get, onFailure, query } from "./api.js";
import { h, num, plural, runColour, show } from "./dom.js";
import { Metrics } from "./metrics.js";
import * as curves from "./curves.js";
import * as time from "./time.js";
import * as fleet from "./fleet.js";
import * as samples from "./samples.js";
import * as sample from "./sample.js";
import * as group from "./group.js";
import * as compare from "./compare.js";
import * as events from "./events.js";

const EVERY_MS = 2000;
const tabs = { curves, time, fleet, samples, compare, events };
const views = { ...tabs, sample, group };
const el = (id) => document.getElementById(id);

let runs = [], view = null, current = "", hidden = new Set(), stores = new Map(), refreshing = false;

const app = {
  params: {},
  runs: () => runs,
  // Runs whose curves are shown.
  chosen: () => runs.filter((r) => !hidden.has(r.run) && !r.error),
  // The run shown in the other views.
  run: () => { const n = Number(app.params.run || 0); return runs[n] || runs[0]; },
  metrics(run) {
    if (!stores.has(run)) stores.set(run, new Metrics(run));
    return stores.get(run);
  },
  link: (name, params) => "#" + name + query({ run: app.run() && app.run().run ? app.run().run : "", ...params }),
  go(name, params) { location.hash = app.link(name, params).slice(1); },
  // Stores a view's state in the address, without a new history entry.
  keep(params) {
    const kept = { ...app.params, ...params };
    app.params = Object.fromEntries(Object.entries(kept).filter(([, v]) => v !== "" && v !== undefined && v !== null));
    history.replaceState(null, "", "#" + current + query(app.params));
  },
  refresh,
};

function read() {
  const [name, rest] = location.hash.slice(1).split("?");
  return [views[name] ? name : "curves", Object.fromEntries(new URLSearchParams(rest || ""))];
}

function open() {
  const [name, params] = read();
  app.params = params;
  if (view) view.unmount && view.unmount();
  current = name;
  document.title = `${views[name].title} · clime`;
  show(el("view"));
  window.scrollTo(0, 0);
  view = views[name].mount(el("view"), app);
  drawHeader();
  refresh();
}

function drawHeader() {
  const tab = tabs[current] ? current : "samples";
  const main = app.run(), raised = main && main.n_alarms;
  show(el("tabs"), Object.entries(tabs).map(([name, v]) => h("a", { href: app.link(name), role: "tab", "aria-selected": String(name === tab) }, v.title, name === "events" && raised ? h("span", { class: "badge bad", title: plural(raised, "alarm") }, num(raised)) : null)));
  show(el("runs"), runs.map((r) => {
    const name = r.dir.replace(/\/+$/, "").split("/").pop() || r.dir;
    const state = r.error ? "error" : r.state;
    return h("button", {
      class: `run ${hidden.has(r.run) ? "off" : ""} ${r === main ? "main" : ""}`,
      title: `${r.dir}\n${r.error || `${plural(r.n_samples || 0, "sample")}, ${plural(r.n_starts || 0, "start")}`}${runs.length > 1 ? (current === "curves" ? "\nclick: show or hide its curves" : "\nclick: show this run") : ""}`,
      onclick: () => pick(r),
    }, h("span", { class: "dot", style: { background: `var(${runColour(r.run)})` } }), name, h("span", { class: `state ${state}` }, state), r.step ? h("span", { class: "faint number" }, `step ${num(r.step)}`) : null);
  }));
}

function pick(r) {
  if (current === "curves") {
    if (runs.length > 1) { if (hidden.has(r.run)) hidden.delete(r.run); else if (app.chosen().length > 1) hidden.add(r.run); }
    drawHeader();
    refresh();
  } else {
    location.hash = current.replace(/^(sample|group)$/, "samples") + query({ run: r.run || "" });
  }
}

let headerSays = "";
async function refresh() {
  if (refreshing || document.hidden) return;
  refreshing = true;
  const shown = view;
  try {
    runs = (await get("runs")).runs;
    const says = JSON.stringify([runs.map((r) => [r.state, r.step, r.error, r.n_samples, r.n_alarms]), current]);
    if (says !== headerSays) drawHeader();
    headerSays = says;
    const broken = runs.find((r) => r.error);
    notice(broken ? `${broken.dir}: ${broken.error}` : null, "ledger");
    if (shown && shown === view) await shown.update();
    notice(null, "view");
  } catch (e) {
    if (e.message !== "no answer" && e.name !== "AbortError") notice(e.message, "view");
  }
  refreshing = false;
  if (shown !== view) refresh();
}

const notices = {};
function notice(text, from) {
  notices[from] = text;
  const all = Object.values(notices).filter(Boolean).join("  ");
  el("notice").hidden = !all;
  if (el("notice").textContent !== all) el("notice").textContent = all;
}
onFailure((text) => notice(text, "program"));

function help() {
  const row = ([k, text]) => [h("dt", {}, k.split(" ").map((x) => [h("kbd", {}, x), " "])), h("dd", {}, text)];
  const all = Object.keys(tabs).map((_, i) => i + 1);
  show(el("help"), h("h2", {}, "Keys"), h("dl", { class: "keys" },
    row([`${all[0]} – ${all[all.length - 1]}`, "the views, from left to right"]), row(["/", "find"]), row(["Esc", "leave a field; back"]), row(["?", "these keys"]),
    (views[current].keys || []).map(row)), h("p", { class: "small soft" }, "What the page shows is in RUN/ledger.db; docs/ledger.md says how to ask it."), h("button", { onclick: () => el("help").close() }, "Close"));
  el("help").showModal();
}

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || el("help").open) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== "checkbox" && e.target.type !== "range";
  if (typing) {
    if (e.key === "Escape") e.target.blur();
    return;
  }
  const names = Object.keys(tabs);
  if (e.key === "?") help();
  else if (e.key === "/" && el("find")) el("find").focus();
  else if (e.key >= "1" && e.key <= String(names.length)) app.go(names[Number(e.key) - 1]);
  else if (e.key === "Escape") { if (!(view && view.key && view.key("Escape"))) history.back(); }
  else if (!(view && view.key && view.key(e.key, e))) return;
  e.preventDefault();
});
el("help-button").addEventListener("click", help);
window.addEventListener("hashchange", open);
document.addEventListener("visibilitychange", refresh);
setInterval(refresh, EVERY_MS);
open();
