// A group: its prompt and all answers, side by side.

import { get } from "./api.js";
import { exact, h, num, plural, segmented, show } from "./dom.js";
import { rewardBadge, STATUS, versionsOf } from "./samples.js";

export const title = "Group";
export const keys = [["j k", "next, previous group"], ["o", "another order"], ["h l", "one member to the left, to the right"]];

export function mount(root, app) {
  const id = Number(app.params.id || 0);
  let g = null, order = app.params.order || "member";
  const box = h("div"), columns = h("div", { class: "columns", tabindex: 0 });
  const pick = segmented([["member", "by member"], ["reward", "by reward"], ["length", "by length"]], order, (v) => { order = v; app.keep({ order: v === "member" ? "" : v }); draw(); }, "order");
  show(root, box);

  function draw() {
    const by = { member: (a, b) => a.member - b.member || a.part - b.part, reward: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity), length: (a, b) => b.n_response - a.n_response }[order];
    const rewards = g.members.map((m) => m.reward).filter((r) => r !== null), mean = rewards.reduce((a, b) => a + b, 0) / rewards.length;
    const same = rewards.length > 1 && rewards.every((r) => r === rewards[0]);
    show(columns, [...g.members].sort(by).map((m) => h("article", { class: "card column" }, h("div", { class: "chart-head" }, h("a", { href: app.link("sample", { id: m.id }), class: "number" }, `${m.member}${m.part ? "." + m.part : ""}`), rewardBadge(m.reward), h("span", { class: `badge ${STATUS[m.status]}` }, m.status)),
      h("p", { class: "small soft number" }, plural(m.n_response, "token"), `, weights ${versionsOf(m.versions).join(", ") || "–"}`, m.advantage === null ? ", in no step" : `, advantage ${num(m.advantage)}`), m.error ? h("p", { class: "error small" }, m.error) : null, h("pre", { title: m.advantage === null ? "" : `advantage ${exact(m.advantage)}` }, m.response ?? ""))));
    show(box, h("div", { class: "card" }, h("div", { class: "sample-head" }, h("h1", { class: "number" }, `Group ${g.group.id}`), h("span", { class: "badge" }, g.group.state), same ? h("span", { class: "badge warn" }, "all rewards are the same: no gradient") : null),
      h("p", { class: "small soft number" }, `rollout ${g.group.rollout}, line ${g.group.line} of the prompts, epoch ${g.group.epoch}`, rewards.length ? `, mean reward ${num(mean)}` : "", g.group.cause ? `, dropped: ${g.group.cause}${g.group.reason ? `, ${g.group.reason}` : ""}` : "", "  ", h("a", { href: app.link("compare", { line: g.group.line }) }, "this prompt over time")),
      h("pre", {}, g.group.prompt), g.group.label !== null ? h("p", { class: "small soft" }, "label ", h("code", {}, typeof g.group.label === "string" ? g.group.label : JSON.stringify(g.group.label))) : null),
      h("div", { class: "bar after" }, pick, h("span", { class: "small soft" }, plural(g.members.length, "answer"))), columns);
  }

  return {
    async update() {
      if (g && g.group.state !== "open") return; // advantages arrive with its step, after the last answer
      const got = await get(`runs/${app.run().run}/group?id=${id}`);
      if (!got.group) return show(root, h("p", { class: "empty" }, `The run has no group ${id}.`));
      if (g && JSON.stringify(g) === JSON.stringify(got)) return;
      g = got;
      draw();
    },
    key(k) {
      if (k === "j") location.replace(app.link("group", { id: id + 1, order: app.params.order }));
      else if (k === "k" && id > 0) location.replace(app.link("group", { id: id - 1, order: app.params.order }));
      else if (k === "o" && g) pick.choose({ member: "reward", reward: "length", length: "member" }[order]);
      else if (k === "h" || k === "l") columns.scrollBy({ left: k === "l" ? 340 : -340 });
      else return false;
      return true;
    },
  };
}
