"""A broken reply of /generate that is sent back as "resume": the finished one is the one that would have come without the
break, whatever the request asks for and wherever it was cut. What is no reply of the request is refused."""

import copy
import json

import pytest

VOCAB = 512
TIMES = ("e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details", "resumed_tokens")
MASKS = ("output_token_sampling_mask", "output_token_sampling_logprobs")
EACH_TOKEN = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs", *MASKS)
BODY = {"text": "Once upon a time", "return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5, 6],
        "return_text_in_logprobs": True, "logprob_start_len": 0, "return_sampling_mask": True,
        "sampling_params": {"max_new_tokens": 40, "sampling_seed": "77", "frequency_penalty": 0.4,
                            "repetition_penalty": 1.2, "min_new_tokens": 12, "top_k": 400}}  # fmt: skip


@pytest.fixture(scope="module")
def s(plain_server):
    return plain_server


def lasting(reply):
    """What of a reply does not depend on when it was made."""
    return reply | {"meta_info": {k: v for k, v in reply["meta_info"].items() if k not in TIMES}}


def cut(reply, n):
    """The reply as it was after n tokens; its text is not read."""
    part = copy.deepcopy(reply)
    meta = part["meta_info"]
    part["output_ids"] = part["output_ids"][:n]
    for name in EACH_TOKEN:
        if name in meta:
            meta[name] = meta[name][:n]
    meta["token_versions"] = [[label, n] for label, _ in meta["token_versions"] if n]
    return part


def without_seed(body):
    return body | {"sampling_params": {k: v for k, v in body["sampling_params"].items() if k != "sampling_seed"}}


