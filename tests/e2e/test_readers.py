"""Readers of many kinds at once: those that read get every token, whoever beside them stops reading or is gone; and what
nobody reads any more gives its pages back."""

import contextlib
import json
import socket
import struct

import pytest
from programs import router_to, server, tiny_model
from test_front import LIMIT, SLOW, events_of, read_streams, wait_for, waiting

LONG = 60000  # tokens that would take the vanished ones' 128 sequences minutes
FROZEN = {"input_ids": [1], "stream": True, "return_logprob": True, "top_logprobs_num": 64,
          "sampling_params": {"max_new_tokens": 400, "ignore_eos": True, "sampling_seed": 7}}  # fmt: skip


@pytest.fixture(params=["server", "router"])
def both(request, tmp_path):
    """(the server, whom one asks)"""
    model = tiny_model(tmp_path / "model", **{"max-position-embeddings": 2 * LONG})
    with contextlib.ExitStack() as stack:
        s = stack.enter_context(server("--max-total-tokens", "400000", "--max-running-requests", "160", model=model))
        yield s, s if request.param == "server" else stack.enter_context(router_to([s.url]))


def post(to, path, body, buffer=None):
    text = json.dumps(body).encode()
    c = socket.socket()
    if buffer:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)  # else the kernel reads for it
    c.settimeout(LIMIT)
    c.connect(("127.0.0.1", to.port))
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
    return c


def ids(data):
    return [i for e in events_of(data) for c in json.loads(e)["choices"] for i in c["token_ids"]]


def test_those_that_read_are_not_harmed(both):
    s, to = both
    ask = [{"prompt": [1], "stream": True, "return_token_ids": True, "seed": i, "max_tokens": 200, "ignore_eos": True} for i in range(16)]
    want = [s.json("/v1/completions", a | {"stream": False})["choices"][0]["token_ids"] for a in ask]
    frozen_want = s.json("/generate", FROZEN | {"stream": False})
    gone = [post(to, "/v1/completions", {"prompt": [1], "stream": True, "n": 16, "max_tokens": LONG, "ignore_eos": True}) for _ in range(8)]
    for c in gone:
        assert c.recv(1)  # it flows
    frozen = [post(to, "/generate", FROZEN, 1 << 14) for _ in range(8)]
    readers = [post(to, "/v1/completions", a) for a in ask]
    for i, c in enumerate(gone):  # half of them close, half fall off the line
        if i % 2:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    for got, expected in zip(read_streams(readers, lambda: False), want):
        assert ids(got) == expected
    # nobody has read the frozen ones: they are made all the same, and hold no page
    wait_for(lambda: waiting(s) == 0)
    wait_for(lambda: s.post("/flush_cache").status_code == 200)
    wait_for(lambda: s.get("/v1/loads").json()["loads"][0]["num_used_tokens"] == 0)
    if SLOW == 1:  # one that takes nothing for 30 s is given up
        for got in read_streams(frozen, lambda: False):
            last = json.loads(events_of(got)[-1])
            assert last["output_ids"] == frozen_want["output_ids"]
            assert last["meta_info"]["output_top_logprobs"] == frozen_want["meta_info"]["output_top_logprobs"]
    for c in readers + frozen:
        c.close()
