"""Requests that are odd but not broken: values that clients leave out or fill in by mistake, and two features at once. Each
has the right answer or a 400 that says what to change. Bodies of a wrong type are in test_bad_input.py."""

import anthropic
from said import model, s  # noqa: F401

CHAT = {"messages": [{"role": "user", "content": "Well?"}], "max_tokens": 2, "temperature": 0}


def refused(s, path, body, *words):
    message = s.json(path, body, 400)["message"]
    assert all(w in message for w in words), message


def test_a_tool_whose_calls_could_not_be_read(s):
    """A name with a space or a bracket is no call's name in any form: the model's calls would all be text."""
    for name in ("a b", "f(x)", 'say "hi"', "x" * 257, "a\u0000"):
        tool = {"name": name, "parameters": {"type": "object", "properties": {}}}
        refused(s, "/v1/chat/completions", CHAT | {"tools": [{"type": "function", "function": tool}]}, "tools", "name")
        refused(s, "/v1/responses", {"input": "a", "tools": [{"type": "function"} | tool]}, "tools", "name")
        refused(s, "/v1/messages", CHAT | {"tools": [{"name": name, "input_schema": {}}]}, "tools", "name")
    for name in ("mcp__a-b.c:d", "\u00e9", "x" * 256):
        s.json("/v1/chat/completions", CHAT | {"tools": [{"type": "function", "function": {"name": name}}]})


def test_tools_without_a_type(s):
    """Tools that others' servers run are left out, so one that only forgot its type would be, unseen."""
    refused(s, "/v1/responses", {"input": "a", "tools": [{"name": "f", "parameters": {}}]}, "tools", "type")


def shown(s, call):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return s.json("/apply_template", {"messages": messages, "add_special_tokens": False})["tokens"]


def test_calls_without_arguments(s):
    """Clients send nothing, null or an empty text for a call of a function that takes nothing."""
    call = lambda **more: {"id": "c", "type": "function", "function": {"name": "now"} | more}
    want = shown(s, call(arguments="{}"))
    assert shown(s, call()) == shown(s, call(arguments=None)) == shown(s, call(arguments="")) == want
    count = lambda **more: s.json("/v1/responses/input_tokens", {"input": [
        {"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c", "name": "now"} | more]})["input_tokens"]  # fmt: skip
    assert count(arguments="") == count(arguments=None) == count() == count(arguments="{}")
    for none in ({}, {"function": None}, {"type": "custom", "custom": None}):
        messages = [{"role": "assistant", "tool_calls": [{"id": "c"} | none]}]
        refused(s, "/v1/chat/completions", CHAT | {"messages": messages}, "messages[0]", "function")


def test_calls_with_the_other_forms_member(s):
    """Clients that have one type for calls of functions and of custom tools write the other's member as null."""
    function = {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    custom = {"id": "c", "type": "custom", "custom": {"name": "now", "input": "x"}}
    assert shown(s, function | {"custom": None}) == shown(s, function)
    assert shown(s, {"function": None} | custom) == shown(s, custom) != shown(s, function)


def test_numbers_that_nobody_would_see(s):
    """OpenAI's rule; /v1/responses gives them."""
    refused(s, "/v1/chat/completions", CHAT | {"top_logprobs": 2}, "top_logprobs", "logprobs")
    refused(s, "/v1/chat/completions", CHAT | {"top_logprobs": 2, "logprobs": False}, "top_logprobs", "logprobs")
    for fine in ({"top_logprobs": 0}, {"top_logprobs": None}, {"top_logprobs": 2, "logprobs": True}):
        s.json("/v1/chat/completions", CHAT | fine)
    refused(s, "/v1/responses", {"input": "a", "include": ["message.output_text.logprob"]}, "include", "message.output_text.logprob")
    for known in ("reasoning.encrypted_content", "web_search_call.results", "code_interpreter_call.outputs"):
        s.json("/v1/responses", {"input": "a", "include": [known], "max_output_tokens": 1})


def test_vllms_names_of_limits(s):
    """max_tokens among /generate's sampling parameters was unknown, so a limit of 3 tokens was one of 128."""
    ask = lambda **params: s.json("/generate", {"text": "a", "sampling_params": {"ignore_eos": True} | params})["meta_info"]
    assert ask(max_tokens=3)["completion_tokens"] == 3 == ask(max_tokens="3", min_tokens=3)["completion_tokens"]
    refused(s, "/generate", {"text": "a", "sampling_params": {"max_tokens": 3, "min_tokens": 4}}, "min_new_tokens 4", "max_new_tokens 3")


def test_numbers_from_behind_the_prompt_on(s):
    """There are none: SGLang's 400. From its end on there are none either, and that is what some clients ask for."""
    score = {"input_ids": [1, 2, 3], "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    refused(s, "/generate", score | {"logprob_start_len": 4}, "logprob_start_len 4", "3 tokens")
    assert s.json("/generate", score | {"logprob_start_len": 3})["meta_info"]["input_token_logprobs"] == []
    s.json("/generate", score | {"logprob_start_len": 4, "return_logprob": False})


def test_a_number_that_is_far_off(s):
    """Its message had all of its 309 digits."""
    message = s.json("/generate", {"text": "a", "sampling_params": {"n": 1e308}}, 400)["message"]
    assert "n: " in message and "1e+308 is outside 1..512" in message


def test_numbers_just_beyond(s):
    """A seed below -2^63 was another seed, and 1.0000001 was "1 is outside 0..1"."""
    ask = lambda **params: ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 1} | params})
    assert s.json(*ask(sampling_seed=-(2**63)))["meta_info"]["seed_text"] == str(2**63)
    for seed in (-(2**63) - 1, 2**64, "-9223372036854775809"):
        refused(s, *ask(sampling_seed=seed), "sampling_seed", "64-bit")
    refused(s, *ask(top_p=1.0000001), "top_p", "1.0000001 is outside 0..1")


