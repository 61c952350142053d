"""What one request may cost clime-server: refused before any work, so that others never wait for it."""

import concurrent.futures
import pathlib
import time

import pytest
from programs import FULL, SLOW, chat_model, server, tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("bounds"))


def test_log_probabilities_have_a_byte_budget(folder):
    ids = [[1] + [403] * 400] * 40
    with server("--max-logprob-bytes", "64m", model=folder) as s:
        asks = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 256}
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 4}} | asks
        for stream in (False, True):
            message = s.json("/generate", body | {"stream": stream}, 400)["message"]
            assert "log-probabilities" in message and "--max-logprob-bytes" in message
        by_reply = {"input_ids": [1], "sampling_params": {"max_new_tokens": 500, "n": 64, "ignore_eos": True}}
        s.json("/generate", by_reply | asks, 400)
        s.json("/generate", by_reply | asks | {"top_logprobs_num": 0, "token_ids_logprob": list(range(256))}, 400)
        chat = {"messages": [{"role": "user", "content": "Once"}], "n": 512, "logprobs": True, "top_logprobs": 200}
        s.json("/v1/chat/completions", chat, 400)
        echo = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 256}
        s.json("/v1/completions", echo, 400)
        # within the budget, and without log-probabilities, the same shapes pass
        one = s.json("/generate", body | {"input_ids": ids[0]})
        assert len(one["meta_info"]["input_top_logprobs"]) == 401
        assert len(s.json("/generate", {"input_ids": ids, "sampling_params": {"max_new_tokens": 4}})) == 40


def test_a_reply_that_is_too_large_is_refused_before_it_is_made(folder, tmp_path):
    """Within the budget of host memory, but more text than one answer, or one event of a stream, may have."""
    with server("--max-queued-requests", "200", model=folder) as s:
        body = {"input_ids": [1], "return_logprob": True, "top_logprobs_num": 256,
                "sampling_params": {"max_new_tokens": 500, "n": 160, "ignore_eos": True}}  # fmt: skip
        message = s.json("/generate", body, 400)["message"]
        assert "512 MB" in message and "stream" in message
        assert s.json("/generate", body | {"sampling_params": {"max_new_tokens": 4, "n": 160}})
    with server("--max-total-tokens", "70000", model=tiny_model(tmp_path / "long", **{"max-position-embeddings": 70000})) as s:
        body = {"input_ids": [1], "return_logprob": True, "top_logprobs_num": 256, "token_ids_logprob": [1] * 64,
                "sampling_params": {"max_new_tokens": 65000, "ignore_eos": True}, "stream": True}  # fmt: skip
        assert "512 MB" in s.json("/generate", body, 400)["message"]


def test_a_batch_larger_than_the_queue_is_not_told_to_come_again(folder):
    with server("--max-running-requests", "2", "--max-queued-requests", "3", model=folder) as s:
        params = {"max_new_tokens": 2}
        assert len(s.json("/generate", {"input_ids": [[1]] * 5, "sampling_params": params})) == 5
        for body in ({"input_ids": [[1]] * 6, "sampling_params": params},
                     {"input_ids": [1], "sampling_params": params | {"n": 6}}):  # fmt: skip
            message = s.json("/generate", body, 400)["message"]
            assert "6" in message and "5" in message


def peak_bytes(s):
    status = pathlib.Path(f"/proc/{s.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def test_a_text_far_over_the_limit_is_not_tokenised(folder):
    """Four texts of 60 MB (30 in the fast tier), one word and many words: another client's request does not wait for them."""
    size = (60 if FULL else 30) << 20
    one, many = "a" * size, "once upon a time " * (size // 17)
    with server("--max-body", "64m", model=folder) as s, concurrent.futures.ThreadPoolExecutor(8) as pool:
        begun = time.monotonic()
        bad = [pool.submit(s.post, path, body, timeout=300) for path, body in (
            ("/generate", {"text": one}), ("/v1/completions", {"prompt": many}), ("/generate", {"text": many}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": many}]}))]  # fmt: skip
        slowest = 0
        while not all(f.done() for f in bad):
            asked = time.monotonic()
            s.json("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 1}})
            slowest = max(slowest, time.monotonic() - asked)
        for f in bad:
            assert f.result().status_code == 400 and "512" in f.result().json()["message"], f.result().text[:500]
        peak = peak_bytes(s)
    print(f"{time.monotonic() - begun:.1f} s, others waited {slowest:.2f} s at most, peak {peak / 1e6:.0f} MB")
    assert slowest < 15 * SLOW
    assert SLOW > 1 or peak < 1.2e9


def test_many_texts_of_one_request_let_others_in_between(folder):
    """A batch of texts that are each allowed is tokenised in slices."""
    texts = ["once upon a time " * 120] * 4000
    body = {"text": texts, "sampling_params": {"max_new_tokens": 0}}
    with server("--max-queued-requests", "10", model=folder) as s, concurrent.futures.ThreadPoolExecutor(4) as pool:
        bad = [pool.submit(s.post, "/tokenize", {"prompt": texts}, timeout=300) for _ in range(2)]
        s.json("/generate", body, 400)  # more than the queue holds: before it is tokenised
        n = 0
        while not all(f.done() for f in bad):
            s.json("/tokenize", {"prompt": "Once"})
            n += 1
        counts = [f.result().json()["count"] for f in bad]
    assert counts[0] == counts[1] and len(counts[0]) == 4000 and len(set(counts[0])) == 1
    assert n >= 3


def test_tokenize_has_a_limit_too(folder):
    with server(model=folder) as s:
        assert "tokens" in s.json("/tokenize", {"prompt": "a b " * (8 << 20)}, 400)["message"]
        assert s.json("/tokenize", {"prompt": "Once upon " * 50000})["count"] > 100000
