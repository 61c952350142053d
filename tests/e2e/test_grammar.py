"""Constrained decoding: what a random model writes under a grammar, over every endpoint and field that asks for one."""

import concurrent.futures
import json
import os
import re

import jsonschema
import openai
import pydantic
import pytest
from programs import SLOW, server, tiny_model
from said import TEMPLATE, TOOLS, make_model
from schemas import schema as make_schema

N_SCHEMAS = int(os.environ.get("CLIME_SCHEMAS", 1000 if SLOW == 1 else 60))
NATIVE = {"text": "Once", "sampling_params": {"max_new_tokens": 400}}
CHAT = {"messages": [{"role": "user", "content": "Well?"}], "max_tokens": 400}
ANIMAL = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 10}, "legs": {"type": "integer", "minimum": 0, "maximum": 8}},
          "required": ["name", "legs"]}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("grammar") / "model", **{"max-position-embeddings": 4096})


@pytest.fixture(scope="module")
def s(model):
    with server("--random-seed", 1, "--disable-cuda-graph", model=model) as running:
        yield running


def is_animal(text):
    jsonschema.validate(json.loads(text), ANIMAL)
    return True


def check_value(text, schema):
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    validator.validate(json.loads(text))


def test_generated_schemas(s):
    """Every output parses and validates. A model that draws at random goes on for long where a schema sets no bound: few
    may be cut by the limit."""

    def ask(seed):
        schema = make_schema(seed)
        params = {"json_schema": json.dumps(schema), "max_new_tokens": 2000, "n": 2, "sampling_seed": seed, "temperature": 1}
        replies = s.json("/generate", {"text": "Once", "sampling_params": params})
        for reply in replies:
            if reply["meta_info"]["finish_reason"]["type"] == "stop":
                try:
                    check_value(reply["text"], schema)
                except (ValueError, jsonschema.ValidationError) as e:
                    pytest.fail(f"seed {seed}: {schema}\n{reply['text']!r}\n{e}")
        return sum(r["meta_info"]["finish_reason"]["type"] == "stop" for r in replies)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        n_whole = sum(pool.map(ask, range(N_SCHEMAS)))
    assert n_whole > 0.95 * 2 * N_SCHEMAS


FIELDS = [
    ("json_schema", json.dumps(ANIMAL), is_animal), ("json_schema", ANIMAL, is_animal), ("guided_json", ANIMAL, is_animal),
    ("regex", "[a-f]{3}-[0-9]", "[a-f]{3}-[0-9]"), ("guided_regex", "(yes|no)!", "(yes|no)!"),
    ("ebnf", 'root ::= "<" root ">" | "x"', "<*x>*"), ("guided_grammar", 'root ::= "a" [0-9]{2}', "a[0-9]{2}"),
    ("guided_choice", ["left", "right"], "left|right"), ("structured_outputs", {"json": ANIMAL}, is_animal),
    ("structured_outputs", {"choice": ["a", "b"], "whitespace_pattern": None}, "a|b"), ("guided_decoding", {"regex": "z{4}"}, "z{4}"),
    ("structural_tag", {"type": "structural_tag", "format": {"type": "const_string", "value": "A!"}}, "A!"),
]  # fmt: skip


def fits(text, want):
    return want(text) if callable(want) else re.fullmatch(want, text)


