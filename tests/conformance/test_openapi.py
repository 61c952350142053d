"""openapi/*.yaml against the route tables (--print-routes) and live replies."""

import json
import pathlib
import subprocess
import sys

import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from programs import BUILD, LIMIT, ROOT, chat_model, program, server  # noqa: E402

SPECS = {p.stem: p for p in sorted((ROOT / "openapi").glob("*.yaml"))}
PROGRAM = {"server": ["clime-server"], "router": ["clime-router"], "trainer": ["clime-train", "rl"], "page": ["clime-train", "page"]}
METHODS = {"get", "post", "put", "delete", "patch"}


def load(name):
    return yaml.safe_load(SPECS[name].read_text())


@pytest.mark.parametrize("name", sorted(set(SPECS) & set(PROGRAM)))
def test_routes_are_the_specs(name):
    first, *rest = PROGRAM[name]
    out = subprocess.run([BUILD / first, *rest, "--print-routes"], capture_output=True, check=True, timeout=LIMIT).stdout
    real = {(m.lower(), r["path"]): r["auth"] for r in json.loads(out) for m in r["methods"]}
    said = {}
    for path, item in load(name)["paths"].items():
        for method, operation in item.items():
            if method not in METHODS:
                continue
            keys = {k for need in operation.get("security", []) for k in need}
            said[method, path] = "admin" if "adminKey" in keys else "user" if keys else "open"
            assert operation.get("description") or operation.get("summary"), (method, path)
            assert operation["responses"], (method, path)
    assert said == real


def resolve(spec, node):
    while "$ref" in node:
        at = spec
        for part in node["$ref"].removeprefix("#/").split("/"):
            at = at[part]
        node = at
    return node


