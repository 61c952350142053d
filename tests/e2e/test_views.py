"""Views of the run's page in node, with a document of 20 lines: what they ask for while a run goes on, and when they stop."""

import json
import shutil
import subprocess

import pytest
from programs import ROOT

HEAD = """
class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.style = {}; this.classList = { add() {}, remove() {}, toggle() {} }; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  addEventListener() {}
  setAttribute() {}
  set textContent(text) { this.children = [text]; }
  get textContent() { return this.children.map((c) => (c instanceof Element ? c.textContent : String(c))).join(" "); }
}
globalThis.document = { createElement: (tag) => new Element(tag), createTextNode: String, activeElement: null };
globalThis.location = { hash: "", pathname: "/", search: "", replace() {} };
globalThis.sessionStorage = { getItem: () => null, setItem() {} };
let asked = 0, answer;
globalThis.fetch = async (path) => { asked++; return { ok: true, json: async () => structuredClone(answer(path)) }; };
const app = { params: { id: "1" }, run: () => ({ run: 0, step, state: "running" }), link: () => "", keep() {}, go() {} };
let step = 0;
const root = new Element("main");
const expect = (holds, what) => { if (!holds) { console.error(what, "|", root.textContent); process.exit(1); } };
"""


def run_js(folder, text):
    if not shutil.which("node"):
        pytest.skip("no node here")
    for where in ("trainer/watch/page/assets", "common/page"):
        for file in (ROOT / where).glob("*.js"):
            shutil.copy(file, folder)
    (folder / "package.json").write_text(json.dumps({"type": "module"}))
    (folder / "test.js").write_text(HEAD + text)
    done = subprocess.run(["node", "test.js"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


GROUP = """
const member = { id: 1, member: 0, part: 0, status: "completed", reward: 1, n_response: 2, versions: [[0, 2]], advantage: null,
                 error: null, response: "x", removed: 0, step: null, n_prompt: 1 };
const group = { id: 1, rollout: 0, line: 1, epoch: 0, state: "open", prompt: "p", label: null, cause: null, reason: null, metadata: null };
"""


def test_a_group_is_shown_until_its_advantages_are_there(tmp_path):
    """Its answers are whole before its step is chosen, which makes them."""
    run_js(tmp_path, GROUP + """
const { mount } = await import("./group.js");
answer = () => ({ group, members: [member] });
const view = mount(root, app);
await view.update();
expect(root.textContent.includes("in no step"), "it is not drawn");
member.advantage = 0.5;
group.state = "done";
await view.update();
expect(root.textContent.includes("advantage 0.5"), "the advantage is not shown");
asked = 0;
await view.update();
expect(asked === 0, "a group that is done is asked for again");
""")  # fmt: skip


def test_a_sample_is_shown_until_its_step_is_done(tmp_path):
    run_js(tmp_path, GROUP + """
const { mount } = await import("./sample.js");
const streams = { ids: [1, 2, 3], logp: [-1, -2], mask: [1, 1] };
answer = () => ({ sample: { ...member, rollout: 0, group: 1, finish: null }, group, members: [member], streams, pieces: ["a", "b", "c"] });
const view = mount(root, app);
await view.update();
member.advantage = 0.5; member.step = 3; group.state = "done";
await view.update();
expect(root.textContent.includes("0.5"), "the advantage is not shown");
streams.entropy = [0.25, 0.125]; step = 3;
asked = 0;
await view.update();
expect(asked === 1, "it is not asked for when its step is done");
await view.update();
expect(asked === 1, "a sample whose step is done is asked for again");
""")  # fmt: skip


def test_a_burst_of_events_is_shown_whole(tmp_path):
    """More events between two looks than one answer has."""
    run_js(tmp_path, """
const { mount } = await import("./events.js");
const events = [];
const add = (n) => { for (let i = 0; i < n; i++) events.unshift({ id: events.length + 1, at_us: 1, kind: "drop", detail: `event ${events.length + 1}.` }); };
answer = (path) => {
  const q = new URLSearchParams(path.split("?")[1]), limit = Number(q.get("limit") || 200), before = Number(q.get("before") || Infinity);
  const got = events.filter((v) => v.id < before && (!q.get("kind") || v.kind === q.get("kind"))).slice(0, limit);
  return { events: got, next: got.length === limit ? got[got.length - 1].id : null };
};
add(10);
const view = mount(root, { ...app, params: {} });
await view.update();
for (const burst of [1, 49, 51, 700, 4000]) {
  add(burst);
  await view.update();
  const shown = new Set(root.textContent.match(/event \\d+\\./g));
  expect(shown.size === events.length, `${shown.size} of ${events.length} events are shown`);
}
add(2000);
await view.update();
expect(root.textContent.includes(`event ${events.length}.`) && !root.textContent.includes("event 1."), "5,000 are shown at most");
""")  # fmt: skip
