"""Command lines of SGLang's and vLLM's launchers start clime-server, or are refused with the reason."""

import pytest
from programs import run, server

SGLANG = ["--tp-size", "1", "--trust-remote-code", "--enable-metrics", "--dtype", "auto", "--mem-fraction-static", "0.4",
          "--attention-backend", "fa3", "--disable-custom-all-reduce", "--enable-cache-report", "--context-length", "256",
          "--schedule-policy", "fcfs", "--enable-memory-saver", "--chunked-prefill-size", "64"]  # fmt: skip
VLLM = ["--tensor-parallel-size", "1", "--max-model-len", "256", "--max-num-seqs", "8", "--max-num-batched-tokens", "64",
        "--enforce-eager", "--enable-prefix-caching", "--disable-log-requests", "--trust-remote-code",
        "--generation-config", "auto", "--seed", "7"]  # fmt: skip


@pytest.mark.parametrize("flags", [SGLANG, VLLM], ids=["SGLang", "vLLM"])
def test_usual_flags_are_accepted_and_listed(flags):
    with server(*flags) as s:
        info, log = s.get("/server_info").json(), s.log()
    assert info["context_length"] == 256 and info["chunked_prefill_size"] == 64
    assert "--trust-remote-code: no code is taken from a model's folder" in log
    assert "--context-length" not in log and "--seed" not in log  # those have an effect


@pytest.mark.parametrize("flags, why", [
    (["--pp-size", "2"], "share every layer"), (["--data-parallel-size=8"], "share every layer"), (["--enable-lora"], "adapters"),
    (["--quantization", "fp8"], "bfloat16"), (["--no-enable-prefix-caching"], "--disable-radix-cache"),
    (["--speculative-config", "{}"], "draft model"), (["--gpu-memory-utilization", "0.9"], "--mem-fraction-static"),
    (["--schedule-policy", "lpm"], "first come")])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_the_reason(flags, why):
    status, _, err = run("clime-server", "--model-path", "/nowhere", *flags)
    assert status == 2 and flags[0].split("=")[0] in err and "cannot be honoured" in err and why in err


def test_random_seed_fixes_the_seeds_of_requests_without_one():
    def seeds(*flags):
        with server(*flags) as s:
            body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1}}
            first = s.json("/generate", body)["meta_info"]["seed"]
            assert s.get("/health_generate").status_code == 200  # a probe takes no seed
            return [first] + [s.json("/generate", body)["meta_info"]["seed"] for _ in range(2)]

    first = seeds("--random-seed", "42")
    with server("--random-seed", "42") as s:  # in one batch, each prompt with parameters of its own
        batch = s.json("/generate", {"input_ids": [[1]] * 3, "sampling_params": [{"max_new_tokens": 1}] * 3})
        assert [r["meta_info"]["seed"] for r in batch] == first
    assert first == seeds("--random-seed", "42") and len(set(first)) == 3 and max(first) < 2**53
    assert first != seeds("--random-seed", "43")
    assert seeds() != seeds()
