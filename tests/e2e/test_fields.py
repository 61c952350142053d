"""Fields of generating requests that clime-server does not have, or nobody has: never ignored in silence."""

import json

import pytest
from programs import chat_model, needs_stories, server


@pytest.fixture(scope="module")
def s(chat_server):
    return chat_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("fields"))


@pytest.fixture(scope="module")
def strict(folder):
    with server("--strict-fields", model=folder) as running:
        yield running


CHAT = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2}
TEXT = {"prompt": "Once", "max_tokens": 2}
NATIVE = {"text": "Once", "sampling_params": {"max_new_tokens": 2}}

EVERYWHERE = (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT),
              ("/v1/responses", {"input": "Once", "max_output_tokens": 2}), ("/v1/messages", CHAT))  # fmt: skip

UNSUPPORTED = {
    "guided_whitespace_pattern": " *",
    "use_beam_search": True, "length_penalty": 2.0, "custom_params": {"a": 1}, "logits_processors": ["x"],
    "thinking_token_budget": 5, "thinking_budget": 5, "max_thinking_tokens": 5, "lora_path": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_known_field_without_support_is_refused_by_name(s, name):
    for path, body in EVERYWHERE:
        message = s.json(path, body | {name: UNSUPPORTED[name]}, 400)["message"]
        assert name in message and "not supported" in message


def test_what_generate_has_is_not_ignored_elsewhere(s):
    """Its client would train on a reply without the numbers or choices that it asked for."""
    tokens = ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 2}})
    asks = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "token_ids_logprob": [5], "return_routed_experts": True,
            "return_routing_hashes": True, "resume": {"output_ids": []}}  # fmt: skip
    for path, body in (*EVERYWHERE, tokens):
        for name, value in asks.items() if path == tokens[0] else (asks | {"sampling_params": {"temperature": 0}}).items():
            message = s.json(path, body | {name: value}, 400)["message"]
            assert name in message and "not supported" in message
        s.json(path, body | {"return_logprob": False, "logprob_start_len": -1, "top_logprobs_num": 0})


def test_the_newer_endpoints_refuse_what_the_older_do(s):
    """And what belongs to another: its client would take free text for JSON, or a plain model for its adapter."""
    for path, body in EVERYWHERE[2:]:
        for name, value in (("input_embeds", [[1.0]]), ("best_of", 2), ("echo", True), ("logprob_token_ids", [5]), ("audio", {"voice": "x"}), ("return_token_ids", True),
                            ("response_format", {"type": "json_object"}), ("response_format", {"type": "text"})):  # fmt: skip
            message = s.json(path, body | {name: value}, 400)["message"]
            assert name in message and "not supported" in message
    message = s.json("/inference/v1/generate", {"token_ids": [1], "lora_path": "x"}, 400)["message"]
    assert "lora_path is not supported" in message


@pytest.mark.parametrize(
    "where, name, value",
    [
        ("sampling_params", "custom_params", {"a": 1}), ("sampling_params", "logprob_token_ids", [5]),
        ("sampling_params", "use_beam_search", True), ("sampling_params", "prompt_logprobs", 0),
        ("top", "return_hidden_states", True), ("top", "return_hidden_states", "last"), ("top", "lora_path", "a"),
        ("top", "image_data", "a"), ("top", "return_entropy", True),
        ("top", "session_params", {"id": "a"}), ("top", "custom_logit_processor", "a"),
        ("top", "return_indexer_topk", True), ("top", "max_thinking_tokens", 7)])  # fmt: skip
def test_generate_refuses_by_name(s, where, name, value):
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 2}}
    (body["sampling_params"] if where == "sampling_params" else body)[name] = value
    message = s.json("/generate", body, 400)["message"]
    assert name in message and "not supported" in message


def test_the_neutral_value_of_a_field_without_support_is_fine(s):
    neutral = {name: None for name in UNSUPPORTED} | {
        "use_beam_search": False, "length_penalty": 1.0, "bad_words": [], "structured_outputs": {}, "lora_path": "",
        "spaces_between_special_tokens": True, "detokenize": True, "best_of": 1, "user": "me", "metadata": {"a": 1},
        "store": False, "service_tier": "auto", "priority": 0, "parallel_tool_calls": True}  # fmt: skip
    for path, body in EVERYWHERE:
        s.json(path, body | neutral)
    s.json("/generate", NATIVE | {"image_data": None, "return_hidden_states": False, "lora_path": [None],
                                  "log_metrics": True, "priority": None, "background": False})  # fmt: skip


TYPING_ERRORS = [
    ("/generate", {"sampling_params": {"max_new_token": 3}}, "max_new_token", "max_new_tokens"),
    ("/generate", {"return_logprobs": True}, "return_logprobs", "return_logprob"),
    ("/generate", {"temperature": 0}, "temperature", "sampling_params"),
    ("/v1/completions", {"max_token": 3}, "max_token", "max_tokens"),
    ("/v1/chat/completions", {"temprature": 0}, "temprature", "temperature"),
    ("/v1/chat/completions", {"stream_options": {"include_usages": True}}, "include_usages", "include_usage"),
]


