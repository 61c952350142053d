"""Requests that clime-server and clime-router must refuse, one case a row: fields, bodies, HTTP itself, uploads.

Each row says what goes in and what must come out: a status, and a message that names the thing. After every row the
same server still answers with the same tokens. Model folders and options are in test_bad_folders.py, clime-train in
test_bad_runs.py, malformed fields that have a rule of their own in test_server.py.
"""

import hashlib
import json
import re
import socket
import time

import pytest
from programs import LIMIT, program, tiny_model
from test_bad_folders import NORM, pack, read_tensors


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("bad") / "model")


# ---- bodies ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s(model):
    with program("clime-server", "--model-path", model, "--debug-checks", "--max-body", "256k") as p:
        yield p


PROBE = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 8}, "return_logprob": True}


@pytest.fixture(autouse=True)
def still_answers(request):
    """Whatever a test sent to the module's server, it answers afterwards as before."""
    if "s" not in request.fixturenames:
        yield
        return
    p = request.getfixturevalue("s")
    before = p.json("/generate", PROBE)
    yield
    after = p.json("/generate", PROBE)
    assert after["output_ids"] == before["output_ids"] and after["meta_info"]["weight_version"] == "default"


def refused(reply, *says, status=400):
    assert reply.status_code == status, (reply.status_code, reply.text)
    error = reply.json()
    assert error["message"], error
    for word in says:
        assert word in error["message"], error


HUGE, DEEP = 1e300, "deep"
NOT_A_STRING, NOT_A_BOOL, NOT_A_NUMBER = [5, {}], [5, "yes", {}], ["1", True, {}, [[1]]]
NOT_WHOLE = ["one", "", "1.5", "1e3", "-", True, {}, [[1]]]  # "1" is taken: some clients quote whole numbers

# Fields by endpoint and where they are, with values of a wrong type or out of range.
GENERATE = {
    "rid": NOT_A_STRING,
    "text": [5, {}, True],
    "input_ids": ["abc", {}, 5, [True], ["1"], [1.5], [-1], [260000], [2**40], [[1], 2], [[[1]]]],
    "sampling_params": ["x", 5, True],
    "return_logprob": NOT_A_BOOL,
    "logprob_start_len": [*NOT_WHOLE, -2, 1.5, HUGE],
    "top_logprobs_num": [*NOT_WHOLE, -1, HUGE],
    "token_ids_logprob": [5, "a", {}, ["a"], [-1], [260000]],
    "return_text_in_logprobs": NOT_A_BOOL,
    "logprob_temperature": [*NOT_A_NUMBER, 0, -1, HUGE],
    "stream": NOT_A_BOOL,
    "extra_key": NOT_A_STRING,
    "cache_salt": NOT_A_STRING,
    "return_prompt_token_ids": NOT_A_BOOL,
}
SAMPLING = {
    "max_new_tokens": [*NOT_WHOLE, -1, 1.5, HUGE],
    "min_new_tokens": [*NOT_WHOLE, -1, 1.5, HUGE],
    "temperature": [*NOT_A_NUMBER, -0.1, HUGE],
    "top_p": [*NOT_A_NUMBER, 0, -1, 1.01],
    "min_p": [*NOT_A_NUMBER, -1, 1.01],
    "top_k": [*NOT_WHOLE, -2, 1.5, HUGE],
    "frequency_penalty": [*NOT_A_NUMBER, -2.1, 2.1],
    "presence_penalty": [*NOT_A_NUMBER, -2.1, 2.1],
    "repetition_penalty": [*NOT_A_NUMBER, 0, 5e-324, 1e-7, 2.1],
    "n": [*NOT_WHOLE, 0, -1, 1.5, HUGE],
    "sampling_seed": ["one", "1.0", True, {}, 1.5, 2**70],
    "ignore_eos": NOT_A_BOOL,
    "skip_special_tokens": NOT_A_BOOL,
    "no_stop_trim": NOT_A_BOOL,
    "stream_interval": [*NOT_WHOLE, 0, -1],
    "stop": [5, {}, [5], ["x" * 5000]],
    "stop_token_ids": [5, "a", ["a"], [-1], [1.5], [2**40]],
    "stop_regex": [5, {}, [5], ["a", None], ["x" * 513], ["a"] * 9, "(", ["a", "*"], "a(?=b)"],
    "bad_words": [5, {}, [5], [None], ["x" * 513], ["a"] * 1025, [" "]],
    "logit_bias": [5, [], {"a": 1}, {"-1": 1}, {"1": "a"}, {"1": HUGE}, {"260000": 1}, {"": 1}],
    "regex": [5, {}, "a(", "[a", "(?=a)b"],
    "json_schema": [5, "{", '{"type": 5}', '{"type": "nothing"}', '{"not": {}}'],
    "ebnf": [5, "root ::= other", "start ::= \"a\""],
}
OPENAI = {
    "max_tokens": [*NOT_WHOLE, -1, 1.5],
    "max_completion_tokens": [*NOT_WHOLE, -1, 1.5],
    "min_tokens": [*NOT_WHOLE, -1],
    "temperature": [*NOT_A_NUMBER, -1],
    "top_p": [*NOT_A_NUMBER, 2],
    "n": [*NOT_WHOLE, 0],
    "seed": ["one", True, 1.5],
    "stop": [5, {}, [5]],
    "stream": NOT_A_BOOL,
    "stream_options": [5, "x", {"include_usage": 5}],
    "logprobs": ["yes", {}],
    "echo": NOT_A_BOOL,
    "best_of": [*NOT_WHOLE, 0, 5],
    "logit_bias": [5, {"a": 1}],
    "response_format": [5, "text", {"type": "xml"}, {"type": "json_schema"}],
    "tool_choice": ["required", 5, {"type": "function"}],
    "rid": NOT_A_STRING,
    "cache_salt": NOT_A_STRING,
    "return_token_ids": NOT_A_BOOL,
    "suffix": ["b"],
    "logprob_token_ids": [5, "a", {}, ["a"], [-1], [1.5], [5]],  # the last one without logprobs
}
CHAT = {
    "messages": [5, "hi", {}, [], [5], [{}], [{"role": 5, "content": "a"}], [{"role": "user", "content": 5}],
                 [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], [{"role": "user", "content": [{"type": "text"}]}],
                 [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]],
    "input_ids": [5, "a", [[1]], [-1], [260000]],
    "chat_template_kwargs": [5, "x", [1]],
    "continue_final_message": NOT_A_BOOL,
    "top_logprobs": [*NOT_WHOLE, -1, 10000],
    "separate_reasoning": NOT_A_BOOL,
}  # fmt: skip


