// Events and alarms of a run, newest first.

import { get, query } from "./api.js";
import { h, moment, plural, segmented, show } from "./dom.js";

export const title = "Events";
export const keys = [["a", "alarms only, and back"]];

const MOST = 5000; // events on the page; a button loads older ones
const KIND = { alarm: "bad", error: "bad", gap: "bad", skip: "warn", child: "warn", lease: "warn", rank: "warn", worker: "warn", drop: "", start: "accent", recover: "accent", end: "good" };
const HELP = {
  start: "the trainer was started", recover: "it went on from its record", child: "a program that it had started", rank: "a rank was lost; the run starts again from its checkpoint", worker: "an external server", best: "the best version so far was kept", lease: "a sample was begun again",
  order: "asked for by the page, or by SIGTERM", memory: "what training needs of memory, by parts", drop: "a group was not used", skip: "a step without a finite gradient", gap: "the server's log-probability is not the trainer's", error: "why the trainer ended", end: "the run is done", alarm: "something to look at",
};

// Parses an alarm's event (docs/alarms.md); null if unknown to this page.
function alarmOf(v) {
  if (v.kind !== "alarm") return null;
  try {
    const a = JSON.parse(v.detail);
    return a && typeof a.alarm === "string" ? a : null;
  } catch {
    return null;
  }
}

export function mount(root, app) {
  const place = (a) => (a.rollout >= 0 ? h("a", { class: "small number", href: app.link("samples", { rollout: a.rollout }) }, `rollout ${a.rollout}`) : null);
  const words = (a) => [h("b", {}, a.alarm), ` ${a.cause || ""} `, place(a), a.advice ? h("p", { class: "advice small" }, a.advice) : null];
  let all = [], next = null, kind = app.params.kind || "", newest = 0;
  const raised = h("div"), list = h("div", { class: "card events" }), more = h("button", { hidden: true, onclick: () => page() }, "Older events"), count = h("span", { class: "small soft" });
  const pick = segmented([["", "all"], ["alarm", "alarms"], ["start", "starts"], ["child", "programs"], ["drop", "dropped groups"], ["error", "errors"]], kind, (k) => { kind = k; app.keep({ kind }); all = []; next = null; newest = 0; page(); }, "kind");
  show(root, h("div", { class: "bar" }, pick, count), raised, list, h("p", {}, more));

  // An alarm is raised or not by its newest event.
  async function drawRaised() {
    const last = new Map();
    for (const v of (await get(`runs/${app.run().run}/events` + query({ kind: "alarm", limit: 500 }))).events) { const a = alarmOf(v); if (a && !last.has(a.alarm)) last.set(a.alarm, { ...a, at_us: v.at_us }); }
    const now = [...last.values()].filter((a) => a.state === "raised");
    show(raised, now.map((a) => h("section", { class: "card alarm" }, h("div", { class: "small soft number" }, `raised ${moment(a.at_us)}`), words(a))));
  }

  async function page() {
    const got = await get(`runs/${app.run().run}/events` + query({ kind, before: next ?? "" }));
    all = next === null ? got.events : all.concat(got.events);
    next = got.next;
    newest = all.length ? all[0].id : 0;
    draw();
  }

  function draw() {
    more.hidden = next === null;
    count.textContent = all.length ? plural(all.length, "event") + (next === null ? "" : " so far") : "";
    show(list, all.length ? all.map((v) => {
      const a = alarmOf(v);
      return h("div", { class: "event" }, h("time", { class: "small faint number" }, moment(v.at_us)), h("span", { class: `badge ${a && a.state === "cleared" ? "good" : KIND[v.kind] || ""}`, title: HELP[v.kind] || "" }, a && a.state === "cleared" ? "cleared" : v.kind), h("span", { class: "event-text" }, a ? words(a) : v.detail));
    }) : h("p", { class: "empty" }, kind === "alarm" ? "No alarm. Nothing in this run has asked for a look." : "No event of this kind."));
  }

  return {
    async update() {
      await drawRaised();
      if (!all.length && next === null && !newest) return page();
      const known = newest, fresh = [];
      let got, before = "";
      do { // a burst may exceed one answer
        got = await get(`runs/${app.run().run}/events` + query({ kind, before, limit: 500 }));
        fresh.push(...got.events.filter((v) => v.id > known));
        before = got.next;
      } while (before !== null && before > known && fresh.length < MOST);
      if (!fresh.length || known !== newest) return; // another kind was chosen meanwhile
      all = fresh.concat(all);
      if (all.length > MOST) next = all[MOST - 1].id;
      all = all.slice(0, MOST);
      newest = all[0].id;
      draw();
    },
    key(k) {
      if (k !== "a") return false;
      pick.choose(kind === "alarm" ? "" : "alarm");
      return true;
    },
  };
}
