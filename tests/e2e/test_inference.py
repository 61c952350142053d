"""vLLM's surface: tokens in and tokens out, prompt log-probabilities, the tokenizer's words, load and version."""

import functools
import json

import pytest
from programs import STORIES, chat_model, router_to, server, wait_for

PROMPT = [1, 403, 407, 261, 378]


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    folder = chat_model(tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["bos_token"] = {"__type": "AddedToken", "content": config["bos_token"], "lstrip": False}  # as DeepSeek's files have it
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with server(model=folder) as running:
        yield running


def ask(s, stream=False, **params):
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 12, "seed": 5, **params}}
    return s.events("/inference/v1/generate", body | {"stream": True}) if stream else s.json("/inference/v1/generate", body)


def native(s, **more):
    body = {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 12, "sampling_seed": 5}}
    return s.json("/generate", body | more)


def test_the_same_tokens_as_generate(s):
    reply, known = ask(s, logprobs=2), native(s, top_logprobs_num=2)
    choice, meta = reply["choices"][0], known["meta_info"]
    assert choice["token_ids"] == known["output_ids"] and choice["finish_reason"] == "length"
    content = choice["logprobs"]["content"]
    assert [(t["logprob"], t["token"]) for t in content] == [(lp, f"token_id:{i}") for lp, i, _ in meta["output_token_logprobs"]]
    tops = [[(a["logprob"], a["token"]) for a in t["top_logprobs"]] for t in content]
    assert tops == [[(lp, f"token_id:{i}") for lp, i, _ in at] for at in meta["output_top_logprobs"]]
    assert reply["usage"]["completion_tokens"] == 12 and reply["usage"]["prompt_tokens"] == len(PROMPT)
    assert "prompt_logprobs" not in reply and reply["metadata"] == {"weight_version": "default"}
    assert ask(s)["choices"][0]["logprobs"] is None
    two = ask(s, n=2)["choices"]
    assert [c["index"] for c in two] == [0, 1] and two[0]["token_ids"] != two[1]["token_ids"]


def test_a_stream_has_each_id_once(s):
    whole = ask(s, logprobs=0)["choices"][0]
    *events, done = ask(s, stream=True, logprobs=0)
    choices = [json.loads(e)["choices"][0] for e in events]
    assert done == "[DONE]" and [i for c in choices for i in c["token_ids"]] == whole["token_ids"]
    assert [t for c in choices for t in c["logprobs"]["content"]] == whole["logprobs"]["content"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["length"]
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 3}, "stream": True, "stream_options": {"include_usage": True}}
    last = json.loads(s.events("/inference/v1/generate", body)[-2])
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


@functools.cache
def rank_of(s, i):
    """Of the prompt's token i, by the numbers of all ids."""
    numbers = []
    for first in range(0, 512, 256):
        ids = {"logprob_start_len": i - 1, "token_ids_logprob": list(range(first, first + 256)), "sampling_params": {"max_new_tokens": 1}}
        numbers += s.json("/generate", {"input_ids": PROMPT, "return_logprob": True, **ids})["meta_info"]["input_token_ids_logprobs"][1]
    order = sorted((-lp, token) for lp, token, _ in numbers)
    assert len(order) == 512
    return [token for _, token in order].index(PROMPT[i]) + 1


@pytest.mark.parametrize("n", [0, 3])
def test_prompt_logprobs(s, n):
    known = native(s, logprob_start_len=0, top_logprobs_num=max(n, 1))["meta_info"]
    own, tops = known["input_token_logprobs"], known["input_top_logprobs"]
    chat = {"messages": [], "input_ids": PROMPT, "max_tokens": 1, "prompt_logprobs": n, "logprobs": True, "top_logprobs": 1}
    text = {"prompt": [PROMPT, PROMPT], "max_tokens": 1, "prompt_logprobs": n, "logprobs": 2}
    chat, text = s.json("/v1/chat/completions", chat), s.json("/v1/completions", text)
    assert all(len(t["top_logprobs"]) == 1 for t in chat["choices"][0]["logprobs"]["content"])  # what was asked for, no more
    assert all(2 <= len(t) <= 3 for t in text["choices"][0]["logprobs"]["top_logprobs"])
    for got in (ask(s, prompt_logprobs=n)["prompt_logprobs"], chat["prompt_logprobs"], *(c["prompt_logprobs"] for c in text["choices"])):
        assert len(got) == len(PROMPT) and got[0] is None
        for i in range(1, len(PROMPT)):
            want = {str(i): lp for lp, i, _ in tops[i][:n]} | {str(own[i][1]): own[i][0]}
            assert {k: v["logprob"] for k, v in got[i].items()} == want
            ranks = {str(t[1]): k + 1 for k, t in enumerate(tops[i])}
            assert all(v["rank"] == ranks.get(k, v["rank"]) > 0 and isinstance(v["decoded_token"], str) for k, v in got[i].items())
            assert got[i][str(own[i][1])]["rank"] == rank_of(s, i)
            assert all(got[i][str(t[1])]["rank"] == k + 1 for k, t in enumerate(tops[i][:n]))