def field_cases():
    for field, values in GENERATE.items():
        base = {} if field in ("text", "input_ids") else {"input_ids": [1]}
        yield "/generate", field, [base | {field: v} for v in values]
    for field, values in SAMPLING.items():
        yield "/generate", field, [{"input_ids": [1], "sampling_params": {field: v}} for v in values]
    messages = [{"role": "user", "content": "hi"}]
    for field, values in OPENAI.items():
        yield "/v1/completions", field, [{"prompt": "a", field: v} for v in values]
        if field not in ("suffix", "echo", "best_of"):
            yield "/v1/chat/completions", field, [{"messages": messages, field: v} for v in values]
    for field, values in CHAT.items():
        base = {} if field == "messages" else {"messages": messages}
        yield "/v1/chat/completions", field, [base | {field: v} for v in values]


FIELDS = list(field_cases())
# what an error calls a field, where it is not its name alone
SAID_AS = {"messages": "message", "input_ids": "id", "regex": "regex|pattern", "json_schema": "schema", "ebnf": "ebnf|grammar"}


@pytest.mark.parametrize("path, field, bodies", FIELDS, ids=[f"{p} {f}" for p, f, _ in FIELDS])
def test_fields(s, path, field, bodies):
    unnamed = []
    for body in bodies:
        reply = s.post(path, body)
        assert reply.status_code == 400, (body, reply.status_code, reply.text[:300])
        if not re.search(SAID_AS.get(field, field), reply.json()["message"]):
            unnamed.append((body, reply.json()["message"]))
    assert not unnamed


