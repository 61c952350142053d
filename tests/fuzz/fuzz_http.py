"""Fuzzes the bodies of clime-server and clime-router: mutated requests, as a client would send them.

Invariants: every body is answered with a status of the contract and, unless it is 200, a JSON message; a stream ends;
the server keeps its weights and gives the same answer to the same request; both programs end with status 0 (under a
sanitizer: without a report). Case i depends on (seed, i) alone: "--seed S --only I" runs one again.

Run by `make fuzz`; CLIME_BUILD names the folder of the programs.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import httpx

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from programs import BUILD, program  # noqa: E402

LIMIT = {"max_new_tokens": 3}
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hé"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]  # fmt: skip
SEEDS = [
    ("/generate", {"input_ids": [[1, 2], [3]], "sampling_params": [LIMIT, LIMIT | {"n": 2}], "rid": ["a", "b"],
                   "return_logprob": [True, False], "logprob_start_len": 0, "top_logprobs_num": 2,
                   "token_ids_logprob": [[1], [2, 3]]}),
    ("/generate", {"text": "h\u00e9llo \ud83d\ude00", "stream": True, "return_logprob": True, "sampling_params": LIMIT |
                   {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "stop": ["a", "\n"], "sampling_seed": 7,
                    "stop_regex": ["a+b", "[^x]{2,5}$"], "bad_words": ["a", "bc"], "max_tokens": 3,
                    "stop_token_ids": [5], "logit_bias": {"7": -1.5}, "frequency_penalty": 0.5}}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 2, "echo": True, "n": 2, "seed": 1}),
    ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "stream": True,
                              "stream_options": {"include_usage": True}, "tools": [{"type": "function", "function":
                              {"name": "f", "parameters": {"type": "object"}}}], "stop": "x"}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                                 {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                 {"type": "function_call_output", "call_id": "c", "output": "o"}], "max_output_tokens": 3,
                       "instructions": "i", "tools": [{"type": "function", "name": "f", "parameters": {}}], "stream": True}),
    ("/v1/messages", {"max_tokens": 3, "system": "s", "stream": True, "messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": [
            {"type": "text", "text": "b"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "o"}]}]}),
    ("/parse_function_call", {"text": "<tool_call>{}</tool_call>", "tool_call_parser": "hermes", "tools": []}),
    ("/separate_reasoning", {"text": "<think>a</think>b", "reasoning_parser": "qwen3"}),
    ("/tokenize", {"prompt": ["a", "b"], "add_special_tokens": False}),
    ("/detokenize", {"tokens": [[1, 2], [3]], "skip_special_tokens": True}),
    ("/apply_template", {"messages": MESSAGES, "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False}),
    ("/abort_request", {"rid": "a", "abort_all": False}),
    ("/pause_generation", {"mode": "sleep"}),
    ("/update_weights_from_disk", {"model_path": "/nowhere", "weight_version": "5"}),
]  # fmt: skip
WORDS = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"-1", b"0", b"1e999", b"99999999999999999999", b"1.5",
         b"\\u0000", b"\\ud800", b"\xff", b"\xc3", b"\x00", b"[" * 70, b'"a":', b"[1,2,3]", b'""', b"2147483648"]  # fmt: skip
# What a whole stream ends with; the others with [DONE].
LAST = {"/v1/messages": 'data: {"type":"message_stop"',
        "/v1/responses": tuple(f'data: {{"type":"response.{how}"' for how in ("completed", "incomplete", "failed"))}  # fmt: skip
STATUSES = {200, 400, 404, 413, 429, 503}
PROBE = {"input_ids": [1, 2, 3], "sampling_params": {"temperature": 0, "max_new_tokens": 4}, "return_logprob": True}


def swap_value(rng, value):
    """The value with one part replaced by something of another kind."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        return value | {key: swap_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        return value[:at] + [swap_value(rng, value[at])] + value[at + 1 :]
    return rng.choice([None, True, -1, 0, 1.5, 10**20, "", "x" * 300, "\u0000", [], {}, [[]], {"a": {}}, [1] * 300])


