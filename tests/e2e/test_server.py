"""clime-server from outside: the real stories260K policy through real sockets.

Greedy output is compared with transformers' (shared data); everything that must not change the bits (batch, chunks,
cache, preemption, threads, n) is compared with one plain run.
"""

import concurrent.futures
import hashlib
import json
import os
import random
import re
import subprocess
import threading
import time

import pytest
from programs import BUILD, DATA, LIMIT, STORIES, need, needs_stories, program, server, wait_for, web
from test_front import dial


@pytest.fixture(scope="module")
def plain(plain_server):
    return plain_server


@pytest.fixture(scope="module")
def greedy():
    need(DATA / "stories260K")
    golden = json.loads((STORIES / "greedy_200.json").read_text())
    return golden | {"text": (STORIES / "greedy_200.txt").read_text()}


def tokens(reply):
    return reply["output_ids"], [t[0] for t in reply["meta_info"]["output_token_logprobs"]]


def generate(s, **body):
    body.setdefault("return_logprob", True)
    return s.json("/generate", body)


# ---- Must show 2: greedy, exactly --------------------------------------------------------------------------------


GREEDY = {"input_ids": [1], "sampling_params": {"temperature": 0, "max_new_tokens": 200}, "return_logprob": True}


def check_greedy(reply, greedy):
    ids, logp = tokens(reply)
    assert [1] + ids == greedy["ids"]
    assert reply["text"] == greedy["text"]
    assert max(abs(a - b) for a, b in zip(logp, greedy["logprobs"], strict=True)) < 1e-4
    assert all(t[1] == i and t[2] is None for t, i in zip(reply["meta_info"]["output_token_logprobs"], ids))
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 200}


def test_greedy_whole(plain, greedy):
    check_greedy(generate(plain, **GREEDY), greedy)


def test_greedy_streamed(plain, greedy):
    events = plain.events("/generate", GREEDY | {"stream": True})
    assert events[-1] == "[DONE]"
    replies = [json.loads(e) for e in events[:-1]]
    for a, b in zip(replies, replies[1:]):
        assert b["text"].startswith(a["text"])
        assert b["output_ids"][: len(a["output_ids"])] == a["output_ids"]
        assert a["meta_info"]["finish_reason"] is None
    check_greedy(replies[-1], greedy)


def test_greedy_incremental(greedy):
    with server("--incremental-streaming-output") as s:
        replies = [json.loads(e) for e in s.events("/generate", GREEDY | {"stream": True})[:-1]]
    whole = replies[-1]
    whole["text"] = "".join(r["text"] for r in replies)
    whole["output_ids"] = sum((r["output_ids"] for r in replies), [])
    whole["meta_info"]["output_token_logprobs"] = sum((r["meta_info"]["output_token_logprobs"] for r in replies), [])
    check_greedy(whole, greedy)


@needs_stories
def test_text_prompt_keeps_the_space(plain):
    reply = generate(plain, text="Once upon", sampling_params={"temperature": 0, "max_new_tokens": 4})
    assert reply["text"].startswith(" a time")
    assert reply["meta_info"]["prompt_tokens"] == 3


# ---- Must show 5: bits ---------------------------------------------------------------------------------------------


def workload(n=40):
    rng = random.Random(7)
    shared = [1] + [rng.randrange(3, 512) for _ in range(150)]
    jobs = []
    for i in range(n):
        head = shared[: rng.randrange(2, 150)] if i % 2 else [1]
        prompt = head + [rng.randrange(3, 512) for _ in range(rng.randrange(1, 40))]
        params = {
            "temperature": rng.choice([0, 0.7, 1.0, 1.3]),
            "top_p": rng.choice([1, 0.9]),
            "top_k": rng.choice([-1, 20]),
            "min_p": rng.choice([0, 0.05]),
            "sampling_seed": rng.getrandbits(64),
            "max_new_tokens": rng.randrange(1, 90),
            "ignore_eos": rng.random() < 0.5,
            "frequency_penalty": rng.choice([0, 0.3]),
            "repetition_penalty": rng.choice([1, 1.1]),
        }
        jobs.append({"input_ids": prompt, "sampling_params": params, "return_logprob": True})
    return jobs


