"""Agents' sessions: clients as they come from PyPI at a session's URL, many at once, and clients that misbehave."""

import json
import os
import socket
import sqlite3
import subprocess
import threading

import anthropic
import openai
import pytest
from programs import BUILD, LIMIT, ROOT, web
from test_environments import Run, f32, floats_of

TRAIN = os.path.abspath(BUILD / "clime-train")


@pytest.fixture(scope="module")
def d(tmp_path_factory):
    """A small random model: what it says does not matter here, where its tokens go does."""
    d = tmp_path_factory.mktemp("sessions")
    subprocess.run([TRAIN, "init", d / "warm", "--family", "qwen3", "--hidden-size", "32", "--intermediate-size", "64",
                    "--num-hidden-layers", "1", "--num-attention-heads", "2", "--num-key-value-heads", "1", "--head-dim",
                    "32", "--max-position-embeddings", "1024"], check=True, capture_output=True, timeout=LIMIT)  # fmt: skip
    (d / "warm" / "chat_template.jinja").write_text((ROOT / "examples/environments/tools.jinja").read_text())
    with open(d / "train.jsonl", "w") as f:
        for i in range(64):
            f.write(json.dumps({"prompt": f"say {i}", "label": str(i)}) + "\n")
    return d


def start(d, name, *more, **change):
    sizes = {"num_rollout": 1, "rollout_batch_size": 1, "rollout_max_response_len": 512, "rollout_max_context_len": 900,
             "max_tokens_per_gpu": 4096, **change}  # fmt: skip
    return Run(d, name, *more, **sizes)


def turns_of(run):
    """The report on drift, as the metrics have it; and the same in words."""
    db = sqlite3.connect(run.dir / "ledger.db")
    lines = [json.loads(x) for (x,) in db.execute("SELECT line FROM metrics WHERE kind = 'rollout'")]
    db.close()
    counts = {}
    for line in lines:
        for key, n in line.items():
            if key.startswith("rollout/turns/") and n:
                counts[key[14:]] = counts.get(key[14:], 0) + n
    report = subprocess.run([TRAIN, "report", run.dir], check=True, capture_output=True, text=True, timeout=LIMIT).stdout
    return counts, report


def clients(run, task):
    base = f"{run.http.base_url}".rstrip("/") + task["session"]
    return (openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=LIMIT),
            anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=LIMIT))  # fmt: skip