def base(path):
    return {"/generate": {"text": "Once"}, "/v1/completions": TEXT, "/v1/chat/completions": CHAT}[path]


@pytest.mark.parametrize("path, more, name, near", TYPING_ERRORS)
def test_strict_fields_names_the_nearest(strict, path, more, name, near):
    message = strict.json(path, base(path) | more, 400)["message"]
    assert f'"{name}"' in message and near in message
    for p, body in (("/generate", NATIVE), ("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        strict.json(p, body)


TEXT_ENDPOINTS = [("/tokenize", {"prompt": "Once"}, "add_special_token", "add_special_tokens"),
                  ("/detokenize", {"tokens": [403]}, "skip_special_token", "skip_special_tokens"),
                  ("/apply_template", {"messages": CHAT["messages"]}, "add_generation_promt", "add_generation_prompt")]  # fmt: skip


@pytest.mark.parametrize("path, body, name, near", TEXT_ENDPOINTS)
def test_endpoints_without_generation_too(strict, s, path, body, name, near):
    message = strict.json(path, body | {name: False}, 400)["message"]
    assert f'"{name}"' in message and near in message
    assert s.json(path, body | {name: False}) == s.json(path, body)
    assert "chat_template is not supported" in s.json(path, body | {"chat_template": "x"}, 400)["message"]
    assert s.json(path, body | {"chat_template": None, "model": None}) == s.json(path, body)
    s.json(path, body | {"model": "gpt-9"}, 404)


CONTROL = [("/pause_generation", {}, "mod", "in_place", "mode"), ("/continue_generation", {}, "mode", "abort", ""), ("/abort_request", {}, "abort_al", True, "abort_all"),
           ("/abort_requests", {}, "request_id", ["a"], "request_ids"), ("/release_memory_occupation", {}, "tag", ["kv_cache"], "tags"),
           ("/update_weight_version", {"new_version": "2"}, "abort_all", True, "abort_all_requests"),
           ("/update_weights_from_tensor", {}, "weights_version", "2", "weight_version"),
           ("/update_weights_from_distributed", {}, "weights_version", "2", "weight_version"),
           ("/update_weights_from_disk", {"model_path": "/"}, "weights_version", "2", "weight_version"),
           ("/init_weights_update_group", {}, "checksum", "0", ""), ("/destroy_weights_update_group", {}, "timeout", 1, ""),
           ("/update_weights_from_distributed", {}, "world_size", 2, ""), ("/update_weights_from_ipc", {}, "weights_version", "2", "weight_version"),
           ("/pull_weights", {}, "stall_timeouts", 1, "stall_timeout"), ("/init_weight_transfer_engine", {}, "weight_version", "2", ""),
           ("/start_weight_update", {}, "weight_version", "2", ""), ("/update_weights", {}, "weights_version", "2", "weight_version"),
           ("/finish_weight_update", {}, "timeout", 1, "")]  # fmt: skip

INNER = [("/pull_weights", {"packets": [{"version": 1, "id": "0" * 64, "bases": 0}]}, "bases", "base"),
         ("/init_weight_transfer_engine", {"init_info": {"world_sizes": 2}}, "world_sizes", "world_size"),
         ("/update_weights", {"update_info": {"dtypes": []}}, "dtypes", "")]  # fmt: skip


@pytest.mark.parametrize("path, body, name, near", INNER)
def test_objects_inside_too(strict, path, body, name, near):
    message = strict.json(path, body, 400)["message"]
    assert f'"{name}"' in message and near in message


@pytest.mark.parametrize("path, body, name, value, near", CONTROL)
def test_control_too(strict, s, path, body, name, value, near):
    """A mistyped mode of a pause is the default, which ends every request; a mistyped version keeps the old one's name."""
    message = strict.json(path, body | {name: value}, 400)["message"]
    assert f'"{name}"' in message and near in message
    assert strict.json("/abort_request", {}) == {"success": True, "num_aborted": 0} and not strict.get("/is_paused").json()["is_paused"]
    if path == "/update_weights_from_disk":
        for more in ({"load_format": "dummy"}, {"manifest": {"a": 1}}):
            assert "not supported" in s.json(path, body | more, 400)["message"]


def test_unknown_fields_are_warned_about_once_and_counted(folder):
    with server(model=folder) as s:
        for _ in range(3):
            for path, more, _, _ in TYPING_ERRORS:
                s.json(path, base(path) | more)
        for i in range(300):  # a client that makes names up does not fill the log
            s.json("/v1/completions", TEXT | {f"made_up_{i}": 1, "max_tokens": 0})
        log, metrics = s.log(), s.get("/metrics").text
    for _, _, name, near in TYPING_ERRORS:
        (line,) = [x for x in log.splitlines() if f': "{name}" ' in x]
        assert near in line
    assert log.count("made_up_") < 100
    (count,) = [x for x in metrics.splitlines() if x.startswith("clime:unknown_fields_total")]
    assert float(count.split()[-1]) == 3 * len(TYPING_ERRORS) + 300


# ---- names of models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_only_the_served_names_are_served(folder, path, body):
    with server("--served-model-name", "tales", "stories", model=folder) as s:
        for name in ("tales", "stories"):
            assert s.json(path, body | {"model": name})["model"] == name
            assert s.get(f"/v1/models/{name}").json()["id"] == name
        assert s.json(path, body)["model"] == "tales"
        assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["tales", "stories"]
        for name in ("gpt-9", "tales2"):
            assert name in s.json(path, body | {"model": name}, 404)["message"]
        s.json(path, body | {"model": 5}, 400)


def test_any_name_is_served(folder):
    """Clients make names up: huggingface_hub says dummy, TGI's clients tgi, agents have helpers with names of their own."""
    with server("--served-model-name", "tales", "*", model=folder) as s:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            assert s.json(path, body | {"model": "dummy"})["model"] == "tales"
        assert s.json("/tokenize", {"prompt": "Once", "model": "tgi"})["count"] > 0
        assert s.get("/v1/models/dummy").json()["id"] == "tales"
        assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["tales"]
    with server("--served-model-name", "*", model=folder) as s:
        assert [m["id"] for m in s.get("/v1/models").json()["data"]] == [folder.name]
        assert s.json("/v1/completions", TEXT | {"model": "dummy"})["model"] == folder.name


def test_the_404_says_how_any_name_is_served(s):
    for reply in (s.post("/v1/completions", TEXT | {"model": "dummy"}), s.post("/tokenize", {"prompt": "a", "model": "dummy"}), s.get("/v1/models/dummy")):
        assert reply.status_code == 404 and "--served-model-name '*'" in reply.text


def test_a_duplicate_model_cannot_hide_a_wrong_one(s):
    name = s.get("/v1/models").json()["data"][0]["id"]
    for models in (["gpt-9", name], [name, "gpt-9"]):
        members = ", ".join(f'"model": "{m}"' for m in models)
        reply = s.client.post("/v1/completions", content=f'{{{members}, "prompt": "Once"}}')
        assert reply.status_code == 404, reply.text


# ---- fields that are there -------------------------------------------------------------------------------------------


def test_truncate_prompt_tokens_keeps_the_end(s):
    ids = s.json("/tokenize", {"prompt": "Once upon a time there was"})["tokens"]
    text = {"prompt": "Once upon a time there was", "temperature": 0, "max_tokens": 4, "return_token_ids": True}
    (choice,) = s.json("/v1/completions", text | {"truncate_prompt_tokens": 3})["choices"]
    assert choice["prompt_token_ids"] == ids[-3:]
    same = s.json("/v1/completions", text | {"prompt": ids[-3:]})["choices"][0]
    assert choice["token_ids"] == same["token_ids"]
    (choice,) = s.json("/v1/completions", text | {"truncate_prompt_tokens": 300})["choices"]
    assert choice["prompt_token_ids"] == ids
    long = [1] + [403] * 2000
    s.json("/v1/completions", text | {"prompt": long}, 400)
    (choice,) = s.json("/v1/completions", text | {"prompt": long, "truncate_prompt_tokens": -1})["choices"]
    assert choice["prompt_token_ids"] == long[-(512 - 4) :]
    s.json("/v1/completions", text | {"truncate_prompt_tokens": -2}, 400)
    s.json("/v1/completions", text | {"truncate_prompt_tokens": 0}, 400)


def test_add_special_tokens(s):
    body = {"prompt": "Once", "max_tokens": 1, "return_token_ids": True}
    with_bos = s.json("/v1/completions", body)["choices"][0]["prompt_token_ids"]
    without = s.json("/v1/completions", body | {"add_special_tokens": False})["choices"][0]["prompt_token_ids"]
    assert with_bos == [1] + without
    plain = s.json("/v1/chat/completions", CHAT | {"return_token_ids": True})["prompt_token_ids"]
    added = s.json("/v1/chat/completions", CHAT | {"return_token_ids": True, "add_special_tokens": True})
    assert added["prompt_token_ids"] == [1] + plain


def test_add_generation_prompt(s):
    ids = [s.json("/v1/chat/completions", CHAT | {"return_token_ids": True, "add_generation_prompt": add})
           ["prompt_token_ids"] for add in (True, False)]  # fmt: skip
    assert len(ids[0]) > len(ids[1]) and ids[0][: len(ids[1])] == ids[1]


def test_enable_thinking(folder, tmp_path):
    """Beside the messages, where other companies' chats have it, it reaches the template as from chat_template_kwargs."""
    (tmp_path / "chat.jinja").write_text("{{ enable_thinking }} {{ thinking }} {{ messages[0].content }}")
    with server("--chat-template", tmp_path / "chat.jinja", model=folder) as s:

        def shown(more):
            text = s.json("/apply_template", {"messages": CHAT["messages"]} | more)["text"]
            ids = s.json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
            assert s.json("/tokenize", {"messages": CHAT["messages"]} | more)["tokens"] == ids
            assert s.json("/v1/chat/completions/render", CHAT | more)["token_ids"] == ids
            for path, body in (("/v1/messages/count_tokens", CHAT), ("/v1/responses/input_tokens", {"input": "Once"})):
                assert s.json(path, body | more)["input_tokens"] == len(ids)
            return text

        assert shown({}) == shown({"enable_thinking": None}) == "  Once"
        assert shown({"enable_thinking": False}) == "False False Once" and shown({"enable_thinking": True}) == "True True Once"
        assert shown({"enable_thinking": False, "chat_template_kwargs": {"thinking": 3}}) == "False 3 Once"
        more = {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"other": 1}}  # one does not hide the other
        n = len(s.json("/tokenize", {"messages": CHAT["messages"], "enable_thinking": False})["tokens"])
        assert s.json("/v1/messages/count_tokens", CHAT | more)["input_tokens"] == n
        for path, body in EVERYWHERE[:1] + EVERYWHERE[2:]:
            assert "enable_thinking" in s.json(path, body | {"enable_thinking": "no"}, 400)["message"]


@needs_stories
def test_include_stop_str_in_output(s):
    body = {"prompt": "Once upon", "max_tokens": 40, "temperature": 0, "stop": ["time"]}
    cut = s.json("/v1/completions", body)["choices"][0]["text"]
    kept = s.json("/v1/completions", body | {"include_stop_str_in_output": True})["choices"][0]["text"]
    assert kept == cut + "time"


@needs_stories
def test_text_offset(s):
    """Characters of the choice's own text before each token: whole, streamed, and with the prompt in front."""
    body = {"prompt": "Once upon a time", "max_tokens": 30, "logprobs": 1, "temperature": 0}
    for more in ({}, {"echo": True}, {"echo": True, "prompt": [1, 403, 407]}, {"stop": ["little"]}):
        (choice,) = s.json("/v1/completions", body | more)["choices"]
        at, tokens, text = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], choice["text"]
        assert at[0] == 0 and at == sorted(at) and len(at) == len(tokens) and at[-1] <= len(text)
        skipped = 1 if "echo" in more else 0  # <s>, and SentencePiece's first word has no space before it
        for i, token in list(enumerate(tokens))[skipped:]:
            assert text[at[i] :].startswith((token, token.lstrip() if i == skipped else token)) or "stop" in more
        pieces = s.events("/v1/completions", body | more | {"stream": True})[:-1]
        assert sum((json.loads(p)["choices"][0]["logprobs"]["text_offset"] for p in pieces), []) == at


