// The sampling fields: a row each, with its names in OpenAI's requests and in /generate's. Empty fields are not sent.

import { h, show } from "./dom.js";

const NUMBERS = [
  ["temperature", "temperature", "temperature", { min: 0, step: "any" }],
  ["top_p", "top_p", "top_p", { min: 0, max: 1, step: "any" }],
  ["top_k", "top_k", "top_k", { min: -1, step: 1 }],
  ["min_p", "min_p", "min_p", { min: 0, max: 1, step: "any" }],
  ["max tokens", "max_tokens", "max_new_tokens", { min: 1, step: 1 }],
  ["presence penalty", "presence_penalty", "presence_penalty", { min: -2, max: 2, step: "any" }],
  ["frequency penalty", "frequency_penalty", "frequency_penalty", { min: -2, max: 2, step: "any" }],
  ["repetition penalty", "repetition_penalty", "repetition_penalty", { min: 0, max: 2, step: "any" }],
];
const START = { "max tokens": "256" };
const inputs = new Map();

const field = (name, input) => {
  inputs.set(name, input);
  return h("label", {}, h("span", {}, name), input);
};

export function mount(box) {
  show(box, h("h3", {}, "sampling"),
    NUMBERS.map(([name, , , range]) => field(name, h("input", { type: "number", name, placeholder: "default", value: START[name] || "", ...range }))),
    field("seed", h("input", { name: "seed", inputMode: "numeric", placeholder: "a new one", pattern: "-?[0-9]*" })),
    field("stop", h("input", { name: "stop", placeholder: "a text" })),
    field("alternatives", h("input", { type: "number", name: "alternatives", min: 0, max: 20, step: 1, value: "5" })),
    field("go on after its end", h("input", { type: "checkbox", name: "go on after its end" })));
}

const value = (name) => inputs.get(name).value.trim();
export const alternatives = () => Number(value("alternatives") || 0);

function common(out, which) {
  for (const row of NUMBERS) if (value(row[0]) !== "") out[row[which]] = Number(value(row[0]));
  if (value("stop") !== "") out.stop = [inputs.get("stop").value];
  if (inputs.get("go on after its end").checked) out.ignore_eos = true;
  return out;
}

// A seed has 64 bits, more than a JavaScript number: send it as text.
const withSeed = (out, name) => (value("seed") === "" ? out : { ...out, [name]: value("seed") });
export const openai = () => withSeed(common({}, 1), "seed");
export const native = () => withSeed(common({}, 2), "sampling_seed");
