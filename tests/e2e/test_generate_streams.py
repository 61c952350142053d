"""Streams of /generate with everything that SGLang's clients ask for: of a batch with index, whole so far or only what is
new; and what an abort leaves of replies that run, wait and have not begun."""

import concurrent.futures
import json
import time

import pytest
from programs import LIMIT, needs_stories, web

BATCH = {"input_ids": [[1, 403, 407], [1, 261]], "return_logprob": [True, False], "top_logprobs_num": [2, 0], "logprob_start_len": [0, -1],
         "token_ids_logprob": [[5, 9], [5, 9]], "return_text_in_logprobs": True, "return_prompt_token_ids": True,
         "sampling_params": {"max_new_tokens": 24, "n": 2, "sampling_seed": 11}}  # fmt: skip
LISTS = ["output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"]


@pytest.fixture(scope="module")
def s(plain_server):
    return plain_server


def timeless(reply):
    meta = {k: v for k, v in reply["meta_info"].items() if k not in ("e2e_latency", "response_sent_to_client_ts", "id", "cached_tokens", "cached_tokens_details")}
    return reply | {"meta_info": meta}


@needs_stories
@pytest.mark.parametrize("delta", [False, True])
def test_a_batch_as_a_stream(s, delta):
    whole = s.json("/generate", BATCH)
    assert [len(r["prompt_token_ids"]) for r in whole] == [3, 3, 2, 2] and len({tuple(r["output_ids"]) for r in whole}) == 4
    assert all(("output_token_logprobs" in r["meta_info"]) == (i < 2) for i, r in enumerate(whole))
    tops = whole[0]["meta_info"]["output_top_logprobs"]
    assert len(tops) == 24 and all(len(t) == 2 and isinstance(t[0][2], str) for t in tops)
    assert [i for _, i, _ in whole[0]["meta_info"]["output_token_ids_logprobs"][0]] == [5, 9]
    *events, done = s.events("/generate", BATCH | {"stream": True, "incremental_streaming_output": delta})
    assert done == "[DONE]"
    by_index = {}
    for event in map(json.loads, events):
        by_index.setdefault(event.pop("index"), []).append(event)
    assert sorted(by_index) == [0, 1, 2, 3]
    for i, own in by_index.items():
        assert [e["meta_info"]["finish_reason"] is None for e in own] == [True] * (len(own) - 1) + [False]
        last = own[-1]
        if delta:
            meta = dict(last["meta_info"])
            for name in LISTS:
                if name in meta:
                    meta[name] = [x for e in own for x in e["meta_info"][name]]
            if "output_token_logprobs_length" in meta:
                meta["output_token_logprobs_length"] = sum(e["meta_info"]["output_token_logprobs_length"] for e in own)
            last = last | {"text": "".join(e["text"] for e in own), "output_ids": [x for e in own for x in e["output_ids"]], "meta_info": meta}
        else:
            assert all(b["output_ids"][: len(a["output_ids"])] == a["output_ids"] and b["text"].startswith(a["text"]) for a, b in zip(own, own[1:]))
        assert timeless(last) == timeless(whole[i])


def test_abort_all_leaves_whole_replies(s):
    """Every field is there, whether a request runs, is parked by a pause, or comes while it lasts."""
    body = {"input_ids": [1, 403], "return_logprob": True, "top_logprobs_num": 1, "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "n": 4}}
    known = s.json("/generate", body | {"sampling_params": {"max_new_tokens": 2}})["meta_info"]

    def until(n):
        deadline = time.monotonic() + LIMIT
        while s.get("/get_load").json()[0]["num_reqs"] != n:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def check(one):
        meta = one["meta_info"]
        assert set(meta) == set(known)
        n = meta["completion_tokens"]
        assert n == len(one["output_ids"]) == len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"])
        assert sum(n for _, n in meta["token_versions"]) == n
        if meta["finish_reason"]["type"] == "abort":
            assert set(meta["finish_reason"]) == {"type", "message", "status_code", "err_type"}
        return meta["finish_reason"]["type"], n

    def parked(mode):
        """Requests that come under the pause are aborted before they begin."""
        s.json("/pause_generation", {"mode": mode})
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            replies = [pool.submit(lambda: web.post(s.url + "/generate", json=body, timeout=LIMIT)) for _ in range(3)]
            until(12)
            assert s.json("/abort_request", {"abort_all": True})["num_aborted"] == 12
            for reply in replies:
                assert reply.result(LIMIT).status_code == 200
                assert [check(one) for one in reply.result().json()] == [("abort", 0)] * 4
        until(0)

    for mode in ("in_place", "retract"):
        parked(mode)
        s.json("/continue_generation", {})
        with s.client.stream("POST", "/generate", json=body | {"stream": True}) as reply:
            lines = (line[6:] for line in reply.iter_lines() if line.startswith("data: "))
            events = [json.loads(next(lines))]  # some run now; on a fast machine they may have ended already
            s.json("/pause_generation", {"mode": mode})
            s.json("/abort_request", {"abort_all": True})
            *rest, done = lines
        assert done == "[DONE]"
        last = {e["index"]: e for e in events + [json.loads(e) for e in rest]}
        assert len(last) == 4 and {check({k: v for k, v in e.items() if k != "index"})[0] for e in last.values()} <= {"abort", "length"}
        assert check(last[events[0]["index"]])[1] >= 1
        until(0)
    s.json("/continue_generation", {})
    assert s.json("/generate", body | {"sampling_params": {"max_new_tokens": 2}})["meta_info"]["completion_tokens"] == 2


def test_texts_with_ends_of_lines_that_are_none_of_sse(s):
    """httpx and others cut lines as Python's splitlines does: a next line or a paragraph separator cut the event in two."""
    sampling = {"regex": "[\u0085\u2028\u2029]{3}", "max_new_tokens": 20}
    *events, done = s.events("/generate", {"text": "Once", "stream": True, "sampling_params": sampling})
    assert done == "[DONE]" and len(json.loads(events[-1])["text"].strip("\u0085\u2028\u2029\ufffd")) == 0