def test_a_part_of_text_without_text(s):
    """The message said that a part of type text is not supported, only text."""
    messages = [{"role": "user", "content": [{"type": "text"}]}]
    refused(s, "/v1/chat/completions", CHAT | {"messages": messages}, "messages[0]", "has no text")


def test_an_echo_of_what_was_kept(s):
    """A prompt that was cut is echoed as it was cut, and offsets are in that text."""
    body = {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0, "truncate_prompt_tokens": 3, "echo": True, "logprobs": 0}
    (choice,) = s.json("/v1/completions", body)["choices"]
    (plain,) = s.json("/v1/completions", body | {"prompt": "ime", "truncate_prompt_tokens": None})["choices"]
    assert choice["text"] == plain["text"] and choice["text"].startswith("ime") and choice["logprobs"] == plain["logprobs"]
    assert choice["logprobs"]["text_offset"][:3] == [0, 1, 2]


def test_a_reply_that_is_begun(s):
    """Anthropic's prefill: a last message of the assistant is what the reply goes on with. A call is none."""
    asked = {"role": "user", "content": "Well?"}
    with anthropic.Anthropic(base_url=s.url, api_key="none", max_retries=0) as client:
        count = lambda *m: client.messages.count_tokens(model="", messages=[asked, *m]).input_tokens
        begun = count({"role": "assistant", "content": [{"type": "text", "text": "So"}]})
        same = s.json("/apply_template", {"messages": [asked, {"role": "assistant", "content": "So"}], "continue_final_message": True,
                                          "add_special_tokens": False})["count"]  # fmt: skip
        assert begun == count({"role": "assistant", "content": "So"}) == same
        reply = client.messages.create(model="", max_tokens=3, extra_body={"temperature": 0}, messages=[asked, {"role": "assistant", "content": "So"}])
        chat = s.json("/v1/chat/completions", CHAT | {"max_tokens": 3, "continue_final_message": True, "messages": [asked, {"role": "assistant", "content": "So"}]})
        assert reply.content[0].text == chat["choices"][0]["message"]["content"] and reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) == same
        use = {"type": "tool_use", "id": "c", "name": "now", "input": {}}
        whole = s.json("/apply_template", {"messages": [asked, {"role": "assistant", "content": "", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}], "add_special_tokens": False})["count"]  # fmt: skip
        assert count({"role": "assistant", "content": [use]}) == whole




def test_schemas_that_hold_lists_against_lists(s):
    """The product of two lists' lengths held a text thread for a minute and more."""
    n = 30000
    names = [f"{i:x}" for i in range(n)]
    for schema in ({"allOf": [{"enum": list(range(n))}, {"enum": list(range(n, 2 * n))}]},
                   {"oneOf": [{"const": i} for i in range(n)]},
                   {"enum": [dict.fromkeys(names, 0)], "const": dict.fromkeys(names[::-1], 0)}):  # fmt: skip
        refused(s, "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_json": schema}, "too large")
    few = {"oneOf": [{"const": i} for i in range(300)]}
    assert s.json("/v1/completions", {"prompt": "a", "max_tokens": 9, "guided_json": few})["choices"][0]["text"].isdigit()


def test_a_long_enum(s):
    """Each value was looked for in its own list: 100,000 of them held a thread for minutes, and the server could not stop."""
    refused(s, "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_json": {"enum": list(range(100000))}}, "large")
    one = s.json("/v1/completions", {"prompt": "a", "max_tokens": 9, "guided_json": {"enum": ["x", 5], "const": 5}})
    assert one["choices"][0]["text"] == "5"