def test_every_form_goes_on_from_the_same_tokens(d):
    """Chat, Responses and Messages, whole and streamed, by openai and anthropic: one chain of seven exact turns."""
    run = start(d, "forms", n_samples_per_prompt=2)
    try:
        task, other = run.lease(), run.lease()
        ai, claude = clients(run, task)
        assert [m.id for m in ai.models.list()] == ["policy"]
        m = [{"role": "user", "content": task["input"]}]
        c = ai.chat.completions.create(model="policy", messages=m, max_tokens=6, logprobs=True)
        numbers = [t.logprob for t in c.choices[0].logprobs.content]
        total = c.usage.total_tokens
        m += [c.choices[0].message, {"role": "user", "content": "and?"}]  # the library's own object goes back
        chunks = list(ai.chat.completions.create(model="policy", messages=m, max_tokens=6, stream=True,
                                                 stream_options={"include_usage": True}))  # fmt: skip
        said = "".join(x.choices[0].delta.content or "" for x in chunks if x.choices)
        assert chunks[-1].usage.prompt_tokens > total and chunks[-2].choices[0].finish_reason in ("stop", "length")
        m = [x if isinstance(x, dict) else {"role": "assistant", "content": x.content} for x in m]
        m += [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        n = ai.responses.input_tokens.count(model="policy", input=m).input_tokens
        r = ai.responses.create(model="policy", input=m, max_output_tokens=6, include=["message.output_text.logprobs"])
        assert r.usage.input_tokens == n and r.output[0].content[0].logprobs[0].logprob < 0
        assert r.status in ("completed", "incomplete") and r.id.endswith("/turn2")
        m += [{"role": "assistant", "content": r.output_text}, {"role": "user", "content": "and?"}]
        events = list(ai.responses.create(model="policy", input=m, max_output_tokens=6, stream=True, include=["message.output_text.logprobs"]))
        r = events[-1].response
        (streamed, whole) = ([t.logprob for e in events if e.type == "response.output_text.delta" for t in e.logprobs],
                             [t.logprob for i in r.output if i.type == "message" for t in i.content[0].logprobs])  # fmt: skip
        assert streamed == whole and whole
        m += [{"role": "assistant", "content": r.output_text}, {"role": "user", "content": "and?"}]
        n = claude.messages.count_tokens(model="policy", messages=m, extra_body={"stream": True}).input_tokens  # a count is none
        begun = [*m, {"role": "assistant", "content": "So"}]  # whole, as a client counts what it has: it asks for no answer
        assert claude.messages.count_tokens(model="policy", messages=begun).input_tokens > n
        with pytest.raises(anthropic.BadRequestError, match="policy begins itself"):
            claude.messages.create(model="policy", messages=begun, max_tokens=6)
        a = claude.messages.create(model="policy", messages=m, max_tokens=6)
        assert a.usage.input_tokens + (a.usage.cache_read_input_tokens or 0) == n
        text = lambda a: "".join(b.text for b in a.content)
        m += [{"role": "assistant", "content": text(a)}, {"role": "user", "content": "and?"}]
        with claude.messages.stream(model="policy", messages=m, max_tokens=6) as stream:
            a = stream.get_final_message()
        m += [{"role": "assistant", "content": text(a)}, {"role": "user", "content": "and?"}]
        last = ai.chat.completions.create(model="policy", messages=m, max_tokens=6)
        # what a session does not do is said, and costs nothing
        for more in ({"response_format": {"type": "json_object"}}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}):
            with pytest.raises(openai.BadRequestError):
                ai.chat.completions.create(model="policy", messages=m, **more)
        for more in ({"truncation": "auto"}, {"top_logprobs": 1}, {"include": ["message.output_text.logprob"]}):
            with pytest.raises(openai.BadRequestError, match=next(iter(more))):
                ai.responses.create(model="policy", input="x", **more)
        tools = [{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}]
        some = lambda mode, *n: {"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": mode, "tools": [{"type": "custom", "custom": {"name": x}} for x in n]}}}  # fmt: skip
        with pytest.raises(openai.BadRequestError, match="h, which is not among"):
            ai.chat.completions.create(model="policy", messages=m, **some("auto", "h"))
        with pytest.raises(openai.BadRequestError, match="whole conversation"):
            ai.responses.create(model="policy", input="x", previous_response_id="resp_1")
        with pytest.raises(anthropic.BadRequestError) as e:  # by this code its loops send whole conversations
            claude.beta.messages.create(model="policy", messages=m, max_tokens=6, thread={"type": "create"})
        assert e.value.error_code == "thread_unsupported_request" and e.value.type == "invalid_request_error"
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long") as e:
            claude.messages.create(model="policy", max_tokens=6, messages=[{"role": "user", "content": "x" * 2000}])
        assert e.value.type == "invalid_request_error"
        with pytest.raises(openai.BadRequestError, match="maximum context length is 900 tokens") as e:
            ai.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x" * 2000}])
        assert e.value.code == "context_length_exceeded"
        run.end(task, reward=1)
        ai, _ = clients(run, other)
        with pytest.raises(openai.NotFoundError):
            clients(run, {"session": "/sessions/0123"})[0].models.list()
        # a branch: the history is edited, and both paths are to be samples
        m = [{"role": "user", "content": other["input"]}]
        said = ai.chat.completions.create(model="policy", messages=m, max_tokens=6).choices[0].message.content
        m += [{"role": "assistant", "content": said + " indeed"}, {"role": "user", "content": "and?"}]
        ai.chat.completions.create(model="policy", messages=m, max_tokens=6)
        run.end(other, status=400, reward=1, paths="some")
        run.end(other, reward=0.5, paths="all")
        assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
    finally:
        run.stop()
    counts, report = turns_of(run)
    assert counts == {"first": 2, "extended": 6, "branch_answer": 1, "branched": 1}
    assert "6 of 9 turns went on from their session's exact tokens" in report and "the client changed an answer" in report
    rows = run.samples("member, part, n_prompt, n_response, mask, reward, group_id, logp")
    chain = next(r for r in rows if r[5] == 1)  # which of the two members was leased first is nobody's promise
    assert sorted((r[0], r[1], r[5]) for r in rows) == sorted([(chain[0], 0, 1), (1 - chain[0], 0, .5), (1 - chain[0], 1, .5)])
    assert chain[2] + chain[3] == last.usage.total_tokens and len({r[6] for r in rows}) == 1
    assert [f32(x) for x in numbers] == floats_of(chain[7])[: len(numbers)] and len(numbers) == c.usage.completion_tokens
    assert "".join(map(str, chain[4])).count("01") == 6  # seven answers, what the client said between them
    assert run.gaps() == [sum(sum(r[4]) for r in rows)]


