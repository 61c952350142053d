"""A session's streamed turns: they grow as the policy samples, and whatever breaks off leaves the session whole.

Between the trainer and the real fleet stands a proxy that lets the servers' tokens through one by one.
"""

import contextlib
import http.client
import http.server
import json
import select
import sys
import threading

import anthropic
import openai
import pytest
from programs import LIMIT
from test_external import fleet
from test_sessions import clients, d, start, turns_of  # noqa: F401
from test_tools import check_chat_stream
from tool_user import NAME, QUESTION, taught

TOKENS, HELD = 40, 12  # of an answer; that the gate lets through before it holds


class Gate(http.server.ThreadingHTTPServer):
    """Passes all on to url. With `hold` an answer of /generate waits behind its first HELD tokens (before it, if it comes
    whole) until `release`; `cut` breaks one off there, after which it behaves as `cut` says; `refuse` answers 400, `other` changes a token, `open`
    never ends an answer that is all there."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url):
        self.host = url.split("//")[1]
        self.held, self.left, self.release = threading.Event(), threading.Event(), threading.Event()
        self.reset()
        super().__init__(("127.0.0.1", 0), Passing)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def reset(self, hold=False, cut=None, refuse=False, other=False, open=False):
        self.hold, self.cut, self.refuse, self.other, self.open = hold, cut, refuse, other, open
        for event in (self.held, self.left, self.release):
            event.clear()


class Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def wait(self):
        """Until the test releases it, or whoever asked has left."""
        gate = self.server
        gate.held.set()
        for _ in range(int(10 * LIMIT)):
            if gate.release.wait(0.1):
                return
            if select.select([self.connection], [], [], 0)[0]:  # nothing is sent behind a request but its end
                gate.left.set()
                raise ConnectionError
        raise AssertionError("nobody released it")

    def chunk(self, piece):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()

    def events(self, answer):
        """The servers send what has come since the last event, however much that is; here each token is one of its own."""
        gate = self.server
        data = [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]
        tokens = sum((e["meta_info"]["output_token_logprobs"] for e in data), [])
        meta = data[-1]["meta_info"]
        (version, _), *others = meta["token_versions"]
        assert not others and not meta["kept_kv"] and len(tokens) == meta["completion_tokens"]
        for n, token in enumerate(tokens, 1):
            if gate.other and n == 3:
                token[1] ^= 1
            so_far = {"output_token_logprobs": [token], "completion_tokens": n, "token_versions": [[version, n]],
                      "finish_reason": meta["finish_reason"] if n == len(tokens) else None}  # fmt: skip
            self.chunk(b"data: " + json.dumps({"meta_info": meta | so_far}).encode() + b"\n\n")
            if n == HELD and gate.hold:
                self.wait()
            if n == HELD and gate.cut is not None:
                gate.reset(**gate.cut)
                raise ConnectionError
        if gate.open:
            self.wait()
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def handle_all(self):
        gate = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        generates = self.path == "/generate" and self.command == "POST"
        keep = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection", "content-length")}
        if generates:  # of a model that might end its answer at any token
            asked = json.loads(body)
            body = json.dumps(asked | {"sampling_params": asked["sampling_params"] | {"ignore_eos": True}}).encode()
        c = http.client.HTTPConnection(gate.host, timeout=LIMIT)
        try:
            if generates and gate.refuse:
                return self.whole(400, b'{"error": {"message": "not any more"}}')
            c.request(self.command, self.path, body or None, keep)
            answer = c.getresponse()
            if not answer.getheader("Content-Type", "").startswith("text/event-stream"):
                reply = answer.read()
                if generates and gate.hold:
                    self.wait()
                return self.whole(answer.status, reply)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.events(answer)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            c.close()

    do_GET = do_POST = do_PUT = do_DELETE = handle_all

    def whole(self, status, reply):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


@contextlib.contextmanager
def gated(d, tmp_path, name, n, *words):  # noqa: F811
    """(a run with n tasks, the gate before its fleet)"""
    with fleet(tmp_path, d / "warm", 1) as (router, _), Gate(router) as gate:
        run = start(d, name, "--router-url", gate.url, *words, n_samples_per_prompt=n)
        try:
            yield run, gate
            assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
        finally:
            gate.release.set()
            run.stop()


class BrokenOff(Exception):
    """A stream said so, in the way of its protocol."""


@contextlib.contextmanager
def broken_off(error):
    try:
        yield
    except error as e:
        raise BrokenOff(str(e)) from e


def chat_texts(ai, m):
    stream = ai.chat.completions.create(model="policy", messages=m, max_tokens=TOKENS, stream=True, logprobs=True,
                                        stream_options={"include_usage": True})  # fmt: skip
    numbers = []
    with broken_off(openai.APIError):
        for chunk in stream:
            for choice in chunk.choices:
                numbers += choice.logprobs.content if choice.logprobs else []
                if choice.delta.content:
                    yield choice.delta.content
    assert chunk.usage.completion_tokens == len(numbers) == TOKENS


def responses_texts(ai, m):
    for event in ai.responses.create(model="policy", input=m, max_output_tokens=TOKENS, stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta
    if event.type == "response.failed":
        raise BrokenOff(event.response.error.message)
    assert event.type == "response.incomplete" and event.response.usage.output_tokens == TOKENS


def messages_texts(claude, m):
    with broken_off(anthropic.APIStatusError), claude.messages.stream(model="policy", messages=m, max_tokens=TOKENS) as stream:
        yield from stream.text_stream
        last = stream.get_final_message()
        assert last.stop_reason == "max_tokens" and last.usage.output_tokens == TOKENS


def test_a_turn_grows_as_it_is_sampled(d, tmp_path):  # noqa: F811
    """Text is there while the servers still sample, in each form; each turn goes on from what was streamed. The last
    token ends it: a server that freezes behind it holds nobody up."""
    with gated(d, tmp_path, "grows", 1) as (run, gate):
        task = run.lease()
        ai, claude = clients(run, task)
        m = [{"role": "user", "content": task["input"]}]
        for texts, client in ((chat_texts, ai), (responses_texts, ai), (messages_texts, claude)):
            gate.reset(hold=True)
            pieces = texts(client, m)
            said = next(pieces)
            assert gate.held.wait(LIMIT) and not gate.release.is_set()
            gate.release.set()
            said += "".join(pieces)
            m += [{"role": "assistant", "content": said}, {"role": "user", "content": "and?"}]
        gate.reset(open=True)
        m += [{"role": "assistant", "content": "".join(chat_texts(ai, m))}, {"role": "user", "content": "and?"}]
        assert gate.left.wait(LIMIT)
        gate.reset()
        body = {"messages": m, "max_tokens": TOKENS, "stream": True, "stream_options": {"include_usage": True}}
        raw = run.http.post(f"{task['session']}/v1/chat/completions", json=body).text.split("\n\n")
        assert check_chat_stream([event[6:] for event in raw if event.startswith("data: ")], True) == ["length"]
        run.end(task, reward=1)
    counts, _ = turns_of(run)
    assert counts == {"first": 1, "extended": 4}
    ((n, mask),) = run.samples("n_response, mask")
    assert sum(mask) == 5 * TOKENS and run.gaps() == [sum(mask)]


FORMS = [("chat/completions", {"max_tokens": TOKENS}, "messages"), ("responses", {"max_output_tokens": TOKENS}, "input"),
         ("messages", {"max_tokens": TOKENS}, "messages")]  # fmt: skip


def test_a_stream_that_is_silent_says_that_it_lives(d, tmp_path):  # noqa: F811
    """In each form, and its reader finds nothing between what it knows."""
    with gated(d, tmp_path, "silent", 1, "--environment-stream-heartbeat", "0.1") as (run, gate):
        task = run.lease()
        for path, body, key in FORMS:
            gate.reset(hold=True)
            lines = []
            asked = body | {"model": "policy", "stream": True, key: [{"role": "user", "content": task["input"]}]}
            with run.http.stream("POST", f"{task['session']}/v1/{path}", json=asked, timeout=LIMIT) as reply:
                assert reply.status_code == 200
                for line in reply.iter_lines():
                    lines.append(line)
                    if lines.count(": heartbeat") == 2:
                        gate.release.set()
            assert lines.count(": heartbeat") >= 2 and all(x == "" or x.startswith((": heartbeat", "data: ", "event: ")) for x in lines)
        run.end(task, reward=1)
    assert all(n == 3 * TOKENS or n == TOKENS for n, in run.samples("n_response"))


def test_a_turn_that_fails_behind_a_heartbeat(d):  # noqa: F811
    """It has its status by then, so the error is an event; the session is as it was. Calls that wait for one another's
    end for longer than a heartbeat come here."""
    run = start(d, "late", "--environment-stream-heartbeat", "0.000001", n_samples_per_prompt=1)
    try:
        task = run.lease()
        for path, body, key in FORMS:
            asked = body | {"model": "policy", "stream": True, key: [{"role": "user", "content": "x" * 5000}]}
            reply = run.http.post(f"{task['session']}/v1/{path}", json=asked)
            assert reply.status_code == 200 and reply.text.startswith(": heartbeat"), reply.text
            assert "maximum context length" in reply.text
        run.chat(task, [{"role": "user", "content": task["input"]}], max_tokens=2)
        run.end(task, reward=1)
        assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
    finally:
        run.stop()


def test_a_turn_that_breaks_off(d, tmp_path):  # noqa: F811
    """A server is lost: the same tokens come from the next try; where they cannot, an error of the protocol ends the
    stream, and the same turn can be had again. A client is lost: its turn is none, and the server's work ends."""
    with gated(d, tmp_path, "breaks", 5) as (run, gate):
        tasks = [run.lease() for _ in range(5)]
        each = [(t, *clients(run, t), [{"role": "user", "content": t["input"]}]) for t in tasks]

        task, ai, _, m = each[0]  # the next try goes on
        gate.reset(cut={})
        whole = "".join(chat_texts(ai, m))
        assert gate.cut is None and whole
        m += [{"role": "assistant", "content": whole}, {"role": "user", "content": "and?"}]
        run.chat(task, m, max_tokens=2)

        refused, changed = {"refuse": True}, {"other": True}  # no try gets through; one does, of other weights
        for (task, ai, claude, m), texts, then in zip(each[1:4], (chat_texts, responses_texts, messages_texts),
                                                      (refused, changed, refused)):  # fmt: skip
            client, said = claude if texts is messages_texts else ai, []
            gate.reset(cut=then)
            with pytest.raises(BrokenOff, match="not any more" if then is refused else "something else"):
                for piece in texts(client, m):
                    said.append(piece)
            assert said and gate.cut is None
            gate.reset()
            again = "".join(texts(client, m))
            assert again.startswith("".join(said)) and len(again) > len("".join(said))

        task, ai, _, m = each[4]
        for streamed in (True, False):
            gate.reset(hold=True)
            if streamed:
                held = ai.chat.completions.create(model="policy", messages=m, max_tokens=TOKENS, stream=True)
                next(iter(held))
                held.close()
            else:
                vanish(run, task, {"messages": m, "max_tokens": TOKENS}, gate)
            assert gate.left.wait(LIMIT)
        gate.reset()
        first = "".join(chat_texts(ai, m))
        assert first
        for t in tasks:
            run.end(t, reward=1, paths="all")
    counts, report = turns_of(run)
    assert counts == {"first": 5, "extended": 1, "abandoned": 2} and "2 of 8 turns were given up" in report
    rows = run.samples("member, part, mask")
    assert sorted(r[:2] for r in rows) == [(i, 0) for i in range(5)]
    assert sorted(sum(r[2]) for r in rows) == [TOKENS] * 4 + [TOKENS + 2] and run.gaps() == [5 * TOKENS + 2]