@pytest.fixture(scope="module")
def reference(plain):
    return [tokens(plain.json("/generate", job)) for job in workload()]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--max-running-requests", "1"],
        ["--max-running-requests", "3", "--chunked-prefill-size", "17"],
        ["--chunked-prefill-size", "1"],
        ["--disable-radix-cache"],
        ["--max-total-tokens", "576"],
        ["--max-total-tokens", "640", "--disable-radix-cache", "--chunked-prefill-size", "64"],
        ["--threads", "1", "--emitter-threads", "3"],
    ],
    ids=lambda o: " ".join(o) or "default",
)
def test_bits_do_not_depend_on_the_batch(reference, options):
    with server(*options) as s, concurrent.futures.ThreadPoolExecutor(40) as pool:
        again = list(pool.map(lambda job: tokens(s.json("/generate", job)), workload()))
    assert again == reference


def test_batch_request_is_the_same(plain, reference):
    jobs = workload()
    body = {
        "input_ids": [j["input_ids"] for j in jobs],
        "sampling_params": [j["sampling_params"] for j in jobs],
        "return_logprob": True,
    }
    assert [tokens(r) for r in plain.json("/generate", body)] == reference


@pytest.mark.parametrize("cache", [[], ["--disable-radix-cache"]], ids=["cache", "no cache"])
def test_n_equals_separate_requests(cache):
    prompt = workload()[3]["input_ids"]
    params = {"max_new_tokens": 70, "temperature": 1, "sampling_seed": 42}
    with server(*cache) as s:
        group = generate(s, input_ids=prompt, sampling_params=params | {"n": 8})
        assert len(group) == 8 and len({r["meta_info"]["seed"] for r in group}) == 8
        for member in group:
            alone = params | {"sampling_seed": member["meta_info"]["seed"]}
            assert tokens(generate(s, input_ids=prompt, sampling_params=alone)) == tokens(member)
        assert sum(r["meta_info"]["cached_tokens"] for r in group) == 7 * (len(prompt) - 1)


def test_a_made_up_seed_is_reported_and_repeats(plain):
    first = generate(plain, input_ids=[1], sampling_params={"max_new_tokens": 30})
    params = {"max_new_tokens": 30, "sampling_seed": first["meta_info"]["seed"]}
    assert tokens(generate(plain, input_ids=[1], sampling_params=params)) == tokens(first)


# ---- log-probabilities -----------------------------------------------------------------------------------------------


def test_scoring_a_reply_gives_its_own_logprobs(plain):
    prompt = [1, 403, 407]
    made = generate(plain, input_ids=prompt, sampling_params={"max_new_tokens": 120, "ignore_eos": True})
    ids, logp = tokens(made)
    for start in (0, 3, 50):
        scored = generate(plain, input_ids=prompt + ids, logprob_start_len=start, sampling_params={"max_new_tokens": 0})
        entries = scored["meta_info"]["input_token_logprobs"]
        assert [e[1] for e in entries] == (prompt + ids)[start:]
        assert [e[0] for e in entries[max(3 - start, 0) :]] == logp[max(start - 3, 0) :]
        assert (entries[0][0] is None) == (start == 0)
        assert scored["output_ids"] == [] and scored["meta_info"]["finish_reason"]["type"] == "length"
        assert scored["meta_info"]["cached_tokens"] <= start


def test_scoring_at_a_temperature(plain):
    made = generate(plain, input_ids=[1], sampling_params={"max_new_tokens": 40, "temperature": 0.7})
    ids, logp = tokens(made)
    scored = generate(
        plain, input_ids=[1] + ids, logprob_start_len=1, logprob_temperature=0.7, sampling_params={"max_new_tokens": 0}
    )
    assert [e[0] for e in scored["meta_info"]["input_token_logprobs"]] == logp


def test_top_and_chosen_logprobs(plain):
    reply = generate(
        plain,
        input_ids=[1, 403],
        sampling_params={"max_new_tokens": 5, "temperature": 0},
        logprob_start_len=0,
        top_logprobs_num=3,
        token_ids_logprob=[2, 400],
        return_text_in_logprobs=True,
    )
    meta = reply["meta_info"]
    for entry, top, chosen in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], meta["output_token_ids_logprobs"], strict=True
    ):
        assert top[0] == entry and len(top) == 3  # greedy: float-equal to the largest
        assert top[0][0] >= top[1][0] >= top[2][0]
        assert [c[1] for c in chosen] == [2, 400]
    assert len(meta["input_token_logprobs"]) == 2
    assert meta["input_top_logprobs"][0] is None and len(meta["input_top_logprobs"][1]) == 3
    by_id = {t[1]: t[0] for top in meta["output_top_logprobs"][:1] for t in top}
    all_of = generate(plain, input_ids=[1, 403], sampling_params={"max_new_tokens": 1, "temperature": 0},
                      token_ids_logprob=sorted(by_id))
    assert {c[1]: c[0] for c in all_of["meta_info"]["output_token_ids_logprobs"][0]} == by_id