RAW = [
    ("no JSON", b"{nope", 400),
    ("nothing", b"", 400),
    ("a list", b"[]", 400),
    ("a number", b"5", 400),
    ("cut", b'{"input_ids": [1, 2', 400),
    ("two values", b'{"input_ids": [1]}{"input_ids": [1]}', 400),
    ("not UTF-8", b'{"text": "\xc3\x28"}', 400),
    ("half a surrogate", b'{"text": "\\udc00"}', 400),
    ("NUL inside", b'{"text": "a\x00b"}', 400),
    ("infinity", b'{"input_ids": [1], "sampling_params": {"temperature": Infinity}}', 400),
    ("1e999", b'{"input_ids": [1], "sampling_params": {"temperature": 1e999}}', 400),
    ("deep", b'{"x": ' + b"[" * 50000 + b"]" * 50000 + b"}", 400),
    ("deep objects", b'{"a":' * 20000 + b"1" + b"}" * 20000, 400),
    ("over the limit", b'{"text": "' + b"a" * (300 << 10) + b'"}', 413),
]
ENDPOINTS = ["/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/apply_template",
             "/abort_request", "/pause_generation", "/update_weights_from_disk"]  # fmt: skip


NO_BODY_NEEDED = ["/pause_generation", "/abort_request"]


@pytest.mark.parametrize("body, status, path", [pytest.param(body, status, path, id=f"{name}-{path}") for name, body, status in RAW
                                                for path in ENDPOINTS if body or path not in NO_BODY_NEEDED])  # fmt: skip
def test_raw_bodies(s, path, body, status):
    reply = s.client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status, (reply.status_code, reply.text[:300])
    assert reply.json()["message"]


def test_too_long_prompts(s):
    refused(s.post("/generate", {"input_ids": [1] * 256}), "256")
    refused(s.post("/generate", {"text": "word " * 100}), "256")
    refused(s.post("/v1/completions", {"prompt": "word " * 100}), "256")
    refused(s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100}]}), "256")


def test_paths_and_methods(s):
    refused(s.get("/nothing"), status=404)
    refused(s.post("/v1/nothing"), status=404)
    refused(s.get("/v1/models/other"), "other", status=404)
    for method, path in [("GET", "/generate"), ("DELETE", "/v1/chat/completions"), ("POST", "/model_info"),
                         ("PATCH", "/health"), ("POST", "/weights/1")]:  # fmt: skip
        reply = s.client.request(method, path)
        assert reply.status_code == 405 and reply.headers["allow"], (method, path, reply.status_code)


@pytest.mark.parametrize("path, body, says", [
    ("/detokenize", {"tokens": [-1]}, "-1"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [2**40]}, "tokens"),
    ("/tokenize", {"prompt": [1]}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 5}, ""),
    ("/apply_template", {"messages": [{"role": "user", "content": 5}]}, "content"),
    ("/apply_template", {}, "messages"),
    ("/pause_generation", {"mode": "sleep"}, "mode"),
    ("/pause_generation", {"mode": 5}, "mode"),
    ("/continue_generation", [1], "object"),
    ("/abort_request", {"rid": 5}, "rid"),
    ("/abort_requests", {"request_ids": ["a", 5]}, "request_ids"),
    ("/release_memory_occupation", {"tags": "kv_cache"}, "tags"),
    ("/update_weight_version", {"new_version": 5}, "new_version"),
    ("/init_weights_update_group", {"world_size": "two"}, "world_size"),
    ("/update_weights_from_distributed", {"timeout": []}, "timeout"),
    ("/update_weights_from_tensor", {"serialized_named_tensors": "AAAA"}, "serialized_named_tensors"),
    ("/update_weights_from_disk", {"model_path": "/", "weight_version": 5}, "weight_version"),
    ("/update_weights_from_disk", {}, "model_path"),
    ("/update_weights_from_disk", {"model_path": "/nowhere"}, "/nowhere"),
    ("/update_weights_from_disk", {"model_path": 5}, "model_path"),
])  # fmt: skip
def test_other_endpoints(s, path, body, says):
    refused(s.post(path, body), says)


def test_flush_with_a_bad_timeout(s):
    for timeout in ("x", "-1", "nan", "1e9", "inf"):
        refused(s.get("/flush_cache", params={"timeout": timeout}), "timeout")


# ---- what HTTP itself can bring --------------------------------------------------------------------------------------