def test_a_call_that_breaks_off_is_none(tmp_path, monkeypatch):
    """Agents run a call when its item is done: one of which only a part came is text, as the servers have it."""
    monkeypatch.setattr(sys.modules[__name__], "HELD", 50)  # within the call's arguments
    model = taught(tmp_path)
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": QUESTION, "label": ""}) + "\n")
    with fleet(tmp_path, model, 1) as (router, _), Gate(router) as gate:
        run = start(tmp_path, "call", "--router-url", gate.url, n_samples_per_prompt=1, model=model.name, rollout_temperature=0.1,
                    rollout_max_response_len=100, rollout_max_context_len=300)  # fmt: skip
        try:
            task = run.lease()
            ai, _ = clients(run, task)
            for kind, call in (("function", "function_call"), ("custom", "custom_tool_call")):
                gate.reset(hold=True, cut={"refuse": True})
                seen = []
                for event in ai.responses.create(model="policy", input=QUESTION, tools=[{"type": kind, "name": NAME}], stream=True):
                    seen.append(event)
                    if event.type == "response.output_item.added" and event.item.type == call:
                        gate.release.set()
                items = [e.item for e in seen if e.type == "response.output_item.done"]
                assert [(i.type, i.status) for i in items[:1]] == [(call, "incomplete")], items
                assert seen[-1].type == "response.failed" and [i.type for i in seen[-1].response.output] == ["message"]
            gate.reset()
            run.chat(task, [{"role": "user", "content": QUESTION}])
            run.end(task, reward=1)
            assert run.process.wait(LIMIT) == 0, run.log.read_text()[-3000:]
        finally:
            run.stop()


def vanish(run, task, body, gate):
    """A client that goes away while it waits for its answer."""
    c = http.client.HTTPConnection("127.0.0.1", run.http.base_url.port, timeout=LIMIT)
    c.request("POST", f"{task['session']}/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert gate.held.wait(LIMIT)
    c.close()
