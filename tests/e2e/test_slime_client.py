"""slime's requests in its order, through a router over two servers: a rollout that is aborted when enough samples are there, polling
until nothing runs, the partial samples kept; pause, flush, new weights, continue; the partial ones go on where they ended."""

import asyncio
import contextlib
import threading

import httpx
import pytest
from programs import LIMIT, router_to, server, tiny_model
from test_front import wait_for

LONG = 100000  # of which nobody waits for the end
PARAMS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop": None, "stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True,
          "spaces_between_special_tokens": False, "ignore_eos": True}  # fmt: skip


@pytest.fixture
def fleet(tmp_path):
    models = [tiny_model(tmp_path / name, **{"max-position-embeddings": 2 * LONG}) for name in ("old", "new")]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(server("--max-total-tokens", "300000", model=models[0])) for _ in range(2)]
        router = stack.enter_context(router_to([s.url for s in servers]))
        yield router, servers, models


def generate(client, url, ids, n_new, seed):
    """As its rollout asks: no time limit, token ids in, log-probabilities out."""
    params = PARAMS | {"max_new_tokens": n_new, "sampling_seed": seed}
    return client.post(url + "/generate", json={"input_ids": ids, "sampling_params": params, "return_logprob": True})


async def n_running(client, url):
    """As it counts: the first of these that there is, else running and waiting together."""
    loads = (await client.get(url + "/v1/loads?include=core")).json()["loads"]
    total = 0
    for entry in loads:
        known = [entry[k] for k in ("num_reqs", "num_total_reqs", "total_reqs") if isinstance(entry.get(k), int)]
        total += known[0] if known else entry["num_running_reqs"] + entry["num_waiting_reqs"]
    return total


async def rollout(router, short, long):
    """Samples until the short ones are there; then all workers are told to stop, until they have. The long ones' partial replies."""
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=512)) as client:
        finished = await asyncio.gather(*(generate(client, router.url, [1, 2, i], 8, i) for i in range(short)))
        pending = [asyncio.create_task(generate(client, router.url, [1, 2, 3], LONG, 100 + i)) for i in range(long)]
        workers = [w["url"] for w in (await client.get(router.url + "/workers")).json()["workers"]]
        while sum([await n_running(client, url) for url in workers]) < long:
            await asyncio.sleep(0.01)
        while sum([await n_running(client, url) for url in workers]):
            for url in workers:
                assert (await client.post(url + "/abort_request", json={"abort_all": True})).status_code == 200
            await asyncio.sleep(0.01)
        return workers, [r.json() for r in finished], [(await task).json() for task in pending]


async def update(workers, folder, version, flushed):
    """Every POST's answer must be JSON. flushed() is called between the flush and the new weights."""
    async with httpx.AsyncClient(timeout=LIMIT) as client:
        for path, body in (("/pause_generation", {}), ("flush", None),
                           ("/update_weights_from_disk", {"model_path": str(folder), "weight_version": version}), ("/continue_generation", {})):  # fmt: skip
            for url in workers:
                if path == "flush":  # up to 60 times
                    assert 200 in [(await client.get(url + "/flush_cache")).status_code for _ in range(60)]
                else:
                    reply = await client.post(url + path, json=body)
                    assert reply.status_code == 200, reply.text
                    reply.json()
            if path == "flush":
                flushed()
        for url in workers:
            assert (await client.get(url + "/get_weight_version")).json()["weight_version"] == version
            assert (await client.get(url + "/health_generate")).status_code == 200


def check(reply, version):
    meta = reply["meta_info"]
    entries = meta["output_token_logprobs"]
    assert [t[1] for t in entries] == reply["output_ids"] and len(entries) == meta["completion_tokens"]
    assert meta["prompt_tokens"] == 3 and meta["weight_version"] == version and meta["cached_tokens"] >= 0
    return entries


def test_its_sequence(fleet):
    router, servers, models = fleet
    workers, finished, partial = asyncio.run(asyncio.wait_for(rollout(router, 8, 6), LIMIT))
    assert sorted(workers) == sorted(s.url for s in servers)
    for reply in finished:
        assert len(check(reply, "default")) == 8 and reply["meta_info"]["finish_reason"]["type"] == "length"
    for reply in partial:
        assert len(check(reply, "default")) < LONG and reply["meta_info"]["finish_reason"]["type"] == "abort"
    # under the same weights a partial sample goes on as if it had never been stopped
    i, reply = max(enumerate(partial), key=lambda p: len(p[1]["output_ids"]))
    with httpx.Client(timeout=LIMIT) as client:
        n = len(reply["output_ids"])
        rest = generate(client, router.url, [1, 2, 3] + reply["output_ids"], 10, 100 + i).json()
        whole = generate(client, router.url, [1, 2, 3], n + 10, 100 + i).json()
        assert whole["output_ids"] == reply["output_ids"] + rest["output_ids"]
        # pushed while a request is held by the pause: it waits, and is answered by the new weights
        held = []
        waits = threading.Thread(target=lambda: held.append(generate(client, router.url, [1, 2, 9], 8, 5).json()))

        def ask():
            waits.start()
            wait_for(lambda: sum(s.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] for s in servers) == 1)

        asyncio.run(update(workers, models[1], "1", ask))
        waits.join(LIMIT)
        assert [r["meta_info"]["weight_version"] for r in held] == ["1"]
        again = generate(client, router.url, [1, 2, 9], 8, 5).json()
        assert again["output_ids"] == held[0]["output_ids"]
    with server(model=models[1]) as fresh:
        alone = fresh.json("/generate", {"input_ids": [1, 2, 9], "return_logprob": True, "sampling_params": PARAMS | {"max_new_tokens": 8, "sampling_seed": 5}})
        assert alone["meta_info"]["output_token_logprobs"] == again["meta_info"]["output_token_logprobs"]
