// Samples by filter and order, page by page. A list has figures and the first words; sample.js shows the rest.

import { get, query } from "./api.js";
import { calm, h, num, plural, show } from "./dom.js";

export const title = "Samples";
export const keys = [["j k", "next, previous sample"], ["Enter", "open it"], ["g", "its group"], ["o", "another order"]];

const ORDERS = [["newest", "newest first"], ["oldest", "oldest first"], ["best", "highest reward"], ["worst", "lowest reward"], ["longest", "longest"], ["shortest", "shortest"]];
const FIELDS = ["rollout", "group", "step", "status", "reward_min", "reward_max", "length_min", "length_max", "text", "order"];
const MOST = 2000; // rows of a list; a filter finds the rest

export const STATUS = { completed: "good", truncated: "warn", failed: "bad", aborted: "warn", pending: "" };
export const rewardBadge = (r) => h("span", { class: `reward number ${r === null ? "none" : ""}` }, r === null ? "no reward" : num(r));
export const versionsOf = (v) => (v || []).map((x) => x[0]).filter((x, i, a) => a.indexOf(x) === i);

export function mount(root, app) {
  const f = Object.fromEntries(FIELDS.map((k) => [k, app.params[k] || ""]));
  let rows = [], next = null, at = -1, abort = null, loaded = false, searched = true;
  const field = (name, label, props) => h("label", {}, label, h("input", { name, value: f[name], inputMode: "decimal", size: 6, "aria-label": label, ...props }));
  const find = h("input", { type: "search", class: "grow", id: "find", name: "text", placeholder: "Find in responses and prompts", "aria-label": "find in responses and prompts", value: f.text });
  const status = h("select", { name: "status", "aria-label": "status" }, [["", "any status"], ...Object.keys(STATUS).map((s) => [s, s])].map(([v, t]) => h("option", { value: v, selected: v === f.status }, t)));
  const order = h("select", { name: "order", "aria-label": "order" }, ORDERS.map(([v, t]) => h("option", { value: v, selected: v === f.order }, t)));
  const filters = h("details", { class: "filters", open: innerWidth > 760 || FIELDS.some((k) => f[k] && !["text", "status", "order"].includes(k)) }, h("summary", {}, "More filters"), field("rollout", "rollout"), field("group", "group"), field("step", "step"),
    h("label", {}, "reward", h("input", { name: "reward_min", value: f.reward_min, size: 4, placeholder: "from", "aria-label": "reward from" }), h("input", { name: "reward_max", value: f.reward_max, size: 4, placeholder: "to", "aria-label": "reward to" })),
    h("label", {}, "length", h("input", { name: "length_min", value: f.length_min, size: 4, placeholder: "from", "aria-label": "length from" }), h("input", { name: "length_max", value: f.length_max, size: 4, placeholder: "to", "aria-label": "length to" })),
    h("button", { type: "button", onclick: clear }, "Clear"));
  const typed = calm(changed, 90);
  const form = h("form", { class: "bar", onsubmit: (e) => e.preventDefault(), oninput: (e) => (e.target.tagName === "SELECT" ? changed() : typed()) }, find, status, order,
    filters);
  const list = h("div", { class: "card rows", role: "list" }), foot = h("p", { class: "small soft" }), fresh = h("button", { hidden: true, onclick: () => load(false) }, "Newer samples");
  show(root, form, fresh, list, foot);
  const end = new IntersectionObserver((e) => { if (e.some((x) => x.isIntersecting) && next && searched && rows.length < MOST) load(true); }, { rootMargin: "600px" });
  end.observe(foot);

  function clear() {
    for (const i of form.elements) if (i.name) i.value = i.name === "order" ? "newest" : "";
    changed();
  }

  function changed() {
    for (const k of FIELDS) f[k] = form.elements[k].value.trim();
    const timed = !f.order || f.order === "newest" || f.order === "oldest";
    if (f.text && !timed) { order.value = f.order = "newest"; }
    app.keep(f);
    load(false);
  }

  // more: loads the next page. A search that hit its time limit resumes there.
  async function load(more) {
    if (abort) abort.abort();
    abort = new AbortController();
    const mine = abort;
    searched = false;
    if (!more) { next = null; at = -1; }
    foot.classList.add("busy");
    foot.textContent = f.text ? "searching …" : "reading …";
    let first = !more;
    try {
      for (;;) {
        const wanted = 50;
        const got = await get(`runs/${app.run().run}/samples` + query({ ...f, limit: wanted, after: next ? next.id : "", after_value: next ? next.value : "" }), mine.signal);
        if (first) { rows = []; show(list); fresh.hidden = true; }
        first = false;
        next = got.next;
        add(got.samples);
        if (got.complete || rows.length % wanted === 0 && rows.length) break;
        if (got.samples.length) foot.textContent = `${plural(rows.length, "sample")}, searching on …`;
      }
      loaded = searched = true;
      foot.textContent = !rows.length ? "" : next ? (rows.length >= MOST ? `The first ${num(rows.length)}. A narrower filter shows the rest.` : `${plural(rows.length, "sample")} so far`) : plural(rows.length, "sample");
      if (!rows.length) show(list, h("p", { class: "empty" }, FIELDS.some((k) => f[k] && k !== "order") ? "No sample matches. Clear takes every filter away." : "No sample yet: the first rollout is being generated."));
    } catch (e) {
      if (e.name !== "AbortError") { foot.textContent = ""; if (e.message !== "no answer") show(list, h("p", { class: "empty error" }, e.message)); loaded = searched = true; }
    }
    if (mine === abort) foot.classList.remove("busy");
  }

  // The words with the search term marked; null if there are none.
  function marked(words) {
    const i = f.text ? words.toLowerCase().indexOf(f.text.toLowerCase()) : -1;
    if (i < 0) return words || null;
    return [words.slice(0, i), h("mark", {}, words.slice(i, i + f.text.length)), words.slice(i + f.text.length)];
  }

  function add(samples) {
    for (const s of samples) {
      const versions = versionsOf(s.versions);
      const e = h("a", { class: "row", role: "listitem", href: app.link("sample", { id: s.id }) },
        rewardBadge(s.reward), h("span", { class: "row-words" }, s.error ? h("span", { class: "error" }, s.error) : marked((s.words || "").replace(/\s+/g, " ")) || h("span", { class: "faint" }, s.status === "pending" ? "not there yet" : "no text")),
        h("span", { class: `badge ${STATUS[s.status]}` }, s.status), h("span", { class: "row-facts small soft number" }, h("span", {}, plural(s.n_response, "token")), h("span", {}, `rollout ${s.rollout}`), h("span", {}, `group ${s.group}.${s.member}${s.part ? "." + s.part : ""}`), versions.length ? h("span", {}, `weights ${versions.join(", ")}`) : null));
      rows.push({ s, e });
      list.append(e);
    }
  }

  function choose(i) {
    if (!rows.length) return;
    at = Math.max(0, Math.min(rows.length - 1, i));
    rows[at].e.focus({ preventScroll: true });
    rows[at].e.scrollIntoView({ block: "nearest" });
  }
  list.addEventListener("focusin", (e) => (at = rows.findIndex((r) => r.e === e.target)));

  return {
    async update() {
      if (!loaded && !abort) await load(false);
      const newest = rows[0] && (!f.order || f.order === "newest") && !FIELDS.some((k) => f[k] && k !== "order");
      fresh.hidden = !(newest && app.run().state === "running" && app.run().n_samples > rows[0].s.id);
    },
    key(k) {
      if (k === "j" || k === "ArrowDown") choose(at + 1);
      else if (k === "k" || k === "ArrowUp") choose(at - 1);
      else if (k === "Enter" && at >= 0) rows[at].e.click();
      else if (k === "g" && at >= 0) app.go("group", { id: rows[at].s.group });
      else if (k === "o") { order.selectedIndex = (order.selectedIndex + 1) % ORDERS.length; changed(); }
      else return false;
      return true;
    },
    unmount() { end.disconnect(); if (abort) abort.abort(); },
  };
}
