// Chat with the policy: sends messages to /v1/chat/completions like any client and shows the reply's tokens.

import { events } from "./api.js";
import { h, num, plural, seconds, show } from "./dom.js";
import * as fields from "./fields.js";
import { TokenList } from "./tokens.js";

const said = []; // {role, content, reasoning_content, card, tokens, failed}
let running = null, model = "", log, form, system, input, button;

// Omits failed replies, and those stopped before their first word.
const history = () => said.filter((m) => !m.failed && (m.role === "user" || m.content || m.reasoning_content)).map(({ role, content, reasoning_content: r }) => ({ role, content, ...(r ? { reasoning_content: r } : {}) }));

function forget(from) {
  for (const m of said.splice(from)) {
    m.card.remove();
    if (m.tokens) m.tokens.forget();
  }
}

// Keeps the page at the end if it was there; otherwise leaves the scroll position.
function follow(change) {
  const page = document.documentElement, atEnd = scrollY + innerHeight > page.scrollHeight - 60;
  change();
  if (atEnd) scrollTo(0, page.scrollHeight);
}

function card(role, ...content) {
  const e = h("section", { class: `message ${role}` }, h("h3", {}, role), content);
  follow(() => log.append(e));
  return e;
}

function addTokens(list, choice) {
  const numbers = (choice.logprobs && choice.logprobs.content) || [];
  (choice.token_ids || []).forEach((id, i) => {
    const n = numbers[i];
    list.add({ id, text: n ? n.token : `<${id}>`, bytes: n && n.bytes, logp: n ? n.logprob : null, top: n && n.top_logprobs.map((t) => ({ text: t.token, bytes: t.bytes, logp: t.logprob })) });
  });
}

// Shows the server's parse of the tokens if it is not just their text.
function drawParsed(box, m, calls) {
  show(box, m.reasoning_content ? [h("h3", {}, "reasoning"), h("pre", { class: "soft" }, m.reasoning_content)] : null,
    m.reasoning_content || calls.length ? [h("h3", {}, "reply"), h("pre", { class: "reply" }, m.content)] : null,
    calls.map((c) => [h("h3", {}, `calls ${c.name}`), h("pre", {}, c.arguments)]));
}

async function answer() {
  const m = { role: "assistant", content: "", reasoning_content: "", tokens: new TokenList() };
  const parsed = h("div", {}), foot = h("p", { class: "soft small foot" }), calls = [];
  const messages = [...(system.value.trim() ? [{ role: "system", content: system.value }] : []), ...history()];
  const top = fields.alternatives();
  const body = { model, messages, ...fields.openai(), stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: top, return_token_ids: true };
  m.card = card("assistant", m.tokens.box, parsed, foot);
  said.push(m);
  running = new AbortController();
  button.textContent = "stop";
  const began = performance.now();
  let first = null, end = null, usage = null, seed = null, problem = "", due = false;
  const draw = () => { due = false; drawParsed(parsed, m, calls); };
  try {
    for await (const event of events("v1/chat/completions", body, running.signal)) {
      usage = event.usage || usage;
      for (const c of event.choices) {
        if (first === null && (c.token_ids || []).length) first = performance.now();
        m.content += c.delta.content || "";
        m.reasoning_content += c.delta.reasoning_content || "";
        for (const t of c.delta.tool_calls || []) {
          calls[t.index] = calls[t.index] || { name: t.function.name, arguments: "" };
          calls[t.index].arguments += t.function.arguments || "";
        }
        follow(() => addTokens(m.tokens, c));
        end = c.finish_reason || end;
        seed = c.seed_text || seed;
      }
      if (!due) requestAnimationFrame(draw); // redraws the whole text: at most once a frame
      due = true;
    }
  } catch (e) {
    problem = e.name === "AbortError" ? "stopped" : e.message;
    m.failed = problem !== "stopped";
  }
  follow(draw);
  const took = (performance.now() - began) / 1000, n = m.tokens.tokens.length;
  show(foot, problem && problem !== "stopped" ? h("span", { class: "error", role: "alert" }, problem) : null,
    [problem === "stopped" ? problem : end && `ended: ${end}`, plural(n, "token"), usage && `prompt ${num(usage.prompt_tokens)}`,
      first !== null && `first after ${seconds((first - began) / 1000)}`, n > 1 && `${num(n / took)} a second`, seed && `seed ${seed}`].filter(Boolean).join(" · "));
  running = null;
  button.textContent = "send";
}

async function submit(e) {
  e.preventDefault();
  if (running) return running.abort();
  const text = input.value;
  if (!text.trim()) return;
  input.value = "";
  said.push({ role: "user", content: text, card: card("user", h("pre", {}, text)) });
  await answer();
}

async function again() {
  if (running || !said.length) return;
  if (said[said.length - 1].role === "assistant") forget(said.length - 1);
  await answer();
}

export function mount(box, name) {
  model = name;
  if (!log) {
    log = h("div", { class: "log", "aria-live": "polite" });
    system = h("textarea", { rows: 1, name: "system", placeholder: "system message" });
    input = h("textarea", { rows: 3, name: "message", placeholder: "say something (Enter sends, Shift+Enter is a new line)", onkeydown: (e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!running) form.requestSubmit(); } } });
    button = h("button", { type: "submit", class: "on" }, "send");
    form = h("form", { class: "composer", onsubmit: submit }, input,
      h("div", { class: "bar" }, button, h("button", { type: "button", onclick: again }, "again"), h("button", { type: "button", onclick: () => { if (!running) forget(0); } }, "forget all")));
  }
  show(box, system, log, form);
  input.focus();
}
