// Raw /generate: a prompt as text or ids, the tokens of prompt and reply, the request and the response.

import { events } from "./api.js";
import { h, show } from "./dom.js";
import * as fields from "./fields.js";
import { TokenList } from "./tokens.js";

let running = null, list = null, prompt, asIds, score, form, button, out, sent, came, problem;

// [log-probability, id, text] and the alternatives at that position
const add = (entry, top, isPrompt) => list.add({ logp: entry[0], id: entry[1], text: entry[2], prompt: isPrompt, top: (top || []).map(([logp, id, text]) => ({ logp, id, text })) });

function request() {
  const ids = asIds.checked && prompt.value.split(/[\s,[\]]+/).filter(Boolean).map(Number);
  if (ids && !ids.every(Number.isInteger)) throw new Error("ids are whole numbers, with spaces or commas between");
  const params = fields.native();
  if (score.checked) params.stream_interval = 16; // every event repeats the prompt's log-probabilities
  return { ...(ids ? { input_ids: ids } : { text: prompt.value }), sampling_params: params, stream: true, return_logprob: true,
    logprob_start_len: score.checked ? 0 : -1, top_logprobs_num: fields.alternatives(), return_text_in_logprobs: true };
}

async function run() {
  const body = request();
  if (list) list.forget();
  list = new TokenList();
  show(out, list.box);
  sent.textContent = JSON.stringify(body, null, 1);
  came.textContent = "";
  running = new AbortController();
  button.textContent = "stop";
  let n = 0, last = null;
  for await (const event of events("generate", body, running.signal)) {
    const m = event.meta_info; // cumulative: new entries follow the old ones
    if (last === null) m.input_token_logprobs.forEach((t, i) => add(t, m.input_top_logprobs[i], true));
    for (; n < m.output_token_logprobs.length; n++) add(m.output_token_logprobs[n], m.output_top_logprobs[n], false);
    last = event;
    came.textContent = `… ${n} tokens`;
  }
  came.textContent = JSON.stringify(last, null, 1);
}

async function submit(e) {
  e.preventDefault();
  if (running) return running.abort();
  problem.hidden = true;
  try {
    await run();
  } catch (e) {
    problem.textContent = e.name === "AbortError" ? "stopped" : e.message;
    problem.hidden = false;
  }
  running = null;
  button.textContent = "generate";
}

export function mount(box) {
  if (!form) {
    prompt = h("textarea", { rows: 5, name: "prompt", placeholder: "a prompt, as the model reads it" });
    asIds = h("input", { type: "checkbox", name: "as ids" });
    score = h("input", { type: "checkbox", name: "score" });
    button = h("button", { type: "submit", class: "on" }, "generate");
    form = h("form", { class: "composer", onsubmit: submit }, prompt, h("div", { class: "bar" }, button, h("label", {}, asIds, "these are ids"), h("label", {}, score, "numbers of the prompt too")));
    problem = h("p", { class: "error", role: "alert", hidden: true });
    out = h("div", { class: "message" });
    sent = h("pre", { id: "sent" });
    came = h("pre", { id: "came" });
  }
  show(box, form, problem, out, h("details", {}, h("summary", {}, "request"), sent), h("details", {}, h("summary", {}, "reply"), came));
  prompt.focus();
}