def raw(port, data, wait=20):
    """Sends bytes, ends the sending side, returns all that comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as c:
        try:
            c.sendall(data)
            c.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before all was sent
        got = b""
        try:
            while piece := c.recv(65536):
                got += piece
        except ConnectionResetError:
            pass
        return got


HTTP = [
    ("no HTTP", b"hello\r\n\r\n", (b"", b"400")),
    ("no host", b"GET /health HTTP/1.1\r\n\r\n", (b"", b"200", b"400")),
    ("method of 100 KB", b"A" * 100000 + b" / HTTP/1.1\r\n\r\n", (b"", b"400", b"413", b"431", b"501")),
    ("path of 100 KB", b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (b"", b"400", b"413", b"414", b"431")),
    ("1000 headers", b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 1000 + b"\r\n", (b"", b"400", b"413", b"431")),
    ("length negative", b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}", (b"", b"400", b"411")),
    ("length huge", b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
     (b"", b"400", b"413")),
    ("length over the limit", b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n{}", (b"413",)),
    ("length a lie", b'POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"input_ids"', (b"", b"400")),
    ("two lengths", b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
     (b"", b"400")),
    ("chunk broken", b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
     (b"", b"400")),
    ("chunk cut", b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{}", (b"", b"400")),
    ("dots", b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", (b"", b"400", b"404")),
    ("escapes", b"GET /%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n", (b"400",)),
    ("an escaped zero", b"GET /health%00?x HTTP/1.1\r\nHost: x\r\n\r\n", (b"400",)),
    ("an escape cut off", b"GET /health%6 HTTP/1.1\r\nHost: x\r\n\r\n", (b"400",)),
    ("a letter escaped", b"GET /h%65alth?x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", (b"200",)),
]  # fmt: skip


@pytest.mark.parametrize("data, statuses", [c[1:] for c in HTTP], ids=[c[0] for c in HTTP])
def test_http_of_the_server(s, data, statuses):
    assert raw(s.port, data)[9:12] in statuses


@pytest.mark.parametrize("data, statuses", [c[1:] for c in HTTP], ids=[c[0] for c in HTTP])
def test_http_of_the_router(router, data, statuses):
    assert raw(router.port, data)[9:12] in (*statuses, b"503")


def test_clients_that_leave(s):
    """Half a request, a whole one whose answer nobody reads, a stream left at once: nothing stays behind."""
    body = json.dumps(PROBE | {"stream": True, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for cut in (10, len(head), len(head) + 5, len(head) + len(body)):
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall((head + body)[:cut])
    deadline = time.monotonic() + LIMIT
    while load := s.get("/v1/loads").json()["loads"][0]["num_running_reqs"]:
        assert time.monotonic() < deadline, load
        time.sleep(0.02)


# ---- PUT /weights ----------------------------------------------------------------------------------------------------


def with_head(header, data, change):
    """Before all else a head beside the embedding that it is tied to, made of its rows."""
    embedding = header["model.embed_tokens.weight"]
    rows = change(data[slice(*embedding["data_offsets"])])
    shape = [len(rows) // 2 // embedding["shape"][1], embedding["shape"][1]]
    moved = {k: t | {"data_offsets": [x + len(rows) for x in t["data_offsets"]]} for k, t in header.items() if k != "__metadata__"}
    return pack({"lm_head.weight": embedding | {"shape": shape, "data_offsets": [0, len(rows)]}, **moved}, rows + data)


def uploads(model):
    good = (model / "model.safetensors").read_bytes()
    header, data = read_tensors(model)
    renamed = dict(header)
    renamed["extra"] = renamed.pop(NORM)
    yield "cut in the data", good[:-10], None, 400, "truncated"
    yield "cut in the header", good[:50], None, 400, "truncated"
    yield "seven bytes", good[:7], None, 400, "truncated"
    yield "nothing", b"", None, 400, "truncated"
    yield "bytes at the end", good + b"x", None, 400, "after the last tensor"
    yield "header length huge", b"\xff" * 8 + good[8:], None, 413, "limit"
    yield "wrong hash", good, "0" * 64, 400, "SHA-256"
    yield "no hash", good, "", 400, "X-Clime-SHA256"
    yield "hash of letters", good, "z" * 64, 400, "X-Clime-SHA256"
    yield "wrong shape", pack(header | {NORM: header[NORM] | {"shape": [32, 2]}}, data), None, 400, NORM
    yield "wrong type", pack(header | {NORM: header[NORM] | {"dtype": "I16"}}, data), None, 400, NORM
    yield "unknown tensor", pack(renamed, data), None, 400, "extra"
    yield "no tensors", pack({}, b""), None, 400, "missing"
    yield "a tied head of its own", with_head(header, data, lambda rows: rows[:-2] + b"\x80\x3f"), None, 400, "lm_head.weight"
    yield "a tied head that is short", with_head(header, data, lambda rows: rows[: len(rows) // 2]), None, 400, "lm_head.weight"
    yield "header a list", pack(b"[]", b""), None, 400, "safetensors header"


def test_uploads_that_are_refused(s, model):
    for name, body, sha, status, says in uploads(model):
        sha = hashlib.sha256(body).hexdigest() if sha is None else sha
        reply = s.client.put("/weights/7", content=body, headers={"X-Clime-SHA256": sha} if sha else {})
        assert reply.status_code == status and says in reply.json()["message"], (name, reply.status_code, reply.text)
        assert s.get("/get_weight_version").json()["weight_version"] == "default", name
    good = (model / "model.safetensors").read_bytes()
    sha = {"X-Clime-SHA256": hashlib.sha256(good).hexdigest()}
    again = with_head(*read_tensors(model), lambda rows: rows)
    reply = s.client.put("/weights/default", content=again, headers={"X-Clime-SHA256": hashlib.sha256(again).hexdigest()})
    assert reply.status_code == 200, reply.text
    refused(s.client.put("/weights/7", content=good, headers=sha, params={"inflight": "drop"}), "inflight")
    refused(s.client.put("/weights/" + "v" * 1000, content=good, headers=sha), "version")
    head = b"PUT /weights/7 HTTP/1.1\r\nHost: x\r\nX-Clime-SHA256: " + b"0" * 64
    with socket.create_connection(("127.0.0.1", s.port)) as c:  # a client that dies in the middle
        c.sendall(head + b"\r\nContent-Length: %d\r\n\r\n" % len(good) + good[: len(good) // 2])
    deadline = time.monotonic() + LIMIT  # its lock on updates goes with it
    while (reply := s.client.put("/weights/8", content=good[:-1], headers=sha)).status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refused(reply, "truncated")


# ---- clime-router ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def router():
    with program("clime-router", "--http-threads", "16", "--max-payload-size", "256k") as p:
        yield p


@pytest.mark.parametrize("url", ["", "x", "ftp://a:1", "http://", "http:// a", "http://a\"b", "http://" + "a" * 5000, 5,
                                 None, ["http://a"]], ids=lambda u: repr(u)[:20])  # fmt: skip
def test_worker_urls(router, url):
    refused(router.post("/workers", {"url": url}), "url")
    assert router.get("/workers").json()["workers"] == []


def test_router_bodies(router):
    for path in ("/workers", "/generate"):
        for body in (b"{nope", b"[]", b'{"url": "\xff"}', b'{"a":' * 5000, b""):
            reply = router.client.post(path, content=body)
            assert reply.status_code in (400, 503), (path, body[:20], reply.status_code)
            assert reply.json()["message"]
    refused(router.client.post("/generate", content=b"a" * (300 << 10)), status=413)
    for method, path, status in [("GET", "/nothing", 404), ("GET", "/generate", 405), ("GET", "/workers/7", 404),
                                 ("GET", "/workers/x", 404), ("DELETE", "/workers/7", 404)]:  # fmt: skip
        assert router.client.request(method, path).status_code == status, (method, path)


def test_workers_that_are_not_there(model):
    """Unreachable ones, and one that speaks no HTTP: the request goes on to one that works, or ends with 502/503."""
    with socket.socket() as mute, program("clime-router", "--health-check-interval", "0.2", "--policy", "round_robin",
                                          "--request-timeout", "20") as r:  # fmt: skip
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        assert r.post("/workers", {"url": "http://127.0.0.1:9"}).status_code == 202
        reply = r.post("/generate", PROBE)
        assert reply.status_code in (502, 503), reply.text
        assert any(w in reply.json()["message"] for w in ("127.0.0.1:9", "none of the 1 workers is ready"))
        with program("clime-server", "--model-path", model) as worker:
            assert r.post("/workers", {"url": worker.url}).status_code == 202
            for _ in range(4):
                assert r.json("/generate", PROBE)["output_ids"]
        assert r.get("/workers").status_code == 200