def test_forced_calls_and_ids(d):
    """A forced call is auto, told once; return_token_ids gives the ids of the path, whole and streamed."""
    run = start(d, "forced", n_samples_per_prompt=1)
    try:
        task = run.lease()
        ai, claude = clients(run, task)
        m = [{"role": "user", "content": task["input"]}]
        function = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
        ask = {"model": "policy", "tools": [{"type": "function", "function": function}], "logprobs": True,
               "extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True}}  # fmt: skip
        first = ai.chat.completions.create(messages=m, max_tokens=6, tool_choice="required", **ask)
        (choice,) = first.choices
        assert len(first.prompt_token_ids) == first.usage.prompt_tokens and len(choice.token_ids) == first.usage.completion_tokens
        assert [t.token for t in choice.logprobs.content] == [f"token_id:{i}" for i in choice.token_ids]
        path = first.prompt_token_ids + choice.token_ids
        tokens = run.http.post(f"{task['session']}/tokenize", json={"messages": m, "tools": ask["tools"]}).json()
        assert tokens["tokens"] == first.prompt_token_ids and tokens["count"] == first.usage.prompt_tokens
        m += [choice.message, {"role": "user", "content": "and?"}]
        named = {"type": "function", "function": {"name": "f"}}
        chunks = list(ai.chat.completions.create(messages=m, max_tokens=6, tool_choice=named, stream=True, **ask))
        assert chunks[0].prompt_token_ids[: len(path)] == path and not any(hasattr(x, "prompt_token_ids") for x in chunks[1:])
        ids = [i for x in chunks for i in x.choices[0].token_ids]
        assert ids == [int(t.token.removeprefix("token_id:")) for x in chunks if x.choices[0].logprobs for t in x.choices[0].logprobs.content]
        some = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}
        ai.chat.completions.create(model="policy", messages=m, max_tokens=6, tools=ask["tools"], tool_choice=some)
        r = ai.responses.create(model="policy", input=task["input"], max_output_tokens=6, tool_choice="required",
                                tools=[{"type": "function", "strict": False, **function}])  # fmt: skip
        assert r.tool_choice == "auto"
        tool = {"name": "f", "description": "d", "input_schema": function["parameters"]}
        for forced in ({"type": "any"}, {"type": "tool", "name": "f"}):
            claude.messages.create(model="policy", messages=[m[0]], max_tokens=6, tools=[tool], tool_choice=forced)
        assert run.log.read_text().count("taken as auto") == 1
        run.end(task, reward=1, paths="all")
        assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
    finally:
        run.stop()


def test_64_sessions_at_once(d):
    """Each asks two things at once and then posts its result while a third is under way: all are answered, in some order."""
    run = start(d, "many", num_rollout=2, rollout_batch_size=8, n_samples_per_prompt=8, rollout_max_response_len=64)
    lock, numbers, results, failed = threading.Lock(), [], [], []

    def play():
        http, mine = web.Client(base_url=run.http.base_url, timeout=LIMIT), []
        task = http.post("/tasks/lease", json={"wait_s": 60}).json()
        everyone.wait(LIMIT)

        def one(text, stream=False):
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "stream": stream}
            with web.Client(base_url=run.http.base_url, timeout=LIMIT) as own:
                reply = own.post(f"{task['session']}/v1/chat/completions", json=body)
            last = reply.text.split("\n\n")[-3] if stream and reply.status_code == 200 else reply.text  # before [DONE]
            with lock:
                mine.append(json.loads(last.removeprefix("data: "))["turn"] if reply.status_code == 200 else reply.text)

        asking = [threading.Thread(target=one, args=a) for a in ([task["input"]], ["a title for it", True])]
        for t in asking:
            t.start()
        for t in asking:
            t.join()
        third = threading.Thread(target=one, args=[task["input"]])
        third.start()
        done = [http.post(f"/tasks/{task['task']}", json={"reward": i}).status_code for i in (1, 0)]
        third.join()
        with lock:
            numbers.append(mine)
            results.append(done)

    everyone = threading.Barrier(64)

    def guarded():
        try:
            play()
        except Exception as e:  # noqa: BLE001  (said below, with the run's log)
            failed.append(repr(e))

    players = [threading.Thread(target=guarded) for _ in range(64)]
    for t in players:
        t.start()
    for t in players:
        t.join()
    assert not failed and len(numbers) == 64, (failed[:3], run.log.read_text()[-3000:])
    assert run.lease(60), "the first rollout is trained on, and the second has begun"
    run.stop()
    for mine, done in zip(numbers, results):
        assert sorted(mine[:2]) == [0, 1] and done == [200, 404]
        over = ("result already", "no such lease", "task is over")  # as it came before the result or after it
        assert mine[2] == 2 or any(x in mine[2] for x in over)
    assert [r for _, r in run.samples("rollout, reward") if r is not None] == [1] * 64
    counts, _ = turns_of(run)
    assert counts["first"] == 64 and counts["branch_other"] == 64 and counts.get("rewound", 0) <= 64