# ---- seeds and ids ---------------------------------------------------------------------------------------------------


def test_seeds_over_53_bits_come_as_text_too(s):
    for seed in (2**64 - 1, 2**53 + 1, 7):
        body = {"input_ids": [1, 403], "sampling_params": {"max_new_tokens": 20, "sampling_seed": seed}}
        number = s.json("/generate", body)
        body["sampling_params"]["sampling_seed"] = str(seed)
        text = s.json("/generate", body)
        assert number["output_ids"] == text["output_ids"]
        for reply in (number, text):
            assert reply["meta_info"]["seed"] == seed and reply["meta_info"]["seed_text"] == str(seed)
        reply = s.json("/v1/completions", {"prompt": [1, 403], "max_tokens": 20, "seed": str(seed)})
        assert reply["choices"][0]["seed"] == seed and reply["choices"][0]["seed_text"] == str(seed)
    group = s.json("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "n": 4, "sampling_seed": 3}})
    for r in group:
        assert r["meta_info"]["seed_text"] == str(r["meta_info"]["seed"])
    for wrong in ("", "5x", "1.5", str(2**64), "0x10", " 5"):
        s.json("/generate", {"input_ids": [1], "sampling_params": {"sampling_seed": wrong}}, 400)


def test_ids_have_openais_prefix(s):
    assert s.json("/v1/chat/completions", CHAT)["id"].startswith("chatcmpl-")
    assert s.json("/v1/completions", TEXT)["id"].startswith("cmpl-")
    assert s.json("/v1/completions", TEXT | {"rid": "mine"})["id"] == "mine"
    assert "-" not in s.json("/generate", NATIVE)["meta_info"]["id"]
