// The page frame: mode, policy, key.

import { get, onKeyNeeded } from "./api.js";
import { h, segmented, show } from "./dom.js";
import * as chat from "./chat.js";
import * as fields from "./fields.js";
import * as generate from "./generate.js";
import * as tokens from "./tokens.js";

const el = (id) => document.getElementById(id);
const bar = h("div", { class: "bar" }), box = h("div", { id: "talk" });
let model = "";

onKeyNeeded((wrong) => new Promise((resolve) => {
  el("key-why").textContent = wrong ? "The one that was given is wrong." : "It goes with every request of this tab and is forgotten with it.";
  el("key").value = "";
  el("key-dialog").returnValue = "";
  el("key-dialog").onclose = () => resolve(el("key-dialog").returnValue === "given" ? el("key").value : null);
  el("key-dialog").showModal();
}));
el("key-form").onsubmit = (e) => {
  e.preventDefault();
  el("key-dialog").close("given");
};

function mode(name) {
  (name === "generate" ? generate : chat).mount(box, model);
}

async function meet() {
  try {
    // sequential: in parallel, a late second rejection would ask for the key twice
    const models = await get("v1/models"), weights = await get("get_weight_version");
    model = models.data[0].id;
    el("policy").textContent = `${model} · weights ${weights.weight_version} · ${models.data[0].max_model_len} tokens`;
    el("notice").hidden = el("key-button").hidden = true;
    mode("chat");
  } catch (e) {
    el("notice").textContent = `${e.message}.`;
    el("notice").hidden = el("key-button").hidden = false;
  }
}

el("key-button").onclick = meet;
el("mode").append(segmented([["chat", "chat"], ["generate", "/generate"]], "chat", mode, "how to ask"));
show(el("view"), bar, box);
fields.mount(el("fields"));
tokens.mount(bar);
meet();
