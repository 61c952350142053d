"""What an operator asks a running server for: checksums of its weights, a trace of its steps, a log of its requests."""

import hashlib
import json
import re
import struct
import time

import pytest
from programs import LIMIT, STORIES, needs_stories, router_to, server, tiny_model

ONE = {"input_ids": [1, 403], "sampling_params": {"max_new_tokens": 8, "sampling_seed": 7}}


@pytest.fixture(scope="module")
def s():
    with server() as running:
        yield running


def tensors(path):
    data = path.read_bytes()
    n, = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + n])
    return {k: data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}


def test_checksums_are_those_of_the_file(s):
    file = tensors(STORIES / "model.safetensors")
    reply = s.json("/weights_checker", {"action": "checksum"})
    rank, = reply["ranks"]
    assert reply["success"] and len(rank["checksums"]) > 10
    for name, sum_ in rank["checksums"].items():
        assert sum_ == hashlib.sha256(file[name]).hexdigest(), name
    assert reply["per_engine_checksum"] == rank["per_gpu_checksum"] and reply["weight_version"] == "default"


def test_values_are_those_of_the_file(s):
    file = tensors(STORIES / "model.safetensors")
    floats = lambda name: struct.unpack(f"<{len(file[name]) // 4}f", file[name])
    norm, matrix = "model.norm.weight", "model.layers.1.self_attn.k_proj.weight"
    assert s.json("/get_weights_by_name", {"name": norm}) == pytest.approx(floats(norm)[:100], rel=1e-6)
    rows = s.json("/get_weights_by_name", {"name": matrix, "truncate_size": 2})
    assert len(rows) == 2 and rows[0] + rows[1] == pytest.approx(floats(matrix)[: 2 * len(rows[0])], rel=1e-6)
    assert "no tensor" in s.json("/get_weights_by_name", {"name": "model.norm"}, 404)["message"]
    assert "no tensor" in s.json("/get_weights_by_name", {"name": "x" * 5000}, 404)["message"]
    assert "name is missing" in s.json("/get_weights_by_name", {}, 400)["message"]


def test_an_update_that_leaves_nothing_out():
    """slime's --check-weight-update-equal: snapshot, reset, update, compare."""
    with server() as s:
        before = s.json("/generate", ONE)
        assert "no snapshot" in s.json("/weights_checker", {"action": "compare"}, 400)["message"]
        assert s.json("/weights_checker", {"action": "snapshot"})["success"] and s.json("/weights_checker", {"action": "compare"})["success"]
        s.json("/weights_checker", {"action": "reset_tensors"})
        refused = s.json("/weights_checker", {"action": "compare"}, 400)
        n, all_ = map(int, re.match(r"(\d+) of (\d+) tensors", refused["message"]).groups())
        assert not refused["success"] and n == all_ > 10 and "..." in refused["message"]
        assert s.json("/generate", ONE)["output_ids"] != before["output_ids"]  # they are in force
        s.json("/update_weights_from_disk", {"model_path": str(STORIES)})
        assert s.json("/weights_checker", {"action": "compare"})["success"]
        assert s.json("/generate", ONE)["output_ids"] == before["output_ids"]
        assert "action must be" in s.json("/weights_checker", {"action": "shuffle"}, 400)["message"]
        s.json("/release_memory_occupation", {"tags": ["weights"]})
        assert "no weights" in s.json("/weights_checker", {"action": "checksum"}, 503)["message"]


def test_whether_a_whole_fleet_has_the_same_weights(tmp_path):
    model = tiny_model(tmp_path / "m")
    ask = lambda to: to.json("/weights_checker", {"action": "checksum"})
    with server(model=model) as a, server(model=model) as b, router_to([a.url, b.url]) as router:
        deadline = time.monotonic() + LIMIT
        while {w["status"] for w in router.get("/workers").json()["workers"]} != {"ready"}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        said = ask(router)
        assert said["per_engine_checksum"] == ask(a)["per_engine_checksum"] and said["success"]
        b.json("/weights_checker", {"action": "reset_tensors"})
        said = ask(router)
        assert said["per_engine_checksum"] is None and said["success"]
        assert {w["url"]: w["body"]["per_engine_checksum"] for w in said["workers"]} == {s.url: ask(s)["per_engine_checksum"] for s in (a, b)}
        assert router.json("/weights_checker", {"action": "compare"}, 400)["per_engine_checksum"] is None