def mutate(rng, data):
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[at + rng.randrange(12) :]
    if kind == 2:
        return data[:at] + rng.choice(WORDS) + data[at:]
    if kind == 3:
        return data[:at] if rng.random() < 0.3 else data[:at] + data[at : at + 40] * rng.randrange(1, 5) + data[at:]
    return data[:at] + rng.choice(WORDS) + data[at + rng.randrange(8) :]


def make_case(seed, i):
    rng = random.Random(f"{seed}/{i}")
    path, body = rng.choice(SEEDS)
    if rng.random() < 0.5:
        for _ in range(rng.randrange(1, 3)):
            body = swap_value(rng, body)
        return path, json.dumps(body).encode()
    data = json.dumps(body).encode()
    for _ in range(rng.randrange(1, 5)):
        data = mutate(rng, data)
    return path, data


def answer(p):
    reply = p.json("/generate", PROBE)
    return reply["output_ids"], reply["meta_info"]["output_token_logprobs"], reply["meta_info"]["weight_version"]


def post(p, path, body):
    ask = lambda: p.client.post(path, content=body, headers={"Content-Type": "application/json"})
    try:
        return ask()
    except httpx.RemoteProtocolError:  # an idle connection that was closed while the request was on its way: not a second time
        return ask()


def run_case(p, path, body):
    reply = post(p, path, body)
    assert reply.status_code in STATUSES, reply.text[:2000]
    if reply.status_code == 200:
        assert reply.content
        if path == "/pause_generation":  # a mode that was lost is the default one: requests would wait
            p.json("/continue_generation", {})
        if reply.headers["content-type"].startswith("text/event-stream"):
            last = reply.text.rstrip().split("\n")[-1]  # splitlines knows more ends of lines than SSE has
            assert last.startswith(LAST.get(path, "data: [DONE]")), last
    else:
        assert reply.json()["message"]


def cpu_minutes(*programs):
    """Of processor that the programs have had."""
    ticks = 0
    for p in programs:
        stat = pathlib.Path(f"/proc/{p.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(stat[11]) + int(stat[12])
    return ticks / os.sysconf("SC_CLK_TCK") / 60


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--iterations", type=int, default=10000)
    options.add_argument("--cpu-minutes", type=float, help="of server and router together, instead of --iterations")
    options.add_argument("--only", type=int)
    o = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "model"
        subprocess.run([BUILD / "clime-train", "init", model, "--hidden-size", "32", "--intermediate-size", "32",
                        "--num-hidden-layers", "1", "--num-attention-heads", "1", "--num-key-value-heads", "1",
                        "--head-dim", "32", "--max-position-embeddings", "256"], check=True)  # fmt: skip
        with program("clime-server", "--model-path", model, "--debug-checks", "--max-body", "64k") as server, program(
            "clime-router"
        ) as router:
            assert router.post("/workers", {"url": server.url}).status_code == 202
            before = answer(server)
            n = 0
            for i in [o.only] if o.only is not None else itertools.count():
                if o.only is None and (n == o.iterations if o.cpu_minutes is None else cpu_minutes(server, router) >= o.cpu_minutes):
                    break
                n += 1
                path, body = make_case(o.seed, i)
                through = router if i % 4 == 0 and path.startswith(("/generate", "/v1/")) else server
                try:
                    run_case(through, path, body)
                    if i % 100 == 0 or o.only is not None:
                        assert answer(server) == before
                except Exception:
                    print(f"fuzz: failed at --seed {o.seed} --only {i}: {path} {body[:2000]!r}", file=sys.stderr)
                    print(server.log()[-4000:], router.log()[-4000:], sep="\n---\n", file=sys.stderr)
                    raise
            assert answer(server) == before and answer(router) == before
    print(f"{sys.argv[0]}: {n} cases")


main()