def test_meta_info_has_every_field(plain):
    always = {"id", "finish_reason", "prompt_tokens", "weight_version", "num_retractions", "completion_tokens",
              "cached_tokens", "e2e_latency", "response_sent_to_client_ts", "seed", "token_versions"}
    with_logprob = {"input_token_logprobs", "output_token_logprobs", "output_token_logprobs_length",
                    "input_top_logprobs", "output_top_logprobs", "input_token_ids_logprobs", "output_token_ids_logprobs"}
    reply = generate(plain, rid="mine", input_ids=[1], sampling_params={"max_new_tokens": 3})
    assert always | with_logprob <= set(reply["meta_info"]) and reply["meta_info"]["id"] == "mine"
    assert reply["meta_info"]["token_versions"] == [["default", 3]]
    bare = plain.json("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 3}})
    assert always <= set(bare["meta_info"]) and not with_logprob & set(bare["meta_info"])


# ---- ends ------------------------------------------------------------------------------------------------------------


def greedy_params(**more):
    return {"temperature": 0, "max_new_tokens": 60} | more


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [" named", "ttle gi", ["zzz", "She", ", there"], "L"])
def test_stop_strings(plain, greedy, stop, stream):
    stops = [stop] if isinstance(stop, str) else stop
    first = min((greedy["text"].find(s), s) for s in stops if s in greedy["text"])
    for no_trim in (False, True):
        body = {"input_ids": [1], "sampling_params": greedy_params(stop=stop, no_stop_trim=no_trim),
                "return_logprob": True, "stream": stream}
        if stream:
            replies = [json.loads(e) for e in plain.events("/generate", body)[:-1]]
            assert all(greedy["text"].startswith(r["text"]) for r in replies)
            reply = replies[-1]
            assert all(reply["text"].startswith(r["text"]) for r in replies)
        else:
            reply = plain.json("/generate", body)
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": first[1]}
        assert reply["text"] == greedy["text"][: first[0] + (len(first[1]) if no_trim else 0)]
        ids, logp = tokens(reply)
        assert ids == greedy["ids"][1 : 1 + len(ids)] and len(logp) == len(ids)
        short = generate(plain, input_ids=[1], sampling_params=greedy_params(max_new_tokens=len(ids) - 1))
        assert first[1] not in short["text"]  # the very token that completes it is the last


def test_stop_token_is_kept(plain, greedy):
    sixth = greedy["ids"][6]
    reply = generate(plain, input_ids=[1], sampling_params=greedy_params(stop_token_ids=[sixth]))
    assert reply["output_ids"] == greedy["ids"][1:7]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": sixth}
    before = generate(plain, input_ids=[1], sampling_params=greedy_params(max_new_tokens=5))["text"]
    assert reply["text"] == before
    untrimmed = generate(plain, input_ids=[1], sampling_params=greedy_params(stop_token_ids=[sixth], no_stop_trim=True))
    assert untrimmed["text"] == generate(plain, input_ids=[1], sampling_params=greedy_params(max_new_tokens=6))["text"]