@pytest.mark.parametrize("change", [
    {},
    {"stop": ["boy named Timmy", "Timmy lo"]},
    {"stop": ["Timmy loved"], "no_stop_trim": True},
    {"stop_regex": ["zz+", "T[a-z]+\\W+T[a-z]+ l"]},
    {"bad_words": ["boy named", "his mommy"]},
    {"temperature": 0, "stop_token_ids": [411], "min_new_tokens": 0},
], ids=str)  # fmt: skip
def test_a_cut_reply_ends_as_the_whole_one(s, change):
    body = BODY | {"sampling_params": BODY["sampling_params"] | change}
    whole = s.json("/generate", body)
    n = len(whole["output_ids"])
    for at in [0, 1, 2, 3, n // 2, n - 2, n - 1, n]:
        rest = s.json("/generate", without_seed(body) | {"resume": cut(whole, at)})
        assert rest["meta_info"].get("resumed_tokens", 0) == at
        assert lasting(rest) == lasting(whole)


@pytest.mark.parametrize("incremental", [False, True])
def test_a_stream_goes_on_behind_the_cut(s, incremental):
    """A stop string spans the cut: what was held back for it comes later, and nothing twice."""
    body = BODY | {"stream": True, "incremental_streaming_output": incremental}
    body["sampling_params"] = BODY["sampling_params"] | {"stop": ["Timmy loved to fly", "their arms"],
                                                           "min_new_tokens": 0}  # fmt: skip
    whole = s.json("/generate", body | {"stream": False})
    n = len(whole["output_ids"])
    for at in range(1, n):
        short = body | {"sampling_params": body["sampling_params"] | {"max_new_tokens": at}}
        events = [json.loads(e) for e in s.events("/generate", body | {"resume": cut(whole, at)})[:-1]]
        assert events[-1]["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
        if not incremental:
            assert lasting(events[-1]) == lasting(whole)
            continue
        assert sum((e["output_ids"] for e in events), []) == whole["output_ids"][at:]
        for name in EACH_TOKEN:
            assert sum((e["meta_info"][name] for e in events), []) == whole["meta_info"][name][at:]
        said = s.json("/generate", short | {"stream": False})["text"]
        text = "".join(e["text"] for e in events)
        assert whole["text"].endswith(text) and said.startswith(whole["text"][: len(whole["text"]) - len(text)])


def test_several_outputs_each_from_where_it_was(s):
    """One had not begun, one has ended."""
    body = {"input_ids": [[1, 403], [1, 407, 261]],
            "sampling_params": {"max_new_tokens": 20, "sampling_seed": 5, "n": 2}}  # fmt: skip
    whole = s.json("/generate", body)
    parts = [cut(whole[0], 7), None, cut(whole[2], 20), cut(whole[3], 1)]
    rest = s.json("/generate", body | {"resume": parts})
    assert [lasting(r)["output_ids"] for r in rest] == [lasting(r)["output_ids"] for r in whole]
    assert [r["meta_info"].get("resumed_tokens") for r in rest] == [7, None, 20, 1]
    assert rest[2]["meta_info"]["finish_reason"] == {"type": "length", "length": 20}
    assert [r["output_ids"] for r in s.json("/generate", body | {"resume": parts[:1]})] == [r["output_ids"] for r in whole]
    assert s.post("/generate", body | {"resume": parts[0]}).status_code == 400


def test_versions_of_both_are_told(s):
    whole = s.json("/generate", BODY)
    part = cut(whole, 6)
    part["meta_info"]["token_versions"] = [["a", 4], ["b", 2]]
    part["meta_info"]["kept_kv"] = [[1, 3]]
    meta = s.json("/generate", BODY | {"resume": part})["meta_info"]
    assert meta["token_versions"] == [["a", 4], ["b", 2], ["default", 34]] and meta["kept_kv"] == [[1, 3]]


def broken(part, **change):
    meta = {k: change.pop(k) for k in list(change) if k != "output_ids"}
    return part | change | {"meta_info": part["meta_info"] | meta}


def test_what_is_no_reply_of_the_request_is_refused(s):
    whole = s.json("/generate", BODY)
    part = cut(whole, 8)
    for bad, says in [
        (broken(part, output_ids=part["output_ids"][:-1] + [99999]), "vocabulary"),
        (broken(part, output_ids=part["output_ids"][::-1]), "different tokens"),
        (broken(part, output_token_logprobs=[]), "fewer items"),
        (broken(part, output_top_logprobs=[]), "fewer items"),
        (broken(part, output_top_logprobs=[[[-1.0, 5, None]] * 9] * 8), "more log-probabilities"),
        (broken(part, output_token_sampling_mask=[[5]]), "lacks the token"),
        (broken(part, output_token_sampling_mask=part["meta_info"][MASKS[0]][:3]), "fewer items"),
        (broken(part, output_token_sampling_logprobs=[]), "fewer items"),
        (broken(part, output_token_sampling_mask=[[-1, *part["meta_info"][MASKS[0]][0]]] * 8), "more ids"),
        (broken(part, output_token_sampling_mask=[[VOCAB, part["output_ids"][0]]] * 8), "vocabulary"),
        (broken(part, token_versions=[["a", 3]]), "token_versions"),
        (broken(whole, output_ids=whole["output_ids"] * 2), "max_new_tokens"),
        (broken(part, output_ids=[2] + part["output_ids"][1:],
                output_token_sampling_mask=[[2], *part["meta_info"][MASKS[0]][1:]],
                output_token_logprobs=[[-1.0, 2, None]] + part["meta_info"]["output_token_logprobs"][1:]), "ended"),
        (broken(part, output_top_logprobs=[[[-1.0, VOCAB, None]]] * 8), "output_top_logprobs"),  # a reply could not say its text
        (broken(part, output_token_logprobs=[[1e39, part["output_ids"][0], None]] * 8), "output_token_logprobs"),  # would be null
        (broken(part, output_token_sampling_logprobs=[-1e39] * 8), "output_token_sampling_logprobs"),
        (broken(part, token_versions=[["v" * 257, 8]]), "token_versions"), (broken(part, id="r" * 257), "id"),
        (broken(part, output_ids=5), "output_ids"), (broken(part, seed=-1), "seed"), (broken(part, kept_kv=[[0, 0]]), "kept_kv"),
        (broken(part, kept_kv=[[0]]), "kept_kv: "), (broken(part, kept_kv=[[0, 1, 2]]), "number of tokens"),
        (broken(part, token_versions=[["a"]]), "token_versions: "), (broken(part, token_versions=[["a", 8, 1]]), "number of tokens"),
        (broken(part, output_token_logprobs=[[-1.0]] * 8), "output_token_logprobs: "), (broken(part, output_top_logprobs=[[[]]] * 8), "output_top_logprobs: "),
        ("text", "object"), ([part, part], "items"), (7, "object"),
    ]:  # fmt: skip
        reply = s.post("/generate", BODY | {"resume": bad})
        assert reply.status_code == 400 and says in reply.json()["message"], (says, reply.text)
