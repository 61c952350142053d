// Current state of a run: the trainer, the samples in progress, and every server's work or wait.

import { get, mayOrder, order } from "./api.js";
import { h, num, percent, plural, seconds, show } from "./dom.js";

export const title = "Fleet";

const meter = (share, label) => h("div", { class: "meter", role: "img", "aria-label": label, title: label }, h("span", { style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));
const fact = (name, value) => h("div", { class: "fact" }, h("span", { class: "soft small" }, name), h("b", { class: "number" }, value));

function trainerWords(n, run) {
  const open = n.open || {}, ready = (open.completed || 0) + (open.truncated || 0);
  if (n.step) return ["trains", `step ${n.step.step} of rollout ${n.step.rollout}, since ${seconds((n.now_us - n.step.chosen_us) / 1e6)}`];
  if (open.samples) return ["waits for samples", `${num(ready)} of ${plural(open.samples, "open sample")} are there, ${num(open.in_flight || 0)} in flight`];
  return ["between rollouts", run.step ? `step ${num(run.step)} is done` : "servers and weights are being loaded"];
}

function serverWords(load, worker) {
  if (worker && worker.status !== "ready") return ["bad", { down: "does not answer", stale: "has older weights than the fleet", draining: "is being drained" }[worker.status] || worker.status];
  if (!load) return ["bad", "does not say its load"];
  if (load.paused) return ["warn", "is paused: the trainer hands weights over"];
  if (load.num_waiting_reqs) return ["good", `is full: ${plural(load.num_waiting_reqs, "request")} wait for a place`];
  if (load.num_running_reqs) return ["good", "generates"];
  return ["", "waits for requests"];
}

// Orders for the run; null if the page is read-only.
function orders(c, refresh) {
  if (!c || !mayOrder()) return null;
  const said = h("span", { class: "small soft", id: "orders-say" }, c.stop ? "It ends after this rollout." : c.waiting ? "It waits." : c.pause ? "It pauses after this rollout." : c.checkpoint ? "It writes a checkpoint after this rollout." : "");
  const button = (word, text, ask) => h("button", { name: word, disabled: c.stop, onclick: () => { if (!ask || confirm(ask)) order(word).then(refresh, (e) => (said.textContent = e.message)); } }, text);
  return h("div", { class: "bar", id: "orders" }, c.pause ? button("resume", "Go on") : button("pause", "Pause"), button("checkpoint", "Checkpoint"), button("stop", "Stop", "End the run after this rollout? The same command goes on from there."), said);
}

export function mount(root, app) {
  const trainer = h("div", { class: "card" }), servers = h("div", { class: "grid" }), oldest = h("div", { class: "card scroll" }), note = h("span", { class: "small soft" });
  show(root, h("div", { class: "section" }, h("h2", {}, "Trainer")), trainer, h("div", { class: "section" }, h("h2", {}, "Servers"), note), servers, h("div", { class: "section" }, h("h2", {}, "In flight"), h("span", { class: "small soft" }, "those with the least time left come first")), oldest);

  function drawTrainer(n) {
    const run = app.run(), open = n.open || {};
    if (n.state !== "running") return show(trainer, h("p", {}, h("span", { class: `badge ${n.state === "ended" ? "good" : "bad"}` }, n.state), " ", n.state === "ended" ? "The run is done. Nothing of it runs any more." : "The trainer does not run. The same command goes on from the ledger."));
    const [doing, more] = n.control && n.control.waiting ? ["is paused", "until somebody has it go on"] : trainerWords(n, run);
    show(trainer, h("p", { class: "lead" }, h("span", { class: "badge accent" }, doing), " ", more), h("div", { class: "facts" }, fact("rollout", num(run.rollout)), fact("step", num(run.step)), fact("open groups", num(open.groups || 0)), fact("in flight", num(open.in_flight || 0)), fact("failed", num(open.failed || 0)), fact("last step", run.step_us ? seconds((n.now_us - run.step_us) / 1e6) + " ago" : "–"), fact("starts", num(run.n_starts))), orders(n.control, app.refresh));
  }

  function drawServer(s, workers) {
    const worker = workers.find((w) => w.url === s.url), load = s.loads && s.loads.loads && s.loads.loads[0], [kind, words] = serverWords(load, worker);
    return h("section", { class: "card" }, h("div", { class: "chart-head" }, h("h3", { class: "mono" }, s.url.replace(/^https?:\/\//, "")), h("span", { class: `badge ${kind}` }, worker ? worker.status : "unknown")), h("p", {}, words), s.error ? h("p", { class: "error small" }, s.error) : null,
      load ? [h("div", { class: "small soft" }, `KV memory: ${num(load.num_used_tokens)} of ${num(load.max_total_num_tokens)} tokens`), meter(load.token_usage, percent(load.token_usage || 0))] : null,
      h("div", { class: "facts" }, load ? [fact("running", num(load.num_running_reqs)), fact("waiting", num(load.num_waiting_reqs)), fact("tokens/s", num(load.gen_throughput)), fact("cache hits", percent(load.cache_hit_rate || 0))] : null, s.version ? fact("weights", s.version.weight_version) : null, worker ? [fact("served", num(worker.served)), fact("failed", num(worker.failed))] : null));
  }

  return {
    async update() {
      const run = app.run(), n = await get(`runs/${run.run}/now`);
      drawTrainer(n);
      const f = n.fleet || {}, workers = (f.router && f.router.workers) || [];
      note.textContent = f.error ? f.error : n.state === "running" && !f.router ? "the router has not started yet" : "";
      show(servers, f.servers && f.servers.length ? f.servers.map((s) => drawServer(s, workers)) : h("p", { class: "soft" }, n.state === "running" ? "No server is admitted yet." : "None runs."));
      show(oldest, n.oldest.length ? h("table", {}, h("tr", {}, ["rollout", "group", "member", "attempt", "time left"].map((t) => h("th", {}, t))), n.oldest.map((s) => h("tr", {}, [s.rollout, h("a", { href: app.link("group", { id: s.group }) }, num(s.group)), s.member, s.attempt, seconds((s.lease_until_us - n.now_us) / 1e6)].map((v) => h("td", { class: "number" }, v))))) : h("p", { class: "soft" }, "Nothing is being generated."));
    },
  };
}