def test_order_of_ends(plain, greedy):
    """At one token: the limit goes before a stop token (SGLang's order); ignore_eos turns token stops off."""
    sixth = greedy["ids"][6]
    limit = generate(plain, input_ids=[1], sampling_params=greedy_params(stop_token_ids=[sixth], max_new_tokens=6))
    assert limit["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    ignored = generate(plain, input_ids=[1], sampling_params=greedy_params(stop_token_ids=[sixth], ignore_eos=True))
    assert len(ignored["output_ids"]) == 60


def test_min_new_tokens_bans_the_stop(plain, greedy):
    sixth = greedy["ids"][6]
    params = greedy_params(stop_token_ids=[sixth], min_new_tokens=20)
    reply = generate(plain, input_ids=[1], sampling_params=params)
    assert sixth not in reply["output_ids"][:20]
    only = greedy_params(stop_token_ids=[sixth], min_new_tokens=20, allowed_token_ids=[sixth])
    assert "min_new_tokens" in plain.json("/generate", {"input_ids": [1], "sampling_params": only}, 422)["message"]


def test_logit_bias(plain, greedy):
    first = greedy["ids"][1]
    banned = generate(plain, input_ids=[1], sampling_params=greedy_params(logit_bias={str(first): -1000}))
    assert banned["output_ids"][0] != first
    forced = generate(plain, input_ids=[1], sampling_params=greedy_params(logit_bias={"300": 1000}, max_new_tokens=3))
    assert forced["output_ids"] == [300] * 3
    assert forced["meta_info"]["output_token_logprobs"][0][0] < -1  # the number is that of the unedited logits


def test_allowed_token_ids(plain):
    allowed = [11, 300, 511]
    for temperature in [0, 1.5]:
        body = {"input_ids": [1], "sampling_params": {"temperature": temperature, "max_new_tokens": 30,
                "allowed_token_ids": allowed, "ignore_eos": True}}  # fmt: skip
        ids, logp = tokens(generate(plain, **body))
        assert len(ids) == 30 and set(ids) <= set(allowed) and min(logp) < -3  # of the whole vocabulary
    for bad, says in [([], "allows nothing"), ([512], "vocabulary"), ([-1], "allowed_token_ids"), ("x", "allowed_token_ids")]:
        reply = plain.json("/generate", {"input_ids": [1], "sampling_params": {"allowed_token_ids": bad}}, 400)
        assert says in json.dumps(reply), reply


def test_a_stop_id_beyond_the_vocabulary(plain):
    """It can be neither drawn nor banned."""
    sampling = {"temperature": 0, "max_new_tokens": 8, "min_new_tokens": 4, "stop_token_ids": [512, 2**31 - 1]}
    assert len(tokens(generate(plain, input_ids=[1], sampling_params=sampling))[0]) == 8


def test_requests_expire_in_the_queue():
    with server("--max-queue-seconds", "1") as s:
        s.json("/pause_generation", {})
        late = s.json("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 4}}, 503)
        assert "--max-queue-seconds" in json.dumps(late), late
        stream = {"input_ids": [1], "sampling_params": {"max_new_tokens": 4}, "stream": True}
        events = s.events("/generate", stream)
        assert any("--max-queue-seconds" in e and "503" in e for e in events), events
        chat = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 4})
        assert chat.status_code == 503 and "--max-queue-seconds" in chat.text, chat.text
        s.json("/continue_generation", {})
        assert len(generate(s, input_ids=[1], sampling_params={"max_new_tokens": 4})["output_ids"]) > 0


def test_context_is_the_last_limit(plain):
    reply = generate(plain, input_ids=[1] * 500, sampling_params={"max_new_tokens": 1000, "ignore_eos": True})
    assert len(reply["output_ids"]) == 12
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 12}


# ---- abort, pause, flush ---------------------------------------------------------------------------------------------

LONG = {"max_new_tokens": 480, "ignore_eos": True, "n": 64, "temperature": 1}


def in_background(function):
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


def load(s):
    entry = s.get("/v1/loads?include=core").json()["loads"][0]
    return entry["num_running_reqs"] + entry["num_waiting_reqs"]


def held_under_way(s, body, n):
    """The call, whose n sequences are paused in the middle; asked again where they had ended before the pause came."""
    while True:
        call = in_background(lambda: web.post(s.url + "/generate", timeout=LIMIT, json=body).json())
        running = lambda: s.get("/v1/loads").json()["loads"][0]["num_running_reqs"]
        wait_for(lambda: call.done() or running() == n)
        s.json("/pause_generation", {"mode": "in_place"})
        if running() == n:
            return call
        s.json("/continue_generation", {})
        call.result(LIMIT)


def test_abort_by_prefix_keeps_what_there_is(plain):
    body = {"rid": "run/1/2", "input_ids": [1], "sampling_params": LONG, "return_logprob": True}
    call = held_under_way(plain, body, 64)
    try:
        assert plain.json("/abort_request", {"rid": "other"})["num_aborted"] == 0
        assert plain.json("/abort_request", {"rid": "run/1"})["num_aborted"] == 64
    finally:
        plain.json("/continue_generation", {})
    for reply in call.result(LIMIT):
        meta = reply["meta_info"]
        assert meta["id"] == "run/1/2"
        assert meta["finish_reason"]["type"] == "abort" and meta["finish_reason"]["status_code"] is None
        assert len(reply["output_ids"]) == meta["output_token_logprobs_length"] == meta["completion_tokens"]
    wait_for(lambda: load(plain) == 0)


