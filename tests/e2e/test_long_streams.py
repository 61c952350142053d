"""Long streams, as load generators ask for them: cumulative events with log-probabilities, many at a time, a client that
reads all the time. Every one must come whole."""

import asyncio
import json

import pytest
from programs import SLOW, server, tiny_model, web

N, TOKENS = 16, 2000


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    folder = tiny_model(tmp_path_factory.mktemp("long") / "model", **{"max-position-embeddings": 4096, "hidden-size": 512, "num-hidden-layers": 4, "intermediate-size": 1536})
    with server("--max-total-tokens", "65536", model=folder) as running:
        yield running


async def one(client, seed, top):
    params = {"max_new_tokens": TOKENS, "ignore_eos": True, "sampling_seed": seed, "temperature": 1}
    body = {"input_ids": [1, 2, 3], "sampling_params": params, "stream": True, "return_logprob": True,
            "logprob_start_len": -1, "top_logprobs_num": top}  # fmt: skip
    rest, last, events, n_bytes = b"", None, 0, 0
    async with client.stream("POST", "/generate", json=body) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for piece in reply.aiter_raw():
            n_bytes += len(piece)
            *whole, rest = (rest + piece).split(b"\n\n")
            for event in whole:
                if event == b"data: [DONE]":
                    return last, events, n_bytes
                last = json.loads(event[6:])
                events += 1
    raise AssertionError(f"no [DONE] after {events} events and {n_bytes} bytes")


async def all_of(url, top):
    async with web.AsyncClient(base_url=url, timeout=240 * SLOW) as client:
        return await asyncio.gather(*(one(client, i, top) for i in range(N)), return_exceptions=True)


@pytest.mark.full
@pytest.mark.parametrize("top", [2])
def test_long_cumulative_streams_come_whole(s, top):
    got = asyncio.run(all_of(s.url, top))
    bad = [g for g in got if isinstance(g, BaseException)]
    assert not bad, f"{len(bad)} of {N} failed: {bad[0]!r}"
    seeds = range(0, N, 5)
    params = [{"max_new_tokens": TOKENS, "ignore_eos": True, "sampling_seed": seed, "temperature": 1} for seed in seeds]
    plain = s.json("/generate", {"input_ids": [[1, 2, 3]] * len(seeds), "sampling_params": params, "return_logprob": True})
    for seed, one_plain in zip(seeds, plain):
        assert one_plain["output_ids"] == got[seed][0]["output_ids"]
        assert one_plain["meta_info"]["output_token_logprobs"] == got[seed][0]["meta_info"]["output_token_logprobs"]
    for reply, events, _ in got:
        meta = reply["meta_info"]
        assert len(reply["output_ids"]) == TOKENS and len(meta["output_token_logprobs"]) == TOKENS
        assert meta["finish_reason"]["type"] == "length" and events > 1
        if top:
            assert len(meta["output_top_logprobs"]) == TOKENS
    total = sum(g[2] for g in got)
    print(f"{N} streams, {sum(g[1] for g in got)} events of {N * TOKENS} tokens, {total / 1e6:.0f} MB")