@pytest.mark.parametrize("field, value, want", FIELDS)
def test_fields(s, field, value, want):
    got = s.json("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 400, field: value}})
    assert fits(got["text"], want) and got["meta_info"]["finish_reason"]["type"] == "stop", got
    got = s.json("/v1/completions", {"prompt": "Once", "max_tokens": 400, field: value})["choices"][0]
    assert fits(got["text"], want) and got["finish_reason"] == "stop", got
    got = s.json("/v1/chat/completions", CHAT | {field: value})["choices"][0]
    assert fits(got["message"]["content"], want) and got["finish_reason"] == "stop", got


def test_formats(s):
    schema = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": ANIMAL}}
    flat = {"type": "json_schema", "name": "animal", "schema": ANIMAL}
    text = s.json("/v1/chat/completions", CHAT | {"response_format": schema})["choices"][0]["message"]["content"]
    assert is_animal(text)
    reply = s.json("/v1/responses", {"input": "Well?", "max_output_tokens": 400, "text": {"format": flat}})
    assert is_animal(reply["output"][-1]["content"][0]["text"])
    reply = s.json("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 400, "output_config": {"format": flat}})
    assert is_animal(reply["content"][-1]["text"])
    for _ in range(3):
        text = s.json("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}, "max_tokens": 300})["choices"][0]
        assert text["finish_reason"] == "length" or isinstance(json.loads(text["message"]["content"]), dict)


def test_parse_with_pydantic(s):
    class Step(pydantic.BaseModel):
        explanation: str = pydantic.Field(max_length=12)
        output: int

    class Answer(pydantic.BaseModel):
        steps: list[Step] = pydantic.Field(max_length=2)
        kind: str = pydantic.Field(pattern="^(a|b)$")
        best: Step | None

    client = openai.OpenAI(base_url=f"{s.url}/v1", api_key="x", max_retries=0)
    done = client.chat.completions.parse(model="model", messages=CHAT["messages"], max_tokens=400, response_format=Answer)
    assert isinstance(done.choices[0].message.parsed, Answer)


def test_the_same_grammar_twice_is_one(s):
    """guidance sends one grammar under two names."""
    text = 'root ::= "yes" | "no"'
    body = {"prompt": "Once", "max_tokens": 4, "guided_grammar": text, "structured_outputs": {"grammar": text}}
    assert s.json("/v1/completions", body)["choices"][0]["text"] in ("yes", "no")
    other = s.json("/v1/completions", body | {"guided_grammar": 'root ::= "maybe"'}, 400)
    assert "one grammar at most" in other["message"]


def test_refusals(s):
    for params, word in [
        ({"regex": "(?=a)b"}, "looking around"), ({"regex": "a", "ebnf": "root ::= \"a\""}, "one grammar at most"),
        ({"json_schema": "{"}, "schema"), ({"json_schema": {"not": {}}}, '"not"'), ({"ebnf": "root ::= x"}, "x is not defined"),
        ({"structured_outputs": {"lark": "x"}}, "lark"), ({"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern"),
        ({"regex": "\u20ac{1,5000000}"}, "count")]:  # fmt: skip
        message = s.json("/generate", {"text": "Once", "sampling_params": params}, 400)["message"]
        assert word in message, message
    message = s.json("/v1/chat/completions", CHAT | {"response_format": {"type": "xml"}}, 400)["message"]
    assert "xml" in message
    message = s.json("/v1/chat/completions", CHAT | {"tool_choice": "required"}, 400)["message"]
    assert "no tools" in message
    message = s.json("/v1/chat/completions", CHAT | {"tool_choice": "required", "tools": TOOLS}, 400)["message"]
    assert "tool-call-parser" in message  # the template of this model shows no form of calls
    many = {"anyOf": [{"properties": {f"k{i % 7}{j}": {"type": "integer"} for j in range(8)}} for i in range(300)]}
    message = s.json("/generate", {"text": "Once", "sampling_params": {"json_schema": many}}, 422)["message"]
    assert "too many ways" in message  # the vocabulary, which has all bytes, is not to blame


def test_the_number_is_unmasked(s):
    """The log-probability is that of the model, not of what the grammar left of it."""
    params = {"max_new_tokens": 12, "regex": "[ab]{12}", "sampling_seed": 3}
    got = s.json("/generate", NATIVE | {"sampling_params": params, "return_logprob": True})
    numbers = [x[0] for x in got["meta_info"]["output_token_logprobs"]]
    assert len(numbers) == 12 and max(numbers) < -2  # one of 260, about; of two it would be -0.7
    ids = [x[1] for x in got["meta_info"]["output_token_logprobs"]]
    prompt = s.json("/tokenize", {"prompt": "Once"})["tokens"]
    scored = s.json("/generate", {"input_ids": prompt + ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True,
                                  "logprob_start_len": len(prompt)})  # fmt: skip
    assert [x[0] for x in scored["meta_info"]["input_token_logprobs"]][-11:] == numbers[1:]


def test_the_same_alone_and_among_others(model):
    """What a seed draws under a grammar does not depend on who runs beside it, on preemption, or on the overlap of steps."""
    bodies = [{"text": "Once", "sampling_params": {"max_new_tokens": 150, "sampling_seed": i,
                                                   **({"regex": "([a-z]{1,9} ){5,20}!"} if i % 3 else {"json_schema": ANIMAL}),
                                                   "min_new_tokens": 5 * (i % 2)}} for i in range(12)]  # fmt: skip
    def ask(s, body):
        got = s.json("/generate", body)
        return got["output_ids"], got["meta_info"]["finish_reason"]

    with server("--max-running-requests", 1, "--disable-overlap-schedule", model=model) as s:
        alone = [ask(s, body) for body in bodies]
    with server("--max-running-requests", 8, "--max-total-tokens", 512, "--debug-checks", model=model) as s, \
            concurrent.futures.ThreadPoolExecutor(12) as pool:  # fmt: skip
        assert list(pool.map(lambda body: ask(s, body), bodies)) == alone


def test_a_broken_reply_goes_on(s):
    """Where an output is in its grammar follows from its tokens, those that an earlier reply brought too."""
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 90, "regex": "([a-z]{2,9} ){6}!", "sampling_seed": 5}}
    whole = s.json("/generate", body)
    assert re.fullmatch("([a-z]{2,9} ){6}!", whole["text"])
    for n in (1, 9, len(whole["output_ids"]) - 1):
        part = whole | {"output_ids": whole["output_ids"][:n],
                        "meta_info": whole["meta_info"] | {"token_versions": [["default", n]]}}  # fmt: skip
        again = s.json("/generate", body | {"resume": part})
        assert (again["output_ids"], again["text"]) == (whole["output_ids"], whole["text"])


def test_ends(s):
    """EOS comes where the grammar may end, and there only, whatever else the request says of the end."""
    ends = s.json("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 50, "regex": "a{3}", "ignore_eos": True}})
    assert ends["text"] == "aaa" and ends["meta_info"]["finish_reason"]["type"] == "stop"
    ends = s.json("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 50, "regex": "a{3}", "min_new_tokens": 20}})
    assert ends["text"] == "aaa"
    goes_on = s.json("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 50, "regex": "a+", "ignore_eos": True}})
    assert goes_on["text"] == 50 * "a" and goes_on["meta_info"]["finish_reason"]["type"] == "length"
    a, b = s.json("/tokenize", {"prompt": "ab", "add_special_tokens": False})["tokens"]
    only = {"max_new_tokens": 50, "regex": "[abc]{9}", "allowed_token_ids": [a, b]}
    assert re.fullmatch("[ab]{9}", s.json("/generate", {"text": "Once", "sampling_params": only})["text"])
    none = {"max_new_tokens": 50, "regex": "[cd]", "allowed_token_ids": [a, b]}
    assert "allowed_token_ids" in s.json("/generate", {"text": "Once", "sampling_params": none}, 422)["message"]
    events = s.events("/generate", {"text": "Once", "stream": True, "sampling_params": none})
    assert json.loads(events[-2])["error"]["code"] == 422 if "error" in json.loads(events[-2]) else "allowed" in events[-2]


# ---- calls of tools --------------------------------------------------------------------------------------------------

SHORT = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["city"]}}}, TOOLS[1]]  # fmt: skip


@pytest.fixture(scope="module")
def calling_model(tmp_path_factory):
    sizes = {"max-position-embeddings": 2048}
    return make_model(tmp_path_factory.mktemp("calls"), ["<tool_call>", "</tool_call>", "<think>", "</think>"], TEMPLATE, **sizes)


@pytest.fixture(scope="module")
def caller(calling_model):
    with server("--random-seed", 2, "--reasoning-parser", "none", model=calling_model[0]) as running:
        yield running


def arguments_fit(call):
    (tool,) = [t["function"] for t in SHORT if t["function"]["name"] == call["name"]]
    jsonschema.validate(json.loads(call["arguments"]), tool["parameters"])
    return True


def test_required_and_named_calls(caller):
    for n in range(4):
        body = CHAT | {"tools": SHORT, "tool_choice": "required", "seed": n, "parallel_tool_calls": n % 2 == 0}
        choice = caller.json("/v1/chat/completions", body)["choices"][0]
        if choice["finish_reason"] == "length":
            continue  # calls without end
        assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"], choice
        calls = choice["message"]["tool_calls"]
        assert all(arguments_fit(c["function"]) for c in calls) and (n % 2 == 0 or len(calls) == 1)
    named = {"tool_choice": {"type": "function", "function": {"name": "get"}}, "tools": SHORT}
    (call,) = caller.json("/v1/chat/completions", CHAT | named)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get" and arguments_fit(call["function"])
    message = caller.json("/v1/chat/completions", CHAT | {"tools": SHORT, "tool_choice": {"type": "function", "function": {"name": "x"}}}, 400)
    assert "x, which is not among the tools" in message["message"]


ALL_KINDS = {"$defs": {"Unit": {"enum": ["C", "F"], "type": "string", "title": "Unit"},
                       "Place": {"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["x"], "additionalProperties": False}},
             "type": "object", "additionalProperties": False, "required": ["unit", "place", "n", "maybe", "some"],
             "properties": {"unit": {"$ref": "#/$defs/Unit"}, "place": {"$ref": "#/$defs/Place"}, "n": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
                            "maybe": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}, "some": {"type": ["boolean", "null"]}}}  # fmt: skip


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "glm45"])
def test_strict_tools(calling_model, parser):
    """strict: true, and the model may call or not: what it calls fits the schema, in forms of tags too; forced calls do."""
    model, ids = calling_model
    tools = [{"type": "function", "function": {"name": "get", "strict": True, "parameters": ALL_KINDS}}, TOOLS[1]]
    free = CHAT | {"tools": tools, "logit_bias": {str(ids["<tool_call>"]): 5}}
    flat = [{"type": "function", **t["function"]} for t in tools]
    anthropic = [{"name": t["name"], "input_schema": t["parameters"], "strict": t.get("strict", False)} for t in flat]
    n_calls = n_texts = 0
    with server("--random-seed", 3, "--reasoning-parser", "none", "--tool-call-parser", parser, model=model) as s:
        for n in range(12):
            more = {"tool_choice": "required"} if n % 4 == 3 else {}
            choice = s.json("/v1/chat/completions", free | {"seed": n} | more)["choices"][0]
            content = choice["message"]["content"] or ""
            calls = choice["message"].get("tool_calls") or []
            n_texts += bool(content)
            if choice["finish_reason"] != "length":
                assert "<tool_call>" not in content, choice
            for call in calls:
                assert call["function"]["name"] in ("get", "now")
                if call["function"]["name"] == "get":
                    jsonschema.validate(json.loads(call["function"]["arguments"]), ALL_KINDS)
                    n_calls += 1
        assert n_calls > 3 and n_texts > 3
        loose = [{"type": "function", "function": t["function"] | {"strict": False}} for t in tools]
        assert any("<tool_call>" in s.json("/v1/chat/completions", free | {"tools": loose, "seed": n})["choices"][0]["message"]["content"] for n in range(4))
        for n in range(6):
            reply = s.json("/v1/responses", {"input": "Well?", "tools": flat, "max_output_tokens": 400, "seed": n, "logit_bias": free["logit_bias"]})
            if reply["status"] == "completed":
                assert all("<tool_call>" not in c["text"] for item in reply["output"] if item["type"] == "message" for c in item["content"])
            reply = s.json("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 400, "tools": anthropic, "seed": n, "logit_bias": free["logit_bias"]})
            if reply["stop_reason"] in ("tool_use", "end_turn"):
                assert all("<tool_call>" not in block["text"] for block in reply["content"] if block["type"] == "text")
        odd = tools[:1] + [{"type": "function", "function": {"name": "odd", "strict": True, "parameters": {"type": "object", "if": {}}}}]
        assert "strict: the parameters of odd" in s.json("/v1/chat/completions", free | {"tools": odd}, 400)["message"]
        for schema, says in (({"properties": ["a"]}, "properties must be an object"), ({"properties": {}, "required": ["a", 5]}, "a list of names")):
            named = {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}], "tool_choice": "required", "max_tokens": 2}
            assert says in s.json("/v1/chat/completions", CHAT | named, 400)["message"]
        many = [{"type": "function", "function": {"name": f"f{i}", "strict": True}} for i in range(600)]
        for more in ({}, {"tool_choice": "required"}):  # was a 500
            message = s.json("/v1/chat/completions", {"input_ids": [5], "tools": many} | more, 400)["message"]
            assert "at most 512 tools" in message
        defs = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(25)} | {"a25": {"type": "string"}}
        wide = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"properties": {"p": {"$ref": "#/$defs/a0"}}, "$defs": defs}}}]
        assert "too large" in s.json("/v1/chat/completions", {"input_ids": [5], "tools": wide}, 400)["message"]
        assert "strict" in s.json("/v1/chat/completions/render", free, 400)["message"]
        s.json("/v1/chat/completions", free | {"response_format": {"type": "json_object"}})


