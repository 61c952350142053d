// One sample, token by token: colours, the exact numbers of each token, the turns of an agent, the branches of a session.

import { get } from "./api.js";
import { exact, h, moment, num, plural, seconds, segmented, show } from "./dom.js";
import { Tokens, WAYS } from "./paint.js";
import { rewardBadge, STATUS, versionsOf } from "./samples.js";

export const title = "Sample";
export const keys = [["j k", "next, previous sample of the group"], ["c", "colour by something else"], ["[ ]", "previous, next token"], ["n", "next unlikely token"], ["g", "the group, side by side"]];

const BLOCK = 400; // tokens per element: hidden elements are not laid out

export function mount(root, app) {
  const id = Number(app.params.id);
  let t = null, seen = 0, tokens = null, way = app.params.colour || "logp", at = -1, spans = [], paths = null;
  show(root, h("p", { class: "empty busy" }, "reading …"));

  function head() {
    const s = t.sample, versions = versionsOf(s.versions), fact = (n, v) => (v === null || v === undefined ? null : h("div", { class: "fact" }, h("span", { class: "soft small" }, n), h("b", { class: "number" }, v)));
    return h("div", { class: "card" },
      h("div", { class: "sample-head" }, h("h1", { class: "number" }, `Sample ${s.rollout} / ${s.group} / ${s.member}${s.part ? " / " + s.part : ""}`), rewardBadge(s.reward), h("span", { class: `badge ${STATUS[s.status]}` }, s.status), s.removed ? h("span", { class: "badge warn" }, "not trained on") : null),
      s.error ? h("p", { class: "error" }, s.error) : null,
      h("div", { class: "facts" }, fact("prompt", plural(s.n_prompt, "token")), fact("response", plural(s.n_response, "token")), fact("weights", versions.join(", ") || "–"), s.step === null ? fact("step", "in none") : [fact("step", num(s.step)), fact("advantage, mean", exact(s.advantage))], fact("temperature", num(s.temperature)), fact("sampled in", s.done_us && s.submit_us ? seconds((s.done_us - s.submit_us) / 1e6) : null), fact("done", s.done_us ? moment(s.done_us) : null), fact("attempts", num(s.attempt)), fact("device", s.device), fact("ended by", s.finish ? s.finish.type : null), fact("kept KV from token", s.mixed_kv || null)),
      s.parts ? h("details", {}, h("summary", {}, "What the reward said"), h("pre", {}, JSON.stringify(s.parts, null, 1))) : null,
      s.metadata || t.group.metadata ? h("details", {}, h("summary", {}, "Metadata"), h("pre", {}, JSON.stringify(s.metadata || t.group.metadata, null, 1))) : null);
  }

  const members = () => h("div", { class: "members", role: "navigation", "aria-label": "members of the group" }, h("a", { class: "small", href: app.link("group", { id: t.sample.group }) }, "Side by side"), t.members.map((m) => h("a", { class: `member number ${m.id === id ? "on" : ""}`, href: app.link("sample", { id: m.id, colour: app.params.colour }), title: `${m.status}, ${plural(m.n_response, "token")}` }, `${m.member}${m.part ? "." + m.part : ""} `, rewardBadge(m.reward))));

  // Runs of equal mask: sampled by the policy, or inserted (tools, environment, template).
  function turns() {
    const out = [];
    for (let i = 0; i < tokens.n; i++) {
      const mine = tokens.trained(i);
      if (!out.length || out[out.length - 1].mine !== mine) out.push({ mine, from: i, to: i });
      out[out.length - 1].to = i + 1;
    }
    return out;
  }

  function pieceOf(k) {
    if (t.pieces) return t.pieces[k] === undefined ? "" : t.pieces[k];
    return t.streams.ids ? `[${t.streams.ids[k]}] ` : "";
  }

  function tokenSpans(from, to) {
    const blocks = [];
    for (let a = from; a < to; a += BLOCK) {
      const block = h("span", { class: "block" });
      for (let i = a; i < Math.min(to, a + BLOCK); i++) {
        const text = pieceOf(tokens.n_prompt + i), e = h("span", { class: tokens.trained(i) ? "tok" : "tok context", "data-i": i }, text === "" ? "·" : text.replace(/\n/g, "⏎\n"));
        spans[i] = e;
        block.append(e);
      }
      blocks.push(block);
    }
    return blocks;
  }

  function body() {
    if (!t.streams.ids) return h("div", { class: "card" }, h("p", { class: "soft" }, t.sample.status === "pending" ? "Its tokens are not there yet." : "Its tokens are not kept any more (--keep-rollouts); the figures are."));
    const list = turns(), many = list.length > 1;
    let said = 0;
    const text = h("div", { class: "tokens", onpointerover: (e) => point(e), onclick: (e) => point(e) }, list.map((r) => h("section", { class: r.mine ? "turn" : "turn between" }, many ? h("h3", {}, r.mine ? `Turn ${++said}` : "Not sampled by the policy", h("span", { class: "faint number small" }, `  tokens ${r.from} to ${r.to - 1}`)) : null, h("pre", {}, tokenSpans(r.from, r.to)))));
    const prompt = h("details", { class: "prompt", open: t.group.prompt.length < 1500 }, h("summary", {}, `Prompt, ${plural(t.sample.n_prompt, "token")}`), h("pre", {}, t.pieces ? t.pieces.slice(0, t.sample.n_prompt).join("") : t.group.prompt), t.group.label !== null ? h("p", { class: "small soft" }, "label ", h("code", {}, typeof t.group.label === "string" ? t.group.label : JSON.stringify(t.group.label))) : null);
    const ways = WAYS.filter(([, , , needs]) => needs(tokens));
    if (!ways.some(([n]) => n === way)) way = ways[0][0];
    const legend = h("span", { class: "small soft" });
    const choose = segmented(ways.map(([n, label]) => [n, label]), way, (n) => { way = n; app.keep({ colour: n === "logp" ? "" : n }); paint(legend); }, "colour by");
    const panel = h("aside", { class: "card panel", "aria-live": "polite" });
    root.panel = panel;
    root.choose = () => choose.choose(ways[(ways.findIndex(([n]) => n === way) + 1) % ways.length][0]);
    const out = h("div", { class: "token-view" }, h("div", { class: "card" }, prompt, h("div", { class: "bar" }, h("span", { class: "small soft" }, "Colour by"), choose, legend), t.pieces ? null : h("p", { class: "small soft" }, "Tokens are shown by number: this run's tokenizer is not known (--hf-checkpoint)."), text), panel);
    paint(legend);
    pick(-1);
    return out;
  }

  function paint(legend) {
    const [, , says, , colourOf] = WAYS.find(([n]) => n === way);
    legend.textContent = says;
    spans.forEach((e, i) => { e.style.backgroundColor = colourOf(tokens, i) || ""; });
  }

  function point(e) {
    const i = e.target.dataset && e.target.dataset.i;
    if (i !== undefined) pick(Number(i));
  }

  // Every number of a token in the fewest digits that restore its bits.
  function pick(i) {
    if (spans[at]) spans[at].classList.remove("at");
    at = i;
    if (i < 0) return show(root.panel, h("p", { class: "soft small" }, "Point at a token, tap it, or walk with [ and ], for its numbers as they are stored."));
    spans[i].classList.add("at");
    const row = (name, value, note) => h("tr", {}, h("th", {}, name), h("td", { class: "right mono", "data-value": name }, value, note ? h("div", { class: "faint small" }, note) : null));
    const s = t.streams, logp = tokens.at("logp", i), rows = [row("token", String(s.ids[tokens.n_prompt + i])), row("position", String(i), `${num(tokens.n_prompt + i)} with the prompt`)];
    if (logp !== undefined) rows.push(row("logp", exact(logp), logp === null ? null : `server; probability ${num(Math.exp(logp))}`));
    if (tokens.has("old_logp")) rows.push(row("old_logp", exact(s.old_logp[i]), "trainer, when training began"));
    else if (tokens.trained(i) && t.sample.step !== null) rows.push(row("trainer", "the server's", "the gap of a step is checked and must be 0"));
    const a = tokens.advantage(i);
    if (tokens.has("advantages")) rows.push(row("advantages", exact(a)));
    else if (a !== undefined) rows.push(row("advantage", exact(a), "of the step, for all its tokens"));
    for (const name of Object.keys(s).filter((k) => !["ids", "logp", "old_logp", "advantages", "mask", "entropy"].includes(k) && tokens.has(k))) rows.push(row(name, exact(s[name][i])));
    if (tokens.has("entropy")) rows.push(row("entropy", s.entropy[i] === null ? "none" : exact(s.entropy[i]), s.entropy[i] === null ? "not trained on" : "of the policy there, when it was trained on"));
    if (tokens.has("mask")) rows.push(row("mask", String(s.mask[i]), s.mask[i] ? "sampled by the policy" : "context: not trained on"));
    if (tokens.version[i] !== undefined) rows.push(row("version", String(tokens.version[i])));
    show(root.panel, h("pre", { class: "token-text" }, JSON.stringify(pieceOf(tokens.n_prompt + i))), h("table", {}, rows));
  }

  // A member's parts as paths of one session; shared tokens are one line.
  function tree() {
    const mine = t.members.filter((m) => m.member === t.sample.member);
    if (mine.length < 2) return null;
    const box = h("div", { class: "card" }, h("h2", {}, "Session"), h("p", { class: "small soft" }, "The task ended with several samples: paths of one tree, which part where the tokens differ."));
    const lines = h("div", { class: "tree" }, h("p", { class: "soft busy" }, "reading …"));
    Promise.all(mine.slice(0, 32).map((m) => (m.id === id ? t : get(`runs/${app.run().run}/sample?id=${m.id}`)))).then((all) => {
      paths = all;
      const ids = all.map((x) => x.streams.ids || []);
      show(lines, all.map((x, i) => {
        let shared = 0, parent = -1;
        for (let k = 0; k < i; k++) {
          let n = 0;
          while (n < ids[i].length && n < ids[k].length && ids[i][n] === ids[k][n]) n++;
          if (n > shared) { shared = n; parent = k; }
        }
        const n = new Tokens(x), calls = (x.streams.mask || []).reduce((c, m, j, a) => c + (m && !a[j - 1] ? 1 : 0), 0);
        return h("a", { class: `branch ${x.sample.id === id ? "on" : ""}`, href: app.link("sample", { id: x.sample.id }) }, h("span", { class: "stem", style: { width: `${(ids[i].length ? shared / ids[i].length : 0) * 40}%` }, title: `${shared} tokens shared` }), h("span", { class: "leaf number" }, `part ${x.sample.part} `, rewardBadge(x.sample.reward), h("span", { class: "small soft" }, ` ${plural(n.n, "token")}, ${plural(calls, "turn")}${parent >= 0 ? `, leaves part ${all[parent].sample.part} after ${num(shared)}` : ""}`)));
      }));
    }).catch((e) => show(lines, h("p", { class: "error" }, e.message)));
    return put2(box, lines);
  }
  const put2 = (box, e) => (box.append(e), box);

  function neighbour(d) {
    const i = t ? t.members.findIndex((m) => m.id === id) : -1, m = i >= 0 && t.members[i + d];
    if (m) location.replace("#sample" + app.link("sample", { id: m.id, colour: app.params.colour }).slice("#sample".length));
  }

  // Advantages arrive when its step is chosen, entropies when the step is done.
  const whole = () => t.sample.status !== "pending" && (t.sample.step === null ? t.group.state !== "open" : t.sample.step <= seen);

  return {
    async update() {
      if (t && whole()) return;
      const step = app.run().step ?? 0, got = await get(`runs/${app.run().run}/sample?id=${id}`);
      const same = t && JSON.stringify(t) === JSON.stringify(got);
      seen = step;
      if (same) return;
      t = got;
      tokens = new Tokens(t);
      spans = [];
      show(root, head(), members(), body(), tree());
    },
    key(k) {
      if (!t) return false;
      if (k === "j" || k === "ArrowDown") neighbour(1);
      else if (k === "k" || k === "ArrowUp") neighbour(-1);
      else if (k === "c" && root.choose) root.choose();
      else if ((k === "]" || k === "ArrowRight") && at + 1 < spans.length) walk(at + 1);
      else if ((k === "[" || k === "ArrowLeft") && at > 0) walk(at - 1);
      else if (k === "n" && tokens.has("logp")) { const i = t.streams.logp.findIndex((v, j) => j > at && v < -2 && tokens.trained(j)); if (i >= 0) walk(i); }
      else if (k === "g") app.go("group", { id: t.sample.group });
      else return false;
      return true;
    },
  };

  function walk(i) {
    pick(i);
    spans[i].scrollIntoView({ block: "nearest" });
  }
}
