"""Reasoning told from content in chat replies. The model's output is forced: its tokenizer has a token that spells a whole
block of reasoning, and a bias makes every token that one."""

import json

import openai
import pytest
from programs import run, server, tiny_model

BLOCK = "<think>\nSo, h\u00e9.\n</think>\n\nYes!"
TEMPLATE = (
    "{% if tools %}[tools] {{ tools|tojson }}\n{% endif %}"
    "{% for m in messages %}[{{ m.role }}] {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n{{ '</' }}think>\n\n{% endif %}"
    "{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% if think %}<think>\n{% endif %}"
    "{% if enable_thinking is defined and not enable_thinking or messages[-1].content.endswith('/no_think') %}<think>\n\n{{ '</' }}think>\n\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(folder, id of the block's token)"""
    folder = tmp_path_factory.mktemp("reasoning")
    plain = tiny_model(folder / "plain")
    tokenizer = json.loads((plain / "tokenizer.json").read_text())
    block = max([t["id"] for t in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values())) + 1
    tokenizer["added_tokens"].append({"id": block, "content": BLOCK, "special": False, "normalized": False,
                                      "single_word": False, "lstrip": False, "rstrip": False})  # fmt: skip
    (plain / "tokenizer.json").write_text(json.dumps(tokenizer))
    (plain / "chat_template.jinja").write_text(TEMPLATE)
    sizes = {"hidden-size": 64, "intermediate-size": 192, "num-hidden-layers": 1, "num-attention-heads": 2,
             "num-key-value-heads": 1, "head-dim": 32, "max-position-embeddings": 256}  # fmt: skip
    status, _, err = run("clime-train", "init", folder / "model", "--tokenizer", plain,
                         *(w for k, v in sizes.items() for w in (f"--{k}", v)))  # fmt: skip
    assert status == 0, err
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return folder / "model", block


@pytest.fixture(scope="module")
def s(model):
    with server("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", model=model[0]) as running:
        yield running


def ask(model, n=2, **more):
    return {"messages": [{"role": "user", "content": "Well?"}], "max_tokens": n, "temperature": 0,
            "logit_bias": {str(model[1]): 1000}} | more  # fmt: skip


def message(s, body):
    return s.json("/v1/chat/completions", body)["choices"][0]["message"]


def test_whole(s, model):
    reply = s.json("/v1/chat/completions", ask(model, return_meta_info=True))
    (choice,) = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Yes!" + BLOCK, "reasoning_content": "So, h\u00e9.",
                                 "reasoning": "So, h\u00e9."}  # fmt: skip
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}
    assert choice["meta_info"]["reasoning_tokens"] == 1
    assert message(s, ask(model, separate_reasoning=False)) == {"role": "assistant", "content": BLOCK * 2}
    # cut off within the block, by a stop string: all of it is reasoning
    cut = message(s, ask(model, stop=["h\u00e9"]))
    assert cut == {"role": "assistant", "content": "", "reasoning_content": "So, ", "reasoning": "So, "}
    # the other endpoints give the text as it is
    params = {"max_new_tokens": 2, "temperature": 0, "logit_bias": {str(model[1]): 1000}}
    assert s.json("/generate", {"input_ids": [5], "sampling_params": params})["text"] == BLOCK * 2


def test_a_block_that_the_template_opens(s, model):
    body = ask(model, chat_template_kwargs={"think": True})
    got = message(s, body)
    assert got["reasoning_content"] == "<think>\nSo, h\u00e9." and got["content"] == "Yes!" + BLOCK
    # whatever a random model says there is reasoning, as it never ends the block (without that token, which does)
    random = message(s, body | {"logit_bias": {str(model[1]): -1000}, "max_tokens": 40, "ignore_eos": True, "temperature": 1})
    assert random["content"] == "" and len(random["reasoning_content"]) > 0


@pytest.mark.parametrize("last, inside", [({"content": "<think>\nHm"}, True), ({"content": "<think>a</think> Well, "}, False),
                                          ({"content": "Well, "}, False), ({"content": "", "reasoning_content": "Hm"}, True),
                                          ({"content": "Well, ", "reasoning_content": "Hm"}, False)])  # fmt: skip
def test_a_message_that_goes_on(s, model, last, inside):
    """continue_final_message: in the block of reasoning where the message ends inside it, else in the reply."""
    body = ask(model, continue_final_message=True, add_generation_prompt=False)
    body["messages"].append({"role": "assistant"} | last)
    got = message(s, body)
    if inside:
        assert got["reasoning_content"] == "<think>\nSo, h\u00e9." and got["content"] == "Yes!" + BLOCK
        shown = s.json("/apply_template", {k: body[k] for k in ("messages", "continue_final_message")})["text"]
        assert shown.endswith("[assistant] <think>\nHm"), shown
    else:
        assert got["content"] == BLOCK * 2 and not got.get("reasoning_content")


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stop": ["Yes"]}, {"logprobs": True, "return_token_ids": True},
                                  {"separate_reasoning": False}, {"stream_reasoning": False}])  # fmt: skip