@needs_stories
def test_a_trace_of_the_steps(s, tmp_path):
    where = tmp_path / "traces"
    assert s.get("/stop_profile").status_code == 400
    assert s.post("/start_profile", {"output_dir": str(where), "profile_id": "one", "activities": ["CPU"], "with_stack": True}).text
    assert "already" in s.json("/start_profile", {}, 400)["message"]
    first = s.get("/server_info").json()["internal_states"][0]["num_steps"]
    s.json("/generate", ONE)
    s.json("/pause_generation", {"mode": "in_place"})
    s.json("/continue_generation", {})
    said = s.post("/stop_profile").text
    steps = s.get("/server_info").json()["internal_states"][0]["num_steps"] - first
    assert f"{steps} steps in {where}/one-TP-0.trace.json" in said
    trace = json.loads((where / "one-TP-0.trace.json").read_text())
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["pid"] == 1 and e["tid"] == 1 for e in spans)
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "M"} == {"process_name", "thread_name"}
    whole = [e for e in spans if e["name"] == "step"]
    assert len(whole) == steps >= 8 and [e["args"]["number"] for e in whole] == list(range(whole[0]["args"]["number"], whole[0]["args"]["number"] + steps))
    assert whole[0]["args"]["rows"] == 2 and all(e["args"]["rows"] == e["args"]["sequences"] == 1 for e in whole[1:])
    for step, *phases in zip(spans[0::4], spans[1::4], spans[2::4], spans[3::4]):
        if step["name"] != "step":
            break  # the control calls are behind
        assert [p["name"] for p in phases] == ["plan and start", "wait for the device", "results"]
        assert phases[0]["ts"] == step["ts"] and sum(p["dur"] for p in phases) == step["dur"]
    assert sum(e["name"] == "control call" for e in spans) >= 2
    for body, says in [({"output_dir": str(tmp_path / "a" / "b")}, "no folder"), ({"profile_id": "../x"}, "profile_id"),
                       ({"profile_by_stage": True}, "profile_by_stage is not supported"), ({"num_steps": -1}, "num_steps")]:  # fmt: skip
        assert says in s.json("/start_profile", body, 400)["message"]
    s.post("/start_profile", {"output_dir": str(where), "profile_prefix": "few", "profile_id": "two", "start_step": first + steps + 3, "num_steps": 2})
    s.json("/generate", ONE)
    few = where / "few-two-TP-0.trace.json"
    deadline = time.monotonic() + LIMIT
    while not few.exists():  # it is written when it has its steps
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "no profile" in s.json("/stop_profile", {}, 400)["message"]
    trace = json.loads(few.read_text())
    numbers = [e["args"]["number"] for e in trace["traceEvents"] if e["name"] == "step"]
    assert numbers == [first + steps + 3, first + steps + 4]  # counted as num_steps of /server_info


@needs_stories
def test_a_log_of_requests():
    with server("--log-requests", "--log-requests-level", "0") as s:
        def logged():
            return [json.loads(m) for m in re.findall(r"request (\{.*\})$", s.log(), re.M)]

        reply = s.json("/generate", ONE, 200)
        line, = logged()
        assert line["rid"] == reply["meta_info"]["id"] and line["path"] == "/generate" and line["completion_tokens"] == 8
        assert line["finish_reason"] == "length" and line["e2e_latency"] >= line["ttft"] >= 0 and "sampling_params" not in line
        assert s.json("/configure_logging", {"log_requests_level": 2}) == {"success": True, "message": "requests are logged"}
        odd = {"prompt": 'say "\u00e9"\n' * 9, "max_tokens": 300, "ignore_eos": True, "rid": "mine"}
        s.json("/v1/completions", odd)
        line = logged()[-1]
        assert line["rid"] == "mine" and line["sampling_params"]["max_new_tokens"] == 300 and 0 < len(line["text"].encode()) <= 402
        assert len(line["prompt_ids"]) == 32
        s.json("/configure_logging", {"log_requests_level": 0})
        s.json("/update_weight_version", {"new_version": '"' * 250})
        s.json("/generate", ONE | {"rid": "\u0001" * 256})  # more than a line holds: names are cut
        assert logged()[-1]["rid"].startswith("\u0001") and len(logged()) == 3
        s.json("/configure_logging", {"log_requests": False, "log_requests_level": 2})
        s.json("/generate", ONE)
        assert len(logged()) == 3
        assert s.json("/configure_logging", {"log_requests": True})["message"] == "requests are logged"
        s.events("/generate", ONE | {"stream": True})
        deadline = time.monotonic() + LIMIT
        while len(logged()) < 4 and time.monotonic() < deadline:  # a stream's line comes behind its last byte
            time.sleep(0.01)
        assert len(logged()) == 4 and "text" in logged()[-1]
        s.json("/configure_logging", {"log_requests_level": 3})  # all of it, however long
        whole = s.json("/v1/completions", odd | {"return_token_ids": True})["choices"][0]
        line = logged()[-1]
        assert line["text"] == whole["text"] and line["output_ids"] == whole["token_ids"] and line["prompt_ids"] == whole["prompt_token_ids"]
        assert len(line["prompt_ids"]) > 32 and len(line["output_ids"]) == 300
        assert "dump_requests_folder is not supported" in s.json("/configure_logging", {"dump_requests_folder": "/tmp"}, 400)["message"]


def test_metrics_under_vllms_names(s):
    s.json("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}})
    text = s.get("/metrics").text
    values = dict(re.findall(r'^((?:sglang|vllm):\w+)\{model_name="[^"]*"\} (\S+)$', text, re.M))
    for theirs, ours in [("num_requests_running", "num_running_reqs"), ("num_requests_waiting", "num_queue_reqs"),
                         ("kv_cache_usage_perc", "token_usage"), ("generation_tokens_total", "generation_tokens_total"),
                         ("prefix_cache_hits_total", "cached_tokens_total"), ("prompt_tokens_total", "prompt_tokens_total")]:  # fmt: skip
        assert values[f"vllm:{theirs}"] == values[f"sglang:{ours}"], theirs
    assert int(values["vllm:generation_tokens_total"]) > 0
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
        assert re.findall(rf"^sglang:{name}(.*)$", text, re.M) == re.findall(rf"^vllm:{name}(.*)$", text, re.M) != []
    assert text.count("# TYPE vllm:prompt_tokens_total counter") == 1