def check(spec, schema, value, where="reply"):
    """The part of JSON Schema that our specs use: type, const, enum, required, properties, items."""
    schema = resolve(spec, schema)
    if "const" in schema:
        assert value == schema["const"], where
    if "enum" in schema:
        assert value in schema["enum"], where
    kinds = schema.get("type")
    if kinds:
        names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", type(None): "null"}
        kind = names.get(type(value), "number")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        assert kind in kinds or (kind == "integer" and "number" in kinds), (where, kind, kinds)
    if isinstance(value, dict):
        for key in schema.get("required", []):
            assert key in value, f"{where} lacks {key}"
        for key, sub in schema.get("properties", {}).items():
            if key in value:
                check(spec, sub, value[key], f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            check(spec, schema["items"], item, f"{where}[{i}]")


def check_reply(spec, path, method, reply):
    answers = spec["paths"][path][method]["responses"]
    assert str(reply.status_code) in answers, (path, reply.status_code, reply.text)
    answer = resolve(spec, answers[str(reply.status_code)])
    schema = answer.get("content", {}).get("application/json", {}).get("schema")
    if schema:
        check(spec, schema, reply.json(), path)


def test_router_replies():
    spec = load("router")
    with program("clime-router") as r:
        assert r.get("/openapi.json").json() == spec
        check_reply(spec, "/health", "get", r.get("/health"))
        check_reply(spec, "/metrics", "get", r.get("/metrics"))
        check_reply(spec, "/generate", "post", r.post("/generate", {"text": "a"}))  # no worker: 503
        check_reply(spec, "/abort_request", "post", r.post("/abort_request"))
        check_reply(spec, "/workers", "post", r.post("/workers", {"url": "http://127.0.0.1:9"}))
        check_reply(spec, "/workers", "post", r.post("/workers", {"url": "nonsense"}))
        check_reply(spec, "/workers", "get", r.get("/workers"))
        check_reply(spec, "/workers/{id}", "get", r.get("/workers/1"))
        check_reply(spec, "/workers/{id}", "get", r.get("/workers/77"))
        check_reply(spec, "/abort_request", "post", r.post("/abort_request"))  # unreachable: 502
        check_reply(spec, "/list_workers", "get", r.get("/list_workers"))
        check_reply(spec, "/remove_worker", "post", r.post("/remove_worker", params={"url": "http://127.0.0.1:9"}))
        check_reply(spec, "/add_worker", "post", r.post("/add_worker", params={"url": "http://127.0.0.1:9"}))
        check_reply(spec, "/workers/{id}", "delete", r.client.delete("/workers/2"))


def test_server_replies(tmp_path):
    spec = load("server")
    chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 2}
    one = {"input_ids": [1], "sampling_params": {"max_new_tokens": 2}, "return_logprob": True}
    with server(model=chat_model(tmp_path)) as s:
        for path, body in [
            ("/generate", one),
            ("/generate", one | {"sampling_params": {"n": 2, "max_new_tokens": 2}}),
            ("/generate", {}),
            ("/v1/completions", {"prompt": "Once", "max_tokens": 2, "logprobs": 1}),
            ("/v1/completions", {}),
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", chat | {"return_token_ids": True, "logprobs": True}),
            ("/v1/chat/completions", {}),
            ("/v1/chat/completions/render", chat),
            ("/v1/chat/completions/render", {}),
            ("/v1/completions/render", {"prompt": ["Once", [1]]}),
            ("/v1/completions/render", {}),
            ("/v1/responses", {"input": "Once", "max_output_tokens": 2}),
            ("/v1/responses", {}),
            ("/v1/responses/input_tokens", {"input": "Once"}),
            ("/v1/responses/input_tokens", {}),
            ("/v1/messages", chat),
            ("/v1/messages", {}),
            ("/v1/messages/count_tokens", chat),
            ("/v1/messages/count_tokens", {}),
            ("/parse_function_call", {"text": "a", "tool_call_parser": "hermes"}),
            ("/parse_function_call", {}),
            ("/separate_reasoning", {"text": "a", "reasoning_parser": "qwen3"}),
            ("/separate_reasoning", {}),
            ("/tokenize", {"prompt": "Once"}),
            ("/v1/tokenize", chat),
            ("/tokenize", {}),
            ("/detokenize", {"tokens": [1]}),
            ("/v1/detokenize", {"tokens": "x"}),
            ("/apply_template", chat),
            ("/apply_template", {}),
            ("/abort_request", {"rid": "none"}),
            ("/abort_request", {"rid": 5}),
            ("/pause_generation", {"mode": "in_place"}),
            ("/pause_generation", {"mode": "nonsense"}),
            ("/continue_generation", {}),
            ("/flush_cache", {}),
            ("/update_weights_from_disk", {"model_path": str(tmp_path)}),
            ("/update_weights_from_disk", {"model_path": "/nonexistent"}),
            ("/update_weights_from_disk", {}),
            ("/init_weights_update_group", {}),
            ("/init_weights_update_group", {"backend": "socket", "nccl_id": "00"}),
            ("/destroy_weights_update_group", {}),
            ("/update_weights_from_distributed", {}),
            ("/update_weights_from_tensor", {}),
            ("/update_weights_from_tensor", {"serialized_named_tensors": ["AAAAAAAAAAAAAAAA"]}),
            ("/init_weight_transfer_engine", {}),
            ("/start_weight_update", {}),
            ("/update_weights", {"update_info": {}}),
            ("/finish_weight_update", {}),
            ("/pause", {}),
            ("/resume", {}),
            ("/sleep", {}),
            ("/wake_up", {}),
            ("/abort_requests", {}),
            ("/abort_requests", {"request_ids": 5}),
            ("/reset_prefix_cache", {}),
            ("/update_weight_version", {}),
            ("/update_weight_version", {"new_version": "a"}),
            ("/release_memory_occupation", {"tags": ["kv_cache"]}),
            ("/resume_memory_occupation", {}),
            ("/release_memory_occupation", {"tags": ["x"]}),
            ("/update_weights_from_ipc", {}),
            ("/update_weights_from_ipc", {"mode": "writing"}),
            ("/update_weights_from_ipc", {"mode": "share", "handle": "00"}),
        ]:
            check_reply(spec, path, "post", s.post(path, body))
        for path in ("/health", "/health_generate", "/metrics", "/model_info", "/get_model_info", "/server_info",
                     "/get_server_info", "/get_weight_version", "/weight_version", "/v1/loads", "/v1/models", "/is_paused", "/is_sleeping",
                     "/get_world_size", "/weight_info", "/flush_cache"):
            check_reply(spec, path, "get", s.get(path))
        assert s.get("/openapi.json").json() == spec
        name = s.get("/v1/models").json()["data"][0]["id"]
        check_reply(spec, "/v1/models/{model}", "get", s.get(f"/v1/models/{name}"))
        check_reply(spec, "/v1/models/{model}", "get", s.get("/v1/models/other"))
        check_reply(spec, "/weights/{version}", "put", s.client.put("/weights/1", content=b""))