def test_a_stream_adds_up(s, model, more):
    body = ask(model, n=5) | {k: v for k, v in more.items() if k != "n"} | ({"n": more["n"]} if "n" in more else {})
    whole = s.json("/v1/chat/completions", body)
    got = [{"content": "", "reasoning_content": ""} for _ in whole["choices"]]
    n_reasoning, ids, order = 0, [], []
    for event in s.events("/v1/chat/completions", body | {"stream": True})[:-1]:
        for c in json.loads(event)["choices"]:
            for kind in ("content", "reasoning_content"):
                got[c["index"]][kind] += c["delta"].get(kind, "")
                if c["delta"].get(kind) and c["index"] == 0:
                    order.append(kind)
            n_reasoning += "reasoning_content" in c["delta"]
            assert c["delta"].get("reasoning") == c["delta"].get("reasoning_content")
            ids += c.get("token_ids", [])
    for g, c in zip(got, whole["choices"], strict=True):
        assert g == {"content": c["message"]["content"], "reasoning_content": c["message"].get("reasoning_content", "")}
    assert order == sorted(order, reverse=True)  # reasoning before content
    if more.get("return_token_ids"):
        assert ids == whole["choices"][0]["token_ids"]
    if more.get("stream_reasoning") is False:
        assert n_reasoning == 1


def test_the_official_client_reads_it(s, model):
    with openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0) as client:
        body = ask(model)
        body = {k: body[k] for k in ("messages", "max_tokens", "temperature", "logit_bias")}
        name = client.models.list().data[0].id
        reply = client.chat.completions.create(model=name, **body)
        assert reply.choices[0].message.reasoning_content == "So, h\u00e9."
        assert reply.usage.completion_tokens_details.reasoning_tokens == 1
        deltas = [c.choices[0].delta for c in client.chat.completions.create(model=name, stream=True, **body)]
        assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "So, h\u00e9."


def test_without_a_parser_everything_is_content(model):
    with server(model=model[0]) as s:
        assert message(s, ask(model)) == {"role": "assistant", "content": BLOCK * 2}


def test_an_unknown_parser_is_refused_at_start(model):
    status, _, err = run("clime-server", "--model-path", model[0], "--reasoning-parser", "qwen", "--port", 0)
    assert status == 2 and "none|qwen3" in err


YES = {"type": "json_schema", "name": "yes", "schema": {"enum": ["yes"]}}
NOW = {"name": "now", "parameters": {"type": "object", "properties": {}}}
SAID = {"messages": [{"role": "user", "content": "Well?"}]}


@pytest.fixture(scope="module")
def wants_to_think(s):
    """Where a thought may begin the reply, one does, and does not end."""
    return {"temperature": 0, "logit_bias": {str(s.json("/tokenize", {"prompt": c, "add_special_tokens": False})["tokens"][0]): 1000 for c in "<h"}}


@pytest.mark.parametrize("off", [
    {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}, {"reasoning_effort": "none"},
    {"messages": [{"role": "user", "content": "Well? /no_think"}]}])  # fmt: skip
def test_a_closed_thought_stays_closed(s, wants_to_think, off):
    """The prompt ends behind a thought that is closed: no grammar lets the reply begin with another."""
    body = SAID | wants_to_think | {"max_tokens": 60}
    formatted = {"response_format": {"type": "json_schema", "json_schema": YES}}
    forced = {"tools": [{"type": "function", "function": NOW}], "tool_choice": "required", "parallel_tool_calls": False}
    assert not message(s, body | formatted)["content"]  # it is there where thinking is open
    assert message(s, body | formatted | off) == {"role": "assistant", "content": '"yes"'}
    got = message(s, body | forced | off)
    assert got["content"] is None and got["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert "reasoning" not in got
    either = message(s, body | formatted | forced | {"tool_choice": "auto"} | off)
    assert "reasoning" not in either and either["tool_calls"][0]["function"]["name"] == "now"


def test_a_closed_thought_of_the_other_endpoints(s, wants_to_think):
    reply = s.json("/v1/messages", SAID | wants_to_think | {"max_tokens": 60, "thinking": {"type": "disabled"}, "output_config": {"format": YES}})
    assert reply["content"] == [{"type": "text", "text": '"yes"'}]
    reply = s.json("/v1/responses", wants_to_think | {"input": "Well?", "max_output_tokens": 60, "reasoning": {"effort": "none"}, "text": {"format": YES}})
    assert [item["content"][0]["text"] for item in reply["output"]] == ['"yes"']
    for more, closed in (({}, False), ({"reasoning_effort": "none"}, True), ({"reasoning_effort": "none", "enable_thinking": True}, False),
                         ({"reasoning_effort": "low"}, False)):  # fmt: skip
        assert s.json("/apply_template", SAID | more)["text"].endswith("</think>\n\n") == closed