def test_strict_tools_of_a_form_without_marker(calling_model):
    body = CHAT | {"tools": [{"type": "function", "function": TOOLS[1]["function"] | {"strict": True}}], "max_tokens": 3}
    for more in ([], ["--strict-fields"]):
        with server("--tool-call-parser", "llama3", *more, model=calling_model[0]) as s:
            reply = s.json("/v1/chat/completions", body, 400 if more else 200)
            assert "strict has no effect" in (reply["message"] if more else s.log())
    body = CHAT | {"tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["x"]}}}}
    for more in ([], ["--strict-fields"]):  # nor can Python's calls be a part of a grammar
        with server("--tool-call-parser", "pythonic", "--reasoning-parser", "none", *more, model=calling_model[0]) as s:
            reply = s.json("/v1/chat/completions", body, 400 if more else 200)
            assert "tools has no effect" in (reply["message"] if more else s.log())
            assert more or reply["choices"][0]["message"]["content"] == '"x"'


def test_forced_calls_of_the_other_endpoints(caller):
    flat = [{"type": "function", **t["function"]} for t in SHORT]
    reply = caller.json("/v1/responses", {"input": "Well?", "tools": flat, "tool_choice": {"type": "function", "name": "get"},
                                          "max_output_tokens": 400})  # fmt: skip
    (call,) = [item for item in reply["output"] if item["type"] == "function_call"]
    assert call["name"] == "get" and arguments_fit(call)
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in SHORT]
    reply = caller.json("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 400, "tools": tools,
                                         "tool_choice": {"type": "tool", "name": "now"}})  # fmt: skip
    (call,) = [block for block in reply["content"] if block["type"] == "tool_use"]
    assert call["name"] == "now" and call["input"] == {} and reply["stop_reason"] == "tool_use"


def test_reasoning_comes_first(tmp_path):
    """The grammar begins behind the reasoning, which is free; the template opens it."""
    template = TEMPLATE.replace("[assistant] ", "[assistant] <think>\n")
    folder, ids = make_model(tmp_path, ["<think>", "</think>"], template, **{"max-position-embeddings": 2048})
    body = CHAT | {"regex": "[ab]{5}", "logit_bias": {str(ids["</think>"]): 3}, "seed": 4}
    with server(model=folder) as s:
        (choice,) = s.json("/v1/chat/completions", body)["choices"]
        assert re.fullmatch("[ab]{5}", choice["message"]["content"]), choice
        whole = s.json("/v1/chat/completions", body | {"separate_reasoning": False})["choices"][0]["message"]["content"]
        assert re.fullmatch(r"(?s).*</think>\n{0,2}[ab]{5}", whole)
        native = s.json("/generate", {"text": "Once", "sampling_params": {"regex": "[ab]{5}", "max_new_tokens": 20}})
        assert re.fullmatch("[ab]{5}", native["text"])