def test_logprob_token_ids(s):
    """The numbers are /generate's; each token's own stands beside them, once, and the prompt's positions have the largest as ever."""
    ids = [5, 300, native(s)["output_ids"][3]]
    known = native(s, token_ids_logprob=ids)["meta_info"]
    want = [{str(t[1]): t[0]} | {str(i): lp for lp, i, _ in at}
            for t, at in zip(known["output_token_logprobs"], known["output_token_ids_logprobs"])]  # fmt: skip
    of_chat = lambda c: [{t["token"][9:]: t["logprob"] for t in at["top_logprobs"]} for at in c["logprobs"]["content"]]
    (choice,) = ask(s, logprobs=0, logprob_token_ids=ids)["choices"]
    assert of_chat(choice) == want
    assert all(at["top_logprobs"][0]["token"] == at["token"] for at in choice["logprobs"]["content"])
    more = {"max_tokens": len(want), "seed": 5, "return_tokens_as_token_ids": True, "logprob_token_ids": ids}
    chat = {"messages": [], "input_ids": PROMPT, "logprobs": True, "top_logprobs": 1} | more
    assert of_chat(s.json("/v1/chat/completions", chat)["choices"][0]) == want
    pieces = [json.loads(e) for e in s.events("/v1/chat/completions", chat | {"stream": True})[:-1]]
    assert sum((of_chat(p["choices"][0]) for p in pieces if p["choices"][0].get("logprobs")), []) == want
    text = {"prompt": PROMPT, "logprobs": 2, "echo": True} | more
    tops = s.json("/v1/completions", text)["choices"][0]["logprobs"]["top_logprobs"]
    assert [{k[9:]: v for k, v in t.items()} for t in tops[len(PROMPT) :]] == want
    plain = s.json("/v1/completions", {k: v for k, v in text.items() if k != "logprob_token_ids"})
    assert tops[: len(PROMPT)] == plain["choices"][0]["logprobs"]["top_logprobs"][: len(PROMPT)]
    rendered = s.json("/v1/completions/render", text | {"echo": False})[0]
    assert of_chat(s.json("/inference/v1/generate", rendered)["choices"][0]) == want
    assert "vocabulary" in s.json("/v1/completions", text | {"logprob_token_ids": [5, 99999]}, 400)["message"]


@pytest.mark.parametrize(("body", "says"), [
    ({}, "token_ids is missing"),
    ({"token_ids": "Once"}, "token_ids must be a list of ids"),
    ({"token_ids": [[1], [2]]}, "token_ids must be a list of ids"),
    ({"token_ids": [1, "x"]}, "token_ids"),
    ({"token_ids": [1], "features": {"mm_hashes": {"image": ["x"]}}}, "features is not supported"),
    ({"token_ids": [1], "sampling_params": {"extra_args": {"x": 1}}}, "extra_args is not supported"),
    ({"token_ids": [1], "stream": True, "sampling_params": {"prompt_logprobs": 1}}, "a stream has no prompt_logprobs"),
])  # fmt: skip
def test_what_is_refused(s, body, says):
    assert says in s.json("/inference/v1/generate", body, 400)["message"]


