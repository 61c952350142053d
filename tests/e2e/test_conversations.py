"""One way from a conversation to a prompt: whatever endpoint it comes by, and nothing of it lost without a word."""

import json

import pytest
from programs import server, tiny_model

ROLES = "['system', 'user', 'assistant', 'tool']"
PLAIN = (
    "{% for m in messages if m.role in " + ROLES + " %}[{{ m.role }}]{{ m.content }}{{ m.reasoning_content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WITH_TOOLS = (
    "{{ tools | tojson }}<tool_call>{% for m in messages %}({{ m.role }}){{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
)
TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": TOOL}]
USER = {"role": "user", "content": "hi"}


def make_model(folder, template):
    folder = tiny_model(folder, **{"max-position-embeddings": 1024})
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    """A server of a folder whose templates are named, as Hermes 2 Pro's are."""
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": WITH_TOOLS}]
    with server(model=make_model(tmp_path_factory.mktemp("named") / "m", named)) as running:
        yield running


def text(s, messages, **more):
    return s.json("/apply_template", {"messages": messages} | more)["text"]


def counts(s, messages, **tools):
    """Tokens of the prompt as /tokenize and chat see it."""
    of_chat = s.json("/v1/chat/completions", {"messages": messages, "max_tokens": 1} | tools)["usage"]["prompt_tokens"]
    assert s.json("/tokenize", {"messages": messages} | tools)["count"] == of_chat
    return of_chat


def test_a_developer_is_the_system_where_the_template_knows_none(s):
    developer = [{"role": "developer", "content": "be good"}, USER]
    assert text(s, developer) == text(s, [{"role": "system", "content": "be good"}, USER]) == "[system]be good[user]hi[assistant]"
    responses = s.json("/v1/responses/input_tokens", {"input": developer})["input_tokens"]
    messages = s.json("/v1/messages/count_tokens", {"system": "be good", "messages": [USER], "max_tokens": 1})["input_tokens"]
    assert responses == messages == counts(s, developer) > counts(s, [USER])


def test_a_role_that_the_template_drops_is_refused(s):
    for path in ("/apply_template", "/v1/chat/completions", "/tokenize"):
        error = s.json(path, {"messages": [USER, {"role": "critic", "content": "no"}]}, status=400)
        assert 'messages[1]: the chat template does not show messages of the role "critic"' in json.dumps(error).replace("\\", "")
    assert "critic" in text(s, [USER, {"role": "critic", "content": "no"}], tools=TOOLS)  # that template shows it


def test_reasoning_comes_back_under_either_name(s):
    for thought in ({"reasoning": "t"}, {"reasoning_content": "t"}, {"reasoning": "t", "reasoning_content": None},
                    {"reasoning": "t", "reasoning_content": "t"}, {"reasoning": "t", "reasoning_content": ""}):  # fmt: skip
        assert text(s, [USER, {"role": "assistant", "content": "x", **thought}, USER]) == "[user]hi[assistant]xt[user]hi[assistant]"


def test_a_last_message_of_parts_is_gone_on_with(tmp_path):
    """Whether the template takes parts or not, and within the reasoning that they open."""
    takes = "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}" \
            "{% for p in m.content %}{{ p.text }}\n{% endfor %}{% endif %}{{ '</' }}think>{% endfor %}"  # fmt: skip
    parts = [{"type": "text", "text": "<think>so"}, {"type": "text", "text": "it is "}]
    with server("--reasoning-parser", "qwen3", model=make_model(tmp_path / "m", takes)) as s:
        body = {"messages": [USER, {"role": "assistant", "content": parts}], "continue_final_message": True}
        assert text(s, **body).endswith("[assistant]<think>so\nit is")
        message = s.json("/v1/chat/completions", body | {"max_tokens": 3, "temperature": 0})["choices"][0]["message"]
        assert message["reasoning_content"] and not message["content"]


def test_the_template_named_tool_use_is_for_tools(s):
    assert text(s, [USER], tools=TOOLS).startswith(json.dumps(TOOLS) + "<tool_call>(user)hi")
    assert text(s, [USER], tools=[]) == text(s, [USER], tools=None) == text(s, [USER]) == "[user]hi[assistant]"
    called = [USER, {"role": "assistant", "content": None,
                     "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]}]  # fmt: skip
    assert text(s, called, tools=TOOLS).endswith('(assistant){"x": 1}')
    responses = s.json("/v1/responses/input_tokens", {"input": "hi", "tools": [{"type": "function", **TOOL}]})["input_tokens"]
    of_anthropic = {"name": "f", "description": "d", "input_schema": TOOL["parameters"]}
    messages = s.json("/v1/messages/count_tokens", {"messages": [USER], "tools": [of_anthropic], "max_tokens": 1})["input_tokens"]
    assert responses == messages == counts(s, [USER], tools=TOOLS)
    # tool_choice: none shows them too, as vLLM does and as TRL needs, which reads calls by itself
    told = s.json("/v1/chat/completions", {"messages": [USER], "tools": TOOLS, "tool_choice": "none", "max_tokens": 1})["usage"]["prompt_tokens"]
    none = {"tools": [of_anthropic], "tool_choice": {"type": "none"}, "max_tokens": 1}
    assert told == messages == s.json("/v1/messages/count_tokens", {"messages": [USER]} | none)["input_tokens"]
    # calls are read, and forced, in the form that this template shows
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": "required", "max_tokens": 200, "temperature": 0}
    message = s.json("/v1/chat/completions", body)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert "tool calls hermes" in s.log()


def test_tools_must_be_a_list(s):
    assert "tools must be a list of objects" in json.dumps(s.json("/apply_template", {"messages": [USER], "tools": {"a": 1}}, status=400))


@pytest.mark.parametrize("strict", [False, True])
def test_what_a_template_has_no_place_for(tmp_path, strict):
    """Told once for each kind, and refused where the server is strict."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    template = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    cases = [({"messages": [USER], "tools": TOOLS}, "has no place for tools"),
             ({"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": [call]}]}, "does not show an assistant's tool_calls"),
             ({"messages": [USER, {"role": "assistant", "content": "x", "reasoning": "t"}]}, "does not show an assistant's reasoning"),
             ({"messages": [{"role": "developer", "content": "x"}, USER]}, "shows no system message where one stands")]  # fmt: skip
    with server(*(["--strict-fields"] if strict else []), model=make_model(tmp_path / "m", template)) as s:
        for body, says in cases:
            for path in ("/apply_template", "/v1/chat/completions", "/apply_template"):
                got = s.json(path, body | ({"max_tokens": 1} if "chat" in path else {}), status=400 if strict else 200)
                assert (says in json.dumps(got)) == strict
            assert s.log().count(says) == (0 if strict else 1)
