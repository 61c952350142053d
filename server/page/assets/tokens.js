// The drawn tokens, coloured by log-probability or id; the selected one is shown with its alternatives. Texts are
// inserted as text nodes only.

import { exact, h, num, segmented, show } from "./dom.js";

const WAYS = [["logp", "log-probability"], ["id", "id"], ["none", "none"]];
const SHOWN = [["text", "text"], ["ids", "ids"]];
let way = "logp", shown = "text", chosen = null;
const lists = new Set();
const box = document.getElementById("token");

// Bytes that are not text by themselves (a partial character) as \x..
function spell(t) {
  if (!t.bytes) return t.text;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(t.bytes));
  } catch {
    return t.bytes.map((b) => "\\x" + b.toString(16).padStart(2, "0")).join("");
  }
}

const golden = (id) => (id * 137.508) % 360; // adjacent ids get distant colours
function paint(e, t) {
  e.textContent = shown === "ids" ? `${t.id} ` : spell(t);
  const weight = t.logp === null ? 0 : Math.min(0.85, (-t.logp / 6) * 0.85);
  e.style.backgroundColor = way === "id" ? `hsl(${golden(t.id)} 70% 55% / .3)` : way === "logp" && weight > 0 ? `rgb(217 102 10 / ${weight.toFixed(3)})` : "";
}

export class TokenList {
  constructor() {
    this.tokens = [];
    this.box = h("pre", { class: "tokens" });
    lists.add(this);
  }

  // t: {id, text, bytes or null, logp or null, top: [{text, bytes, logp, id}], prompt}
  add(t) {
    const at = this.tokens.push(t) - 1;
    const e = h("span", { class: t.prompt ? "tok prompt" : "tok", role: "button", tabIndex: 0, onclick: () => e.focus(), onfocus: () => choose(this, at) });
    paint(e, t);
    this.box.append(e);
  }

  repaint() {
    this.tokens.forEach((t, i) => paint(this.box.children[i], t));
  }

  forget() {
    lists.delete(this);
    if (chosen && chosen.list === this) drawNone();
  }
}

function drawNone() {
  chosen = null;
  show(box, h("h3", {}, "token"), h("p", { class: "soft small" }, "Choose one: its id, its number and what else could have come. Arrow keys walk."));
}

const row = (name, value, mark) => h("tr", {}, h("th", {}, name), h("td", { "data-value": mark || name }, value));
const percent = (logp) => `${num(Math.exp(logp) * 100)} %`;

function choose(list, at) {
  if (chosen) chosen.list.box.children[chosen.at].classList.remove("chosen");
  chosen = { list, at };
  list.box.children[at].classList.add("chosen");
  const t = list.tokens[at];
  show(box, h("h3", {}, t.prompt ? "token of the prompt" : "token"),
    h("table", {}, row("text", h("code", {}, JSON.stringify(spell(t)))), row("id", String(t.id)), row("position", String(at)),
      row("log-probability", t.logp === null ? "none" : exact(t.logp), "logp"), row("probability", t.logp === null ? "none" : percent(t.logp))),
    t.top && t.top.length ? h("table", { class: "alternatives" }, h("tr", {}, h("th", {}, "could have been"), h("th", { class: "right" }, "log-probability")),
      t.top.map((o) => h("tr", {}, h("td", {}, h("code", {}, JSON.stringify(spell(o)))), h("td", { class: "right" }, `${num(o.logp)} (${percent(o.logp)})`)))) : null);
}

document.addEventListener("keydown", (e) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
  if (!step || !chosen || !e.target.closest(".tok")) return;
  const next = chosen.list.box.children[chosen.at + step];
  if (next) next.focus();
  e.preventDefault();
});

export function mount(bar) {
  const set = (change) => (v) => { change(v); for (const l of lists) l.repaint(); };
  bar.append(h("label", {}, "colour", segmented(WAYS, way, set((v) => { way = v; }), "colour")),
    h("label", {}, "show", segmented(SHOWN, shown, set((v) => { shown = v; }), "show")));
  drawNone();
}