def post_and_leave(run, task, read):
    """A streamed turn whose client goes away, at once or without ever reading; its socket."""
    body = json.dumps({"messages": [{"role": "user", "content": task["input"]}], "max_tokens": 200, "stream": True}).encode()
    s = socket.create_connection(("127.0.0.1", run.http.base_url.port), timeout=LIMIT)
    s.sendall(b"POST %s/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n%s" % (task["session"].encode(), len(body), body))  # fmt: skip
    if not read:
        return s
    s.close()


def test_a_client_vanishes_and_one_freezes(d):
    """The one that vanished asks again and goes on; the frozen one's task is somebody else's after its lease."""
    run = start(d, "frozen", "--environment-lease-timeout", "4", n_samples_per_prompt=2)
    try:
        gone, frozen = run.lease(), run.lease()
        held = post_and_leave(run, frozen, read=False)
        post_and_leave(run, gone, read=True)
        m = [{"role": "user", "content": gone["input"]}]
        said = run.chat(gone, m, max_tokens=5)
        last = run.http.post(f"{gone['session']}/v1/chat/completions",
                             json={"messages": [*m, {"role": "assistant", "content": said}, {"role": "user", "content": "?"}],
                                   "max_tokens": 5}).json()  # fmt: skip
        run.end(gone, reward=1)
        again = run.lease(60)
        assert again["rid"] == frozen["rid"] and again["task"] != frozen["task"]
        assert "no such lease" in run.generate(frozen, status=404)
        run.generate(again, sampling_params={"max_new_tokens": 3})
        run.end(again, reward=0)
        assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
        held.close()
    finally:
        run.stop()
    kept = {r[6]: r[1] + r[2] for r in run.samples()}
    assert kept[1] == last["usage"]["total_tokens"]
    counts, _ = turns_of(run)
    assert counts["extended"] == 1 and counts["first"] == 2 and sum(counts.values()) in (3, 4)  # whether the lost one was made


@pytest.mark.full
def test_an_agent_with_a_tool_is_trained_token_by_token(d):
    """scripts/agent-calculator, made small: an openai loop with a tool. What its rewards come to in a longer run is in docs."""
    run, here = d / "agent", d / "some body's"  # a folder's name is no words of a command
    here.symlink_to(ROOT)
    options = ["--num-rollout", "3", "--rollout-batch-size", "8"]
    env = {**os.environ, "BELOW": "20", "PAIRS": "200", "WARM_LOSS": "0.1", "CLIME_BUILD": str(BUILD.resolve())}
    p = subprocess.run([here / "scripts/agent-calculator", run, *options], env=env, capture_output=True, text=True, timeout=4 * LIMIT)
    assert p.returncode == 0, (p.stdout + p.stderr)[-3000:]
    db = sqlite3.connect(run / "run" / "ledger.db")
    rows = db.execute("SELECT mask, response FROM samples").fetchall()
    steps = [json.loads(x) for (x,) in db.execute("SELECT line FROM metrics WHERE kind = 'train'")]
    lines = [json.loads(x) for (x,) in db.execute("SELECT line FROM metrics WHERE kind = 'rollout'")]
    db.close()
    assert len(rows) == 192 and len(steps) == 3
    assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps)
    assert sum(m["train/logprob_gap_tokens"] for m in steps) == sum(sum(mask) for mask, _ in rows)  # over all turns
    count = lambda name: sum(m[f"rollout/turns/{name}"] for m in lines)
    asked = [mask for mask, said in rows if "<tool_call>" in said and "<|tool|>" in said]
    assert count("first") == 192 and count("extended") >= len(asked) > 10  # the tool answered, and the session went on
    assert count("branched") == count("rewound") == 0
    assert all(b"\x01\x00" in bytes(mask) and bytes(mask).endswith(b"\x01") for mask in asked)


def test_no_tools_in_any_spelling_are_no_tools(d):
    run = start(d, "no-tools", n_samples_per_prompt=1)
    try:
        task = run.lease()
        m = [{"role": "user", "content": task["input"]}]
        some = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
        count = lambda **more: run.http.post(f"{task['session']}/tokenize", json={"messages": m, **more}).json()["count"]
        for more in ({"tools": []}, {"tools": {}}, {"tools": None}):
            assert count(**more) == count() < count(tools=some), more
            run.chat(task, m, max_tokens=1, **more)
        assert count(tools=some, tool_choice="none") == count(tools=some)  # shown, as the servers do
        run.chat(task, m, max_tokens=1, tools=some, tool_choice="none")
    finally:
        run.stop()