def test_a_prompt_that_is_too_long_has_openais_code(s):
    for path, body in [("/v1/chat/completions", {"messages": [{"role": "user", "content": "Once upon a time " * 400}]}),
                       ("/v1/completions", {"prompt": [1] * 600}), ("/inference/v1/generate", {"token_ids": [1] * 600}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": "there was " * 600}], "max_tokens": 2})]:  # fmt: skip
        reply = s.json(path, body, 400)
        assert reply["error"]["code"] == "context_length_exceeded" and reply["code"] == 400, path
    assert s.json("/v1/completions", {"prompt": [1], "top_p": 7}, 400)["error"]["code"] == 400


def test_about_the_tokenizer_and_the_load(s):
    info = s.get("/tokenizer_info").json()
    file = json.loads((STORIES / "tokenizer_config.json").read_text()) if (STORIES / "tokenizer_config.json").exists() else {}
    assert info.items() >= {k: v for k, v in file.items() if k != "chat_template"}.items()
    assert "[assistant]" in info["chat_template"] and info["eos_token"] and info["tokenizer_class"]
    assert s.get("/version").json() == {"version": s.get("/server_info").json()["version"]}
    assert s.get("/ping").status_code == 200 and s.get("/load").json() == {"server_load": 0}
    s.json("/pause_generation", {"mode": "in_place"})  # parked requests count
    with s.client.stream("POST", "/generate", json={"input_ids": PROMPT, "stream": True}) as parked:
        assert parked.status_code == 200  # the head of a stream is sent when the request is in
        wait_for(lambda: s.get("/get_load").json()[0]["num_pending_tokens"])  # the engine has taken it
        load, = s.get("/get_load").json()
        assert load["num_reqs"] == load["num_waiting_reqs"] == 1 and load["num_pending_tokens"] == load["num_tokens"] == len(PROMPT)
        assert s.get("/load").json() == {"server_load": 1}
        loads = s.get("/v1/loads").json()["loads"][0]
        assert loads["num_running_reqs"] + loads["num_waiting_reqs"] == 1 and loads["paused"]
        s.json("/continue_generation", {})
        parked.read()
    assert s.get("/load").json() == {"server_load": 0}


def test_a_request_as_tokens(s):
    """Rendered and sent on as it is, it gives what it gives itself: in SkyRL, and in routers that choose by tokens."""
    chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 9, "seed": 5, "temperature": 0.7, "stop": ["zz"],
            "logit_bias": {"403": 3}, "return_token_ids": True, "logprobs": True, "top_logprobs": 2, "cache_salt": "a", "rid": "r1"}  # fmt: skip
    for more in ({}, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}},
                 {"response_format": {"type": "json_object"}, "n": 2}, {"regex": "[ab]{4}", "max_tokens": None}, {"truncate_prompt_tokens": 3}):  # fmt: skip
        rendered = s.json("/v1/chat/completions/render", chat | more)
        assert (rendered["request_id"], rendered["cache_salt"], rendered["features"], rendered["stream"]) == ("r1", "a", None, False)
        mine = s.json("/v1/chat/completions", chat | more)
        assert rendered["token_ids"] == mine["prompt_token_ids"]
        theirs = s.json("/inference/v1/generate", rendered)
        assert [c["token_ids"] for c in theirs["choices"]] == [c["token_ids"] for c in mine["choices"]]
        got, want = ([t["logprob"] for t in r["choices"][0]["logprobs"]["content"]] for r in (theirs, mine))
        assert got == want and len(theirs["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    texts = {"prompt": ["Once", [1, 403]], "max_tokens": 5, "seed": 1}
    first, second = s.json("/v1/completions/render", texts)
    assert second["token_ids"] == [1, 403] and first["token_ids"] == s.json("/tokenize", {"prompt": "Once"})["tokens"]
    assert first["request_id"] and first["sampling_params"] == {"seed": 1, "max_tokens": 5} and first["model"] == s.get("/v1/models").json()["data"][0]["id"]
    tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    assert "tool_choice" in s.json("/v1/chat/completions/render", chat | tools | {"tool_choice": "required"}, 400)["message"]
    assert "parallel_tool_calls" in s.json("/v1/chat/completions/render", chat | tools | {"parallel_tool_calls": False}, 400)["message"]
    assert s.json("/v1/chat/completions/render", chat | {"parallel_tool_calls": False})["token_ids"]  # of no tools it says nothing
    assert s.json("/v1/chat/completions/render", chat | {"model": "nobody"}, 404)["message"]
    for prompt, word in ([], "empty"), ([10**6], "vocabulary"), ([[1], [1] * 5000], "prompt 1: "), ("Once " * 5000, "maximum context length"):
        assert word in s.json("/v1/completions/render", {"prompt": prompt}, 400)["message"]


def test_through_a_router(s):
    with router_to([s.url]) as r:
        reply = r.json("/inference/v1/generate", {"token_ids": PROMPT, "sampling_params": {"max_tokens": 12, "seed": 5}})
        assert reply["choices"][0]["token_ids"] == ask(s)["choices"][0]["token_ids"]
        assert r.get("/tokenizer_info").json() == s.get("/tokenizer_info").json()
        chat = {"messages": [{"role": "user", "content": "Once"}], "rid": "a"}
        for path, body in (("/v1/chat/completions/render", chat), ("/v1/completions/render", {"prompt": "Once", "rid": "b"})):
            assert r.json(path, body) == s.json(path, body)
