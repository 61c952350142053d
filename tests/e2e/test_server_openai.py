"""The OpenAI endpoints of clime-server through the official client, and raw where the client hides something."""

import json

import openai
import pytest
from programs import chat_model, needs_stories, router_to, server, tiny_model


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    with server("--served-model-name", "tales", model=chat_model(tmp_path_factory.mktemp("chat"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(s):
    with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


MESSAGES = [{"role": "user", "content": "Once upon"}]


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "tales" and model.max_model_len == 512
    assert client.models.retrieve("tales").id == "tales"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


@needs_stories
def test_chat_is_generate_on_the_rendered_prompt(s, client):
    rendered = s.json("/apply_template", {"messages": MESSAGES})
    assert rendered["text"] == "<s>[user] Once upon\n[assistant] "
    reply = client.chat.completions.create(
        model="tales", messages=MESSAGES, max_tokens=20, seed=5, logprobs=True, top_logprobs=2,
        extra_body={"return_token_ids": True, "return_meta_info": True})
    (choice,) = reply.choices
    same = s.json("/generate", {"input_ids": rendered["tokens"], "return_logprob": True,
                                "sampling_params": {"max_new_tokens": 20, "sampling_seed": 5}})
    assert reply.prompt_token_ids == rendered["tokens"]
    assert choice.token_ids == same["output_ids"] and choice.message.content == same["text"]
    assert [t.logprob for t in choice.logprobs.content] == [t[0] for t in same["meta_info"]["output_token_logprobs"]]
    assert choice.meta_info["output_token_logprobs"] == same["meta_info"]["output_token_logprobs"]
    for t in choice.logprobs.content:
        assert len(t.top_logprobs) == 2 and bytes(t.bytes).decode() == t.token
    assert choice.finish_reason == "length" and choice.message.role == "assistant"
    assert reply.usage.prompt_tokens == len(rendered["tokens"]) and reply.usage.completion_tokens == 20
    assert reply.metadata["weight_version"] == "default"


@needs_stories
@pytest.mark.parametrize("prompt", ["Hi \U0001f600", "Hi \U0001f468\u200d\U0001f469\u200d\U0001f467"])
def test_a_reply_begins_behind_its_prompt(s, client, prompt):
    """Characters that this tokenizer has as single bytes, at a prompt's end, are the prompt's; one that is not whole
    there comes with the reply that ends it."""
    asked = dict(model="tales", prompt=prompt, max_tokens=6, temperature=0, extra_body={"return_token_ids": True})
    plain, echoed = (client.completions.create(**asked, echo=echo).choices[0] for echo in (False, True))
    ids = plain.prompt_token_ids
    assert all(3 <= i < 259 for i in ids[-4:]), "bytes"
    assert plain.text == s.json("/detokenize", {"tokens": ids + plain.token_ids})["prompt"].removeprefix(prompt)
    assert "\ufffd" not in plain.text and echoed.text == prompt + plain.text
    half = client.completions.create(model="tales", prompt=ids[:-1], max_tokens=1, temperature=0, logit_bias={str(ids[-1]): 100}).choices[0]
    assert half.text == prompt[-1]


@pytest.mark.parametrize("n", [1, 3])
def test_chat_stream_adds_up(client, n):
    body = dict(model="tales", messages=MESSAGES, max_completion_tokens=30, seed=9, n=n, logprobs=True, stop=["named"],
                extra_body={"return_token_ids": True})
    whole = client.chat.completions.create(**body)
    text, ids, logp, ends, roles, prompt_ids = ({i: [] for i in range(n)} for _ in range(6))
    usage = None
    for chunk in client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}):
        assert chunk.object == "chat.completion.chunk"
        assert usage is None, "the usage comes last"
        usage = chunk.usage
        for c in chunk.choices:
            assert not ends[c.index], "nothing may follow the end"
            roles[c.index] += [c.delta.role] if c.delta.role else []
            text[c.index].append(c.delta.content or "")
            ids[c.index] += getattr(c, "token_ids", None) or []
            prompt_ids[c.index] += getattr(c, "prompt_token_ids", None) or []
            logp[c.index] += [t.logprob for t in c.logprobs.content] if c.logprobs else []
            ends[c.index] += [c.finish_reason] if c.finish_reason else []
    for c in whole.choices:
        i = c.index
        assert "".join(text[i]) == c.message.content
        assert ids[i] == c.token_ids and logp[i] == [t.logprob for t in c.logprobs.content]
        assert ends[i] == [c.finish_reason] and roles[i] == ["assistant"] and prompt_ids[i] == whole.prompt_token_ids
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_a_stop_token_comes_in_a_delta_of_its_own(client):
    """Joined deltas: clients that build text from the tokens' own (guidance) would show a token that the text leaves out."""
    body = dict(model="tales", messages=MESSAGES, max_completion_tokens=30, seed=9, logprobs=True)
    ids = client.chat.completions.create(**body, extra_body={"return_token_ids": True}).choices[0].token_ids
    n = next(i for i in range(5, len(ids)) if ids[i] not in ids[:i])
    more = {"return_token_ids": True, "stop_token_ids": [ids[n]], "stream_interval": 100}
    deltas = [c.choices[0] for c in client.chat.completions.create(**body, stream=True, extra_body=more) if c.choices]
    sent = [(d.delta.content, d.token_ids, len(d.logprobs.content)) for d in deltas if d.logprobs]
    assert [(i, k) for _, i, k in sent] == [(ids[:n], n), ([ids[n]], 1)] and sent[0][0] and not sent[1][0], sent


def test_seeds_make_members(client):
    three = client.completions.create(model="tales", prompt="Once", n=3, max_tokens=16, seed=4)
    for c in three.choices:
        alone = client.completions.create(model="tales", prompt="Once", max_tokens=16, seed=c.seed)
        assert alone.choices[0].text == c.text


@needs_stories
def test_completions_order_and_prompt_forms(client):
    texts = client.completions.create(model="tales", prompt=["Once upon", "The dog"], n=2, temperature=0, max_tokens=4)
    assert [c.index for c in texts.choices] == [0, 1, 2, 3]
    assert texts.choices[0].text == texts.choices[1].text == " a time, there"
    ids = client.completions.create(model="tales", prompt=[[1, 403, 407], [1]], temperature=0, max_tokens=4)
    assert ids.choices[0].text == " a time, there"
    flat = client.completions.create(model="tales", prompt=[1, 403, 407], temperature=0, max_tokens=4)
    assert len(flat.choices) == 1 and flat.choices[0].text == " a time, there"
    assert client.completions.create(model="tales", prompt="Once").usage.completion_tokens <= 16


@needs_stories
def test_lm_eval_scoring(client):
    """Greedy token and largest of top_logprobs must be the very same float."""
    ids = [1, 403, 407, 261, 378]
    reply = client.completions.create(model="tales", prompt=[ids, ids[:3]], max_tokens=1, echo=True, logprobs=1,
                                      temperature=0, seed=1234)
    for c, prompt in zip(reply.choices, (ids, ids[:3])):
        lp = c.logprobs
        assert len(lp.token_logprobs) == len(lp.tokens) == len(prompt) + 1
        assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
        assert lp.token_logprobs[-1] == max(lp.top_logprobs[-1].values())
        assert lp.token_logprobs[1] == max(lp.top_logprobs[1].values())  # "Once" is what greedy says too
    scored = client.completions.create(model="tales", prompt=ids, max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].logprobs.token_logprobs == reply.choices[0].logprobs.token_logprobs[:-1]


def test_logprobs_zero_and_token_ids_as_text(client):
    reply = client.completions.create(model="tales", prompt="Once", max_tokens=3, logprobs=0,
                                      extra_body={"return_tokens_as_token_ids": True})
    lp = reply.choices[0].logprobs
    assert len(lp.token_logprobs) == 3 and all(t.startswith("token_id:") for t in lp.tokens)
    assert lp.top_logprobs == [{t: n} for t, n in zip(lp.tokens, lp.token_logprobs)]  # vLLM's: the sampled token's alone
    echoed = client.completions.create(model="tales", prompt="Once", max_tokens=2, logprobs=0, echo=True).choices[0].logprobs
    assert echoed.top_logprobs == [None] + [{t: n} for t, n in zip(echoed.tokens[1:], echoed.token_logprobs[1:])]
    pieces = [p.choices[0].logprobs for p in client.completions.create(model="tales", prompt="Once", max_tokens=3, logprobs=0, stream=True)]
    assert all(p.top_logprobs == [{t: n} for t, n in zip(p.tokens, p.token_logprobs)] for p in pieces if p)


def test_the_fingerprint_is_the_weights_version(client):
    ask = {"model": "tales", "messages": MESSAGES, "max_tokens": 2}
    assert client.chat.completions.create(**ask).system_fingerprint == "default"
    assert {c.system_fingerprint for c in client.chat.completions.create(stream=True, **ask)} == {"default"}
    assert client.completions.create(model="tales", prompt="Once", max_tokens=2).system_fingerprint == "default"


def test_stop_and_matched_stop(client):
    reply = client.chat.completions.create(model="tales", messages=MESSAGES, temperature=0, stop=" ")
    assert reply.choices[0].finish_reason == "stop" and reply.choices[0].matched_stop == " "
    assert " " not in reply.choices[0].message.content


def test_continue_final_message(s):
    messages = [*MESSAGES, {"role": "assistant", "content": " there was a "}]
    out = s.json("/apply_template", {"messages": messages, "continue_final_message": True})
    assert out["text"] == "<s>[user] Once upon\n[assistant]  there was a"


def test_contents_as_parts_and_tools(s):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    out = s.json("/apply_template", {"messages": parts, "tools": tools})
    assert out["text"] == "<s>[user] a\nb\n1 tools\n[assistant] "


def test_tokenize_and_back(s):
    for text in ["Once upon a time", "é 漢 🙂", " leading", "</s>"]:
        ids = s.json("/tokenize", {"prompt": text, "add_special_tokens": False})
        back = s.json("/detokenize", {"tokens": ids["tokens"], "skip_special_tokens": False})
        assert back["text"] == back["prompt"] == text.removeprefix("") and ids["count"] == len(ids["tokens"])
    both = s.json("/tokenize", {"prompt": ["Once", ""]})
    assert both["tokens"][1] == [1] and both["count"] == [len(t) for t in both["tokens"]]


@pytest.mark.parametrize("path, body", [
    ("/v1/chat/completions", {}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": "hi"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 0}),
    ("/v1/chat/completions", {"messages": MESSAGES, "temperature": "hot"}),
    ("/v1/chat/completions", {"messages": MESSAGES, "response_format": {"type": "xml"}}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 600}]}),
    ("/v1/completions", {}),
    ("/v1/completions", {"prompt": 5}),
    ("/v1/completions", {"prompt": [1, "a"]}),
    ("/v1/completions", {"prompt": ["a", 1]}),
    ("/v1/completions", {"prompt": [[1], [99999]]}),
    ("/v1/completions", {"prompt": "a", "best_of": 3}),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}),
    ("/tokenize", {}),
    ("/tokenize", {"prompt": 5}),
    ("/tokenize", {"prompt": "a", "messages": MESSAGES}),
    ("/detokenize", {"tokens": "a"}),
    ("/detokenize", {"tokens": [1, [2]]}),
    ("/detokenize", {}),
    ("/apply_template", {"messages": [{"role": 5}]}),
])
def test_bad_requests(s, path, body):
    reply = s.post(path, body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["message"] and reply.json()["error"]["message"]


def test_errors_as_the_client_sees_them(client):
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        client.completions.create(model="tales", prompt=[[1], [99999]])


def test_unknown_fields_are_ignored(s):
    body = {"messages": MESSAGES, "max_tokens": 2, "user": "me", "store": False, "metadata": {"a": 1}, "what": [1]}
    assert s.json("/v1/chat/completions", body)["choices"][0]["finish_reason"] == "length"


def test_stream_frames(s):
    events = s.events("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "stream": True})
    assert events[-1] == "[DONE]"
    chunks = [json.loads(e) for e in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert len({c["id"] for c in chunks}) == 1


def test_one_key_a_candidate(tmp_path):
    """Tokens that are parts of characters have names of their own in top_logprobs, and a sampled one its own number."""

    def once(pairs):
        keys = [k for k, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    with server(model=tiny_model(tmp_path / "bytes")) as s:
        for more in ({}, {"echo": True, "max_tokens": 0}):
            body = {"prompt": "h\u00e9", "max_tokens": 12, "logprobs": 20, "temperature": 1, "seed": 3, "ignore_eos": True}
            text = s.client.post("/v1/completions", json=body | more).text
            lp = json.loads(text, object_pairs_hook=once)["choices"][0]["logprobs"]
            assert any(t.startswith("bytes:\\x") for t in lp["tokens"])
            for token, number, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"], strict=True):
                assert top is None or (len(top) in (20, 21) and top[token] == number)


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_a_salt_separates_cached_prompts(s, name):
    """A prompt is found under its own salt alone, with or without a router between."""
    def chat(at, text, salt):
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1} | salt
        return at.json("/v1/chat/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def generate(at, text, salt):
        return at.json("/generate", {"text": text, "sampling_params": {"max_new_tokens": 1}} | salt)["meta_info"]["cached_tokens"]

    with router_to([s.url]) as r:
        for ask in (chat, generate):
            for at in (s, r):
                text = f"{name} {ask.__name__} {at.url} " * 8
                for salt in ({}, {name: "a"}, {name: "b"}):
                    assert ask(at, text, salt) == 0
                for salt in ({}, {name: "a"}, {name: "b"}):
                    assert ask(at, text, salt) > 0