def test_pause_holds_new_requests_and_abort_reaches_them(plain):
    assert plain.json("/pause_generation", {}) == {"message": "Generation paused successfully.", "status": "ok"}
    call = in_background(lambda: web.post(plain.url + "/generate", timeout=LIMIT, json={
        "rid": "held", "input_ids": [1], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}).json())
    try:
        wait_for(lambda: load(plain) == 1)
        time.sleep(0.05)
        assert not call.done()
        plain.json("/abort_request", {"abort_all": True})
        reply = call.result(LIMIT)
    finally:
        plain.json("/continue_generation", {})
    assert reply["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
    assert reply["output_ids"] == [] and reply["meta_info"]["output_token_logprobs"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_who_lost_the_connection_may_come_again_with_the_same_ids(plain, stream):
    """At once: the server has not looked yet whether the first client is still there."""
    body = {"rid": "again", "input_ids": [1], "sampling_params": {"max_new_tokens": 4}, "stream": stream}
    data = json.dumps(body).encode()
    ask = lambda: web.post(plain.url + "/generate", timeout=LIMIT, json=body)
    plain.json("/pause_generation", {"mode": "retract"})
    try:
        with dial(plain, b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data):
            wait_for(lambda: load(plain) == 1)
            assert ask().status_code == 400
        call = in_background(ask)
        wait_for(lambda: call.done() or load(plain) == 1)
        time.sleep(0.05)
    finally:
        plain.json("/continue_generation", {})
    assert call.result(LIMIT).status_code == 200


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_pause_and_go_on_gives_the_same_bits(plain, mode):
    body = {"input_ids": [1, 403], "return_logprob": True,
            "sampling_params": LONG | {"sampling_seed": 9, "max_new_tokens": 400, "n": 24}}
    want = [tokens(r) for r in plain.json("/generate", body)]
    call = in_background(lambda: web.post(plain.url + "/generate", json=body, timeout=LIMIT).json())
    wait_for(lambda: call.done() or load(plain) > 0)
    plain.json("/pause_generation", {"mode": mode})
    try:
        flushed = plain.post("/flush_cache").status_code
        time.sleep(0.05)
        holds = plain.get("/v1/loads").json()["loads"][0]["num_running_reqs"] > 0
        assert holds <= (mode == "in_place") and flushed == (400 if holds else 200)
    finally:
        plain.json("/continue_generation", {})
    assert [tokens(r) for r in call.result(LIMIT)] == want


def test_client_that_leaves_frees_its_place(plain):
    with web.Client(base_url=plain.url) as client, client.stream(
            "POST", "/generate", json={"input_ids": [1], "sampling_params": LONG, "stream": True}) as reply:
        next(reply.iter_bytes())
    wait_for(lambda: load(plain) == 0)


# ---- weights ---------------------------------------------------------------------------------------------------------


def put_weights(s, version, body, **kw):
    sha = kw.pop("sha", hashlib.sha256(body).hexdigest())
    return s.client.put(f"/weights/{version}", content=body, headers={"X-Clime-SHA256": sha}, **kw)


@pytest.fixture(scope="module")
def other_weights():
    """The same policy with one matrix changed, as safetensors bytes."""
    data = bytearray((STORIES / "model.safetensors").read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = next(n for n in header if n.endswith("layers.1.mlp.down_proj.weight"))
    begin, end = header[name]["data_offsets"]
    data[8 + size + begin : 8 + size + end] = bytes(end - begin)
    return bytes(data)


def test_put_weights(other_weights):
    body = {"input_ids": [1] + [403] * 130, "sampling_params": {"temperature": 0, "max_new_tokens": 20}}
    old_weights = (STORIES / "model.safetensors").read_bytes()
    with server("--weight-version", "0") as s:
        old = generate(s, **body)
        assert old["meta_info"]["weight_version"] == "0"
        reply = put_weights(s, "step 1", other_weights)
        assert reply.status_code == 200 and reply.json()["weight_version"] == "step 1", reply.text
        assert s.get("/get_weight_version").json()["weight_version"] == "step 1"
        new = generate(s, **body)
        assert new["meta_info"]["cached_tokens"] == 0  # KV of the old version is never hit
        assert new["meta_info"]["token_versions"] == [["step 1", 20]]
        assert tokens(new) != tokens(old)
        again = put_weights(s, "step 1", other_weights)
        assert again.status_code == 200 and "already" in again.json()["message"]

        # refused as a whole: the version stays
        for bad, sha in [(other_weights[:-10], None), (b"x" * 100, None), (old_weights, "0" * 64),
                         (old_weights + b"x", None), (old_weights, "nonsense")]:
            refused = put_weights(s, "bad", bad, **({"sha": sha} if sha else {}))
            assert refused.status_code in (400, 413) and refused.json()["message"], refused.text
        assert s.client.put("/weights/bad", content=old_weights).status_code == 400  # no hash
        assert tokens(generate(s, **body)) == tokens(new)

        assert put_weights(s, "2", old_weights).status_code == 200
        assert tokens(generate(s, **body)) == tokens(old)
        disk = s.json("/update_weights_from_disk", {"model_path": str(STORIES), "weight_version": "3"})
        assert disk["success"] and "Weight version updated to 3." in disk["message"]
        assert s.get("/model_info").json()["weight_version"] == "3"
        missing = s.post("/update_weights_from_disk", {"model_path": "/nonexistent"})
        assert missing.status_code == 400 and missing.json()["success"] is False
        assert tokens(generate(s, **body)) == tokens(old)


@pytest.mark.parametrize("inflight", ["keep", "recompute", "abort"])
def test_update_under_load(other_weights, inflight):
    n, length = 16, 400
    params = {"max_new_tokens": length, "ignore_eos": True, "n": n, "sampling_seed": 3}
    body = {"input_ids": [1], "sampling_params": params, "return_logprob": True}
    with server("--weight-version", "a") as s:
        s.json("/generate", body | {"sampling_params": params | {"max_new_tokens": 2}})  # warm
        call = held_under_way(s, body, n)  # so that the update meets them for certain
        assert put_weights(s, "b", other_weights, params={"inflight": inflight}).status_code == 200
        s.json("/continue_generation", {})
        replies = call.result(LIMIT)
        for r in replies:
            meta = r["meta_info"]
            runs = meta["token_versions"]
            assert sum(c for _, c in runs) == len(r["output_ids"])
            if inflight == "abort":
                assert meta["finish_reason"]["type"] == "abort" and [v for v, _ in runs] in (["a"], [])
                continue
            assert [v for v, _ in runs] == ["a", "b"]
            before = runs[0][1]
            assert meta["kept_kv"] == ([[before, length - before]] if inflight == "keep" else [])
            ids, logp = tokens(r)
            scored = generate(s, input_ids=[1] + ids, logprob_start_len=1, sampling_params={"max_new_tokens": 0})
            now = [e[0] for e in scored["meta_info"]["input_token_logprobs"]]
            # recomputed: what was sampled after the update has the new weights' very numbers
            assert (now[before:] == logp[before:]) == (inflight == "recompute")


# ---- Must show 8: bad input ------------------------------------------------------------------------------------------


BAD = [
    ("not json", b"{"),
    ("empty", b""),
    ("array", b"[]"),
    ("trailing", b'{"input_ids":[1]} x'),
    ("nan", b'{"input_ids":[1],"sampling_params":{"temperature":NaN}}'),
    ("utf-8", b'{"text":"\xff"}'),
    ("surrogate", b'{"text":"\\ud800"}'),
    ("deep", b'{"text":' + b"[" * 100 + b"]" * 100 + b"}"),
    ("neither", b"{}"),
    ("both", b'{"text":"a","input_ids":[1]}'),
    ("empty prompt", b'{"input_ids":[]}'),
    ("empty batch", b'{"text":[]}'),
    ("negative id", b'{"input_ids":[-1]}'),
    ("id past the vocabulary", b'{"input_ids":[512]}'),
    ("huge id", b'{"input_ids":[99999999999]}'),
    ("float id", b'{"input_ids":[1.5]}'),
    ("mixed batch", b'{"input_ids":[[1],2]}'),
    ("text as number", b'{"text":5}'),
    ("too long", json.dumps({"input_ids": [1] * 512}).encode()),
    ("params no object", b'{"input_ids":[1],"sampling_params":5}'),
    ("params too few", b'{"input_ids":[[1],[1]],"sampling_params":[{}]}'),
    ("params too many", b'{"input_ids":[[1]],"sampling_params":[{},{}]}'),
    ("temperature", b'{"input_ids":[1],"sampling_params":{"temperature":-1}}'),
    ("top_p", b'{"input_ids":[1],"sampling_params":{"top_p":0}}'),
    ("top_p over", b'{"input_ids":[1],"sampling_params":{"top_p":1.5}}'),
    ("min over max", b'{"input_ids":[1],"sampling_params":{"min_new_tokens":9,"max_new_tokens":3}}'),
    ("n", b'{"input_ids":[1],"sampling_params":{"n":0}}'),
    ("n huge", b'{"input_ids":[1],"sampling_params":{"n":100000}}'),
    ("stop", b'{"input_ids":[1],"sampling_params":{"stop":5}}'),
    ("bias", b'{"input_ids":[1],"sampling_params":{"logit_bias":{"x":1}}}'),
    ("bias id", b'{"input_ids":[1],"sampling_params":{"logit_bias":{"512":1}}}'),
    ("seed", b'{"input_ids":[1],"sampling_params":{"sampling_seed":"x"}}'),
    ("grammar", b'{"input_ids":[1],"sampling_params":{"regex":"a("}}'),
    ("lora", b'{"input_ids":[1],"lora_path":"x"}'),
    ("rid", b'{"input_ids":[1],"rid":5}'),
    ("same rid twice", b'{"input_ids":[[1],[1]],"rid":["a","a"]}'),
    ("stream", b'{"input_ids":[1],"stream":"yes"}'),
    ("top logprobs", b'{"input_ids":[1],"return_logprob":true,"top_logprobs_num":100000}'),
    ("chosen ids", b'{"input_ids":[1],"return_logprob":true,"token_ids_logprob":[512]}'),
]


@pytest.mark.parametrize("body", [b for _, b in BAD], ids=[n for n, _ in BAD])
def test_bad_bodies(plain, body):
    reply = plain.client.post("/generate", content=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()
    assert error["object"] == "error" and error["message"] and error["error"]["message"] == error["message"]


def test_null_means_default(plain):
    fields = ["rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob", "stream",
              "image_data", "lora_path", "input_embeds", "session_params", "extra_key", "unknown_field"]
    params = ["temperature", "top_p", "top_k", "stop", "stop_token_ids", "regex", "json_schema", "sampling_seed", "n",
              "logit_bias", "ignore_eos", "unknown_param"]
    body = {"input_ids": [1]} | dict.fromkeys(fields)
    body["sampling_params"] = {"max_new_tokens": 3} | dict.fromkeys(params)
    assert len(plain.json("/generate", body)["output_ids"]) == 3


def test_limits():
    with server("--max-body", "1k", "--max-running-requests", "1", "--max-queued-requests", "1") as s:
        assert s.client.post("/generate", content=b" " * 2000).status_code == 413
        assert s.get("/nowhere").status_code == 404
        assert s.get("/generate").status_code == 405
        s.json("/pause_generation", {})
        calls = [in_background(lambda i=i: web.post(s.url + "/generate", timeout=LIMIT, json={
            "rid": f"r{i}", "input_ids": [1], "sampling_params": {"max_new_tokens": 2}})) for i in range(2)]
        wait_for(lambda: load(s) == 2)
        full = s.post("/generate", {"input_ids": [1]})
        assert full.status_code == 429 and full.headers["retry-after"]
        twin = s.post("/generate", {"rid": "r0", "input_ids": [1]})
        assert twin.status_code == 400 and "in flight" in twin.json()["message"]
        assert s.get("/health").status_code == 200  # a full queue is not ill health
        assert s.get("/health_generate").status_code == 200
        s.json("/continue_generation", {})
        assert [c.result(LIMIT).status_code for c in calls] == [200, 200]


def test_keys():
    with server("--api-key", "user", "--admin-api-key", "boss") as s:
        def ask(key, path="/flush_cache"):
            return s.get(path, headers={"Authorization": f"Bearer {key}"} if key else {}).status_code

        assert [ask(None), ask("no"), ask("user"), ask("boss")] == [401, 401, 403, 200]
        assert [ask(None, "/model_info"), ask("user", "/model_info")] == [401, 200]
        assert [ask(None, "/health"), ask(None, "/metrics")] == [200, 200]


def test_drain_finishes_what_runs():
    with server() as s:
        call = in_background(lambda: web.post(s.url + "/generate", timeout=LIMIT, json={
            "input_ids": [1], "sampling_params": LONG | {"n": 32}}))
        wait_for(lambda: call.done() or load(s) > 0)
        s.process.terminate()
        reply = call.result(LIMIT)
        assert reply.status_code == 200
        assert all(r["meta_info"]["finish_reason"]["type"] == "length" for r in reply.json())


def test_metrics(plain):
    generate(plain, input_ids=[1], sampling_params={"max_new_tokens": 3})
    text = plain.get("/metrics").text
    for name in ("num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput", "cache_hit_rate",
                 "prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_bucket"):
        assert f'sglang:{name}{{' in text, name


def test_many_clients_at_once(plain):
    """Streams and plain requests, some leaving early, some aborted; nothing may be left behind."""
    rng = random.Random(11)
    stop = threading.Event()

    def client(i):
        with web.Client(base_url=plain.url, timeout=LIMIT) as c:
            for k in range(6):
                body = {"rid": f"c{i}/{k}", "input_ids": [1, rng.randrange(3, 512)],
                        "sampling_params": {"max_new_tokens": rng.randrange(1, 120), "n": rng.choice([1, 3])}}
                if rng.random() < 0.5:
                    assert c.post("/generate", json=body).status_code == 200
                    continue
                with c.stream("POST", "/generate", json=body | {"stream": True}) as r:
                    for n, _ in enumerate(r.iter_lines()):
                        if n > rng.randrange(2, 60):
                            break

    def aborter():
        while not stop.is_set():
            plain.json("/abort_request", {"rid": f"c{rng.randrange(12)}/"})
            time.sleep(0.01)

    thread = threading.Thread(target=aborter)
    thread.start()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(client, range(12)))
    stop.set()
    thread.join()
    wait_for(lambda: load(plain) == 0)


@needs_stories
def test_registers_with_a_router():
    with program("clime-router") as router:
        with server("--router", router.url) as s:
            wait_for(lambda: router.get("/readiness").status_code == 200)  # it is in the list before it was asked how it is
            assert router.get("/list_workers").json()["urls"] == [s.url]
            reply = router.json("/generate", GREEDY)
            assert [1] + reply["output_ids"] == json.loads((STORIES / "greedy_200.json").read_text())["ids"]
        wait_for(lambda: router.get("/list_workers").json()["urls"] == [])


def test_health_port_and_parent(tmp_path):
    """A second port for health; and a child ends when its parent's pipe closes, whatever it is doing."""
    read, write = os.pipe()
    command = [str(BUILD / "clime-server"), "--model-path", str(STORIES), "--port", "0", "--port-file",
               str(tmp_path / "port"), "--health-port", "0", "--http-threads", "4", "--parent-fd", str(read)]
    child = subprocess.Popen(command, pass_fds=[read], stderr=subprocess.PIPE)
    os.close(read)
    wait_for((tmp_path / "port").exists)
    os.close(write)
    assert child.wait(LIMIT) == 0
    child.stderr.close()


@pytest.mark.parametrize("program", ["clime-server", "clime-router"])
def test_an_orphan_leaves_the_port_file_alone(tmp_path, program):
    """Its parent was killed while it started: the file is that of the next parent's child by now."""
    read, write = os.pipe()
    (tmp_path / "port").write_text("1\n")
    os.close(write)
    model = ["--model-path", str(STORIES)] if program == "clime-server" else []
    command = [str(BUILD / program), *model, "--port", "0", "--port-file", str(tmp_path / "port"), "--parent-fd", str(read)]
    assert subprocess.run(command, pass_fds=[read], capture_output=True, timeout=LIMIT).returncode == 0
    os.close(read)
    assert (tmp_path / "port").read_text() == "1\n"


@pytest.mark.parametrize("options, says", [
    (["--model-path", "/nonexistent"], "/nonexistent"),
    (["--model-path", str(STORIES), "--no-such-option"], "no-such-option"),
    (["--model-path", str(STORIES), "--port", "99999"], "port"),
    (["--model-path", str(STORIES), "--device", "abacus"], "device"),
    (["--model-path", str(STORIES), "--port", "0", "--chat-template", "/nonexistent"], "/nonexistent"),
    ([], "--model-path"),
])
def test_start_that_fails_says_why(options, says):
    done = subprocess.run([BUILD / "clime-server", *options], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode != 0 and says in done.stderr, done.stderr


def test_ipv6_works_or_is_said_not_to():
    """Debian's CivetWeb is built without it: "Failed to setup server ports" was all that was said."""
    try:
        with server("--host", "::1"):
            pass
    except RuntimeError as e:
        assert "without IPv6" in str(e)


@pytest.mark.parametrize("options, says", [
    (["--chat-template", "/nonexistent"], "/nonexistent"),
    (["--chat-template", "BAD"], "chat template"),
    (["--cuda-graph-bs", "0"], "--cuda-graph-bs"),
])
def test_what_is_wrong_is_told_before_weights_are_read(tmp_path, options, says):
    (tmp_path / "bad.jinja").write_text("{% for %}")
    options = [str(tmp_path / "bad.jinja") if o == "BAD" else o for o in options]
    command = [BUILD / "clime-server", "--model-path", str(STORIES), "--device", "cpu", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and re.search(says, done.stderr), done.stderr
    assert "parameters" not in done.stderr  # of a model that was loaded
