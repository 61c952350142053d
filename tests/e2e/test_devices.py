"""A server over 2 and 4 devices (CPU ranks): the same tokens and the same bits of every log-probability as one has, through
every way that weights change; a rank that dies, freezes or lies; and what cannot be shared."""

import array
import base64
import contextlib
import functools
import hashlib
import os
import random
import signal
import sqlite3
import struct
import subprocess
import threading

import pytest
from test_bad_folders import pack
from programs import LIMIT, SLOW, Program, run, server, tiny_model
from test_handover import GROUP, Owner, Sender, beside, checksum, ipc, lists, tensors
from test_ranks import events, ranks_of, steps_done, until
from test_rl import children, command, final_sha, held_until, metrics, run_whole, start
from test_rl import model as rl_model  # noqa: F401  the fixture

SHAPE = {"num-hidden-layers": 2, "num-attention-heads": 4, "num-key-value-heads": 2, "head-dim": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("devices") / "m", **SHAPE)


@pytest.fixture(scope="module")
def servers(model):
    """By number of devices: small chunks, few pages, so that prompts are cut and pages are taken again."""
    with contextlib.ExitStack() as all_of:
        words = ["--device", "cpu", "--dtype", "bfloat16", "--threads", "1", "--chunked-prefill-size", "48", "--max-running-requests",
                 "6", "--max-total-tokens", "2048"]  # fmt: skip
        yield {n: all_of.enter_context(server("--tp-size", n, *words, model=model)) for n in (1, 2, 4)}


def replies(s):
    """What a server says to requests of every kind, a part of them at once, twice: prefixes come from the cache then."""
    prompt = lambda i, n: [(k * k + 7 * i) % 250 for k in range(n)]
    first = [(k * 3) % 250 for k in range(70)]  # in common
    logp = {"return_logprob": True, "top_logprobs_num": 3}
    asked = [
        {"input_ids": prompt(1, 150), "sampling_params": {"max_new_tokens": 20, "temperature": 0}, "logprob_start_len": 0, **logp},
        {"input_ids": first + prompt(2, 30), "sampling_params": {"max_new_tokens": 24, "temperature": 1, "sampling_seed": 3, "n": 3}, **logp},
        {"input_ids": first + prompt(3, 5), "sampling_params": {"max_new_tokens": 30, "temperature": 0.7, "sampling_seed": 4, "top_p": 0.8,
         "repetition_penalty": 1.3, "frequency_penalty": 0.2}, **logp},
        {"input_ids": [5], "sampling_params": {"max_new_tokens": 40, "temperature": 1.2, "sampling_seed": 5, "top_k": 9, "min_p": 0.01},
         "token_ids_logprob": [3, 17, 200], **logp},
        {"input_ids": first, "sampling_params": {"max_new_tokens": 9, "temperature": 1, "sampling_seed": 6,
         "logit_bias": {"11": 5.0, "12": -100.0}}, **logp},
        {"input_ids": first + [1], "sampling_params": {"max_new_tokens": 9, "temperature": 1.5, "sampling_seed": 7,
         "allowed_token_ids": [3, 5, 200, 201]}, **logp},
    ]  # fmt: skip
    said = [None] * len(asked)

    def ask(i):
        got = s.json("/generate", asked[i])
        keys = ("output_token_logprobs", "input_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs", "weight_version")
        said[i] = [[r["output_ids"], *(r["meta_info"].get(k) for k in keys)] for r in (got if isinstance(got, list) else [got])]

    rounds = []
    for _ in range(2):
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(LIMIT)
        rounds.append(list(said))
    assert rounds[0] == rounds[1] and all(rounds[0]) and len(rounds[0][1]) == 3
    return rounds[0]


def check_same(servers):
    said = {n: replies(s) for n, s in servers.items()}
    assert said[2] == said[1] and said[4] == said[1]
    sums = [s.json("/weights_checker", {"action": "checksum"}) for s in servers.values()]
    assert sums[0] == sums[1] == sums[2], sums
    return said[1]


def test_the_same_bits(servers):
    check_same(servers)
    for n, s in servers.items():
        assert s.get("/server_info").json()["tp_size"] == n and len(ranks_of(s.process.pid)) == n - 1


EXPERTS = {"hidden-size": 64, "intermediate-size": 96, "num-hidden-layers": 2, "num-dense-layers": 1, "num-experts": 8,
           "num-experts-per-tok": 2, "moe-intermediate-size": 40, "num-attention-heads": 4, "num-key-value-heads": 2, "head-dim": 16,
           "init-std": 0.1}  # fmt: skip
LATENT = {"kv-lora-rank": 32, "qk-nope-head-dim": 24, "qk-rope-head-dim": 16, "v-head-dim": 20}


@pytest.mark.parametrize(
    "family, more",
    [
        ("qwen2_moe", {"num-dense-layers": 0, "shared-expert-intermediate-size": 48}),  # whose shared expert has a gate
        ("deepseek_v3", LATENT | {"q-lora-rank": 48}),
    ],
)
def test_experts_and_latent_attention(family, more, tmp_path):
    """Of every expert a rank has rows, or some whole; of latent attention heads: prompts in chunks, from the cache, samples of
    one prompt; new weights, and all of them put together again."""
    model = tiny_model(tmp_path / "m", family=family, **(EXPERTS | more))
    other = tiny_model(tmp_path / "other", family=family, **(EXPERTS | more | {"seed": 7}))
    first = [(k * 3) % 250 for k in range(70)]
    asked = {"input_ids": [first, first + [(k * k) % 250 for k in range(30)], [5]], "return_logprob": True, "logprob_start_len": 0,
             "sampling_params": [{"max_new_tokens": 12, "temperature": 1, "sampling_seed": i, "n": 2} for i in range(3)]}  # fmt: skip
    said = {}
    for n, whole in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 4)):
        words = ["--tp-size", n, "--ep-size", whole, "--threads", "1", "--chunked-prefill-size", "48", "--max-total-tokens", "2048"]
        with server(*words, model=model) as s:
            assert len(ranks_of(s.process.pid)) == n - 1 and s.get("/server_info").json()["ep_size"] == whole
            reply = [s.json("/generate", asked) for _ in range(2)]
            sums = [s.json("/weights_checker", {"action": "checksum"})]
            s.json("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
            s.json("/resume_memory_occupation", {"tags": ["kv_cache", "weights"]})
            s.json("/update_weights_from_disk", {"model_path": str(other)})
            reply.append(s.json("/generate", asked))
            sums.append(s.json("/weights_checker", {"action": "checksum"}))
        rounds = [[(r["output_ids"], r["meta_info"]["output_token_logprobs"]) for r in round] for round in reply]
        said[n, whole] = rounds, [[r["meta_info"]["input_token_logprobs"] for r in round] for round in reply[::2]], sums
    rounds, _, sums = said[1, 1]
    assert len(rounds[0]) == 6 and rounds[0] == rounds[1] and rounds[2] != rounds[0] and sums[0] != sums[1]
    assert all(x == said[1, 1] for x in said.values())


@functools.cache
def policy(seed, n):
    """n random bf16 numbers."""
    rng = random.Random(seed)
    values = array.array("f", (rng.gauss(0, 0.2) for _ in range(n))).tobytes()
    return b"".join(values[i + 2 : i + 4] for i in range(0, len(values), 4))


def test_new_weights_by_every_way(servers, model, tmp_path):
    """Each is in force on all ranks, from its first token; what is refused changes nothing on any of them."""
    seen = [check_same(servers)]
    all_of = tensors(model)
    body = (model / "model.safetensors").read_bytes()
    head = 8 + struct.unpack("<Q", body[:8])[0]
    size = len(body) - head
    layout = {s.get("/server_info").json()["layout"] for s in servers.values()}
    assert len(layout) == 1
    same = {"layout": layout.pop(), "dtype": "bf16"}

    def each(way):
        for n, s in servers.items():
            way(n, s)
        seen.append(check_same(servers))
        assert len({str(x[0][0][1]) for x in seen}) == len(seen)  # other numbers each time

    def put(n, s):
        new = body[:head] + policy(1, size // 2)
        sha = hashlib.sha256(new).hexdigest()
        reply = s.client.put("/weights/put", content=new, headers={"X-Clime-SHA256": sha})
        assert reply.status_code == 200, reply.text
        reply = s.client.put("/weights/bad", content=new[:-2] + b"\xc0\x7f", headers={"X-Clime-SHA256": sha})
        assert reply.status_code == 400

    def disk(n, s):
        folder = tmp_path / f"disk-{n}"
        folder.mkdir()
        for path in model.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        (folder / "model.safetensors").write_bytes(body[:head] + policy(2, size // 2))
        s.json("/update_weights_from_disk", {"model_path": str(folder), "weight_version": "disk"})

    owner = Owner(0x10000)  # the right size is said by a server that cannot map so little
    says = ipc(servers[2], 400, mode="share", weight_version="1", handle=Owner(64).handle(), **same)["message"]
    owner = Owner(int(says.rsplit(" ", 1)[1]))

    def copy(n, s):
        owner.map[:] = policy(3, len(owner.map) // 2)
        ipc(s, mode="copy", weight_version="copy", handle=owner.handle(), checksum=checksum(bytes(owner.map)), **same)

    def share(n, s):
        assert "own" in ipc(s, 400, mode="writing")["message"]
        owner.map[:] = policy(4, len(owner.map) // 2)
        ipc(s, mode="share", weight_version="share", handle=owner.handle(), **same)

    def rewritten(n, s):
        ipc(s, mode="writing")
        assert s.post("/generate", {"input_ids": [5]}).status_code == 503
        owner.map[:] = policy(5, len(owner.map) // 2)
        ipc(s, mode="share", weight_version="rewritten", handle=owner.handle(), **same)

    def parts(n, s):  # each rank with memory of its own owner: all or none. One value everywhere, so that places are of no account
        large = [Owner(8 * len(owner.map)) for _ in range(n)]
        for one in [owner, *large]:
            one.fill(0x3C00)
        handles = [one.handle() for one in large]
        before = s.json("/weights_checker", {"action": "checksum"})
        for wrong, says in [
            ({"handles": handles + handles[:1]}, f"{n + 1} handles of parts are not those of a server over {n} device"),
            ({"handles": handles, "mode": "copy", "checksum": "0" * 16}, "handles of parts to be copied need ranges"),
            ({"handles": handles, "handle": handles[0]}, "only one of them"),
            ({"handles": ["00"] * n}, "each of handles must be 128" if n > 1 else "1 handles"),
            ({"handles": [*handles[:-1], Owner(64).handle()]}, f"rank {n - 1}" if n > 1 else "1 handles"),
            ({"handles": [owner.handle(magic=1), *handles[1:]]}, "the handle is none of a CPU's" if n > 1 else "1 handles"),
        ]:
            reply = ipc(s, 400, **{"mode": "share", "weight_version": "parts", **same, **wrong})
            assert says in reply["message"], reply
            assert s.json("/weights_checker", {"action": "checksum"}) == before
        ipc(s, mode="share", weight_version="parts", **({"handles": handles} if n > 1 else {"handle": owner.handle()}), **same)
        ipc(s, mode="writing")
        ipc(s, mode="share", weight_version="parts", **({"handles": handles} if n > 1 else {"handle": owner.handle()}), **same)

    def broadcast(n, s):
        sender = Sender()
        beside(sender.accept, lambda: s.json("/init_weights_update_group", GROUP | {"nccl_id": sender.id()}))
        data = [policy(100 + i, len(t[2]) // 2) for i, t in enumerate(all_of)]
        reply = beside(
            lambda: sender.peer.sendall(b"".join(data)),
            lambda: s.json("/update_weights_from_distributed", lists(all_of, weight_version="broadcast")),
        )
        assert reply["weight_version"] == "broadcast"
        s.json("/destroy_weights_update_group", {"group_name": "g"})
        sender.close()

    def carried(n, s):  # in the request, in two of them
        half = len(all_of) // 2
        for some in (all_of[:half], all_of[half:]):
            head, data = {}, b""
            for name, shape, bytes_ in some:
                new = policy(200 + len(name), len(bytes_) // 2)
                head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(new)]}
                data += new
            text = base64.b64encode(pack(head, data)).decode()
            reply = s.json("/update_weights_from_tensor", {"serialized_named_tensors": [text] * n, "weight_version": "carried"})
        assert reply["message"] == "Weights updated." and reply["weight_version"] == "carried"

    def some(n, s):  # half of the tensors, and then on: not over several devices
        before = s.json("/weights_checker", {"action": "checksum"})
        head = {all_of[0][0]: {"dtype": "BF16", "shape": all_of[0][1], "data_offsets": [0, len(all_of[0][2])]}}
        text = base64.b64encode(pack(head, policy(300, len(all_of[0][2]) // 2))).decode()
        s.json("/update_weights_from_tensor", {"serialized_named_tensors": [text]})
        reply = s.post("/continue_generation")
        if n > 1:
            assert reply.status_code == 400 and "send every tensor" in reply.text, reply.text
            assert s.json("/weights_checker", {"action": "checksum"}) == before
            s.post("/continue_generation")
        else:
            assert reply.status_code == 200

    for way in (put, disk, copy, share, rewritten, parts, broadcast, carried):
        each(way)
    for n, s in servers.items():
        some(n, s)
        carried(n, s)
    assert check_same(servers) == seen[-1]
    snapshot = [s.json("/weights_checker", {"action": "snapshot"}) for s in servers.values()]
    for s in servers.values():
        s.json("/weights_checker", {"action": "reset_tensors"})
        assert "are not those of the snapshot" in s.json("/weights_checker", {"action": "compare"}, 400)["message"]
        values = s.json("/get_weights_by_name", {"name": all_of[1][0], "truncate_size": 3})
        snapshot.append(values)
    assert snapshot[-1] == snapshot[-2] == snapshot[-3]
    check_same(servers)


def test_pause_and_update_in_flight(servers, model):
    """A request that is running goes on with new weights, its KV kept or computed anew, as on one device."""
    body = (model / "model.safetensors").read_bytes()
    sha = hashlib.sha256(body).hexdigest()
    said = {}
    for n, s in servers.items():
        for inflight in ("keep", "recompute"):
            got = []
            ask = {"input_ids": [9, 8, 7], "sampling_params": {"max_new_tokens": 90, "temperature": 1, "sampling_seed": 8, "ignore_eos": True},
                   "return_logprob": True}  # fmt: skip
            s.post("/pause_generation", {"mode": "retract"})
            t = threading.Thread(target=lambda: got.append(s.json("/generate", ask)))
            t.start()
            until(lambda: s.get("/v1/loads").json()["loads"][0]["num_waiting_uncached_tokens"] > 0, "the request")
            reply = s.client.put(f"/weights/{inflight}?inflight={inflight}", content=body, headers={"X-Clime-SHA256": sha})
            assert reply.status_code == 200, reply.text
            s.post("/continue_generation")
            t.join(LIMIT)
            said.setdefault(inflight, []).append(got[0]["meta_info"]["output_token_logprobs"])
    assert all(len(x) == 3 and x[1] == x[0] and x[2] == x[0] and len(x[0]) == 90 for x in said.values())


def test_memory_is_lent_and_comes_back(servers, model):
    before = check_same(servers)
    lent = {}
    for n, s in servers.items():
        lent[n] = s.json("/release_memory_occupation", {"tags": ["kv_cache", "weights"]})
        assert s.post("/generate", {"input_ids": [5]}).status_code == 503
        s.json("/resume_memory_occupation", {"tags": ["kv_cache", "weights"]})
        s.json("/update_weights_from_disk", {"model_path": str(model), "weight_version": before[0][0][-1]})
    assert check_same(servers) == before
    # key/value heads are shared out, 2 over 4 devices twice; of weights all have the embedding and the norms
    assert lent[2]["kv_cache_bytes"] == lent[1]["kv_cache_bytes"] and lent[4]["kv_cache_bytes"] == 2 * lent[1]["kv_cache_bytes"]
    assert lent[1]["weights_bytes"] < lent[2]["weights_bytes"] < 2 * lent[1]["weights_bytes"]


# ---- ranks that do not do their part ----


def lone(model, *words):
    return Program("clime-server", "--model-path", model, "--device", "cpu", "--threads", "1", *words)


@pytest.mark.parametrize("busy", [False, True])
def test_a_killed_rank_ends_the_server(model, busy):
    """At once, whether it computes or sleeps: health flips, requests end, the exit code says that it failed."""
    s = lone(model, "--tp-size", "4")
    others = ranks_of(s.process.pid)
    replies = []
    if busy:  # the engine is in a step that rank 2 does not do its part of
        os.kill(others[2], signal.SIGSTOP)
        t = threading.Thread(target=lambda: replies.append(s.post("/generate", {"input_ids": [5]})))
        t.start()
        until(lambda: s.get("/v1/loads").json()["loads"][0]["num_waiting_reqs"] == 1, "the request")
    os.kill(others[2], signal.SIGKILL)
    assert s.process.wait(LIMIT) != 0
    if busy:
        t.join(LIMIT)
        assert replies[0].status_code == 503 and "the engine is dead" in replies[0].text, replies
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in others.values()), "the end of the others")
    _, log = s.stop()
    assert f"rank 2 of 4 (pid {others[2]})" in log and "the engine is dead" in log, log


def test_a_frozen_rank_ends_the_server_at_the_limit(model):
    s = lone(model, "--tp-size", "2", "--dist-timeout", str(1.5 * SLOW))
    frozen = ranks_of(s.process.pid)[1]
    os.kill(frozen, signal.SIGSTOP)
    assert s.get("/health").status_code == 200  # an idle server waits for nobody
    reply = s.post("/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 4}})
    assert reply.status_code == 503 and "dead" in reply.text, reply.text
    assert s.process.wait(LIMIT) != 0
    until(lambda: not os.path.exists(f"/proc/{frozen}"), "its end")
    _, log = s.stop()
    assert f"rank 1 of 2 (pid {frozen}) is not there within" in log and "the limit of --dist-timeout" in log, log


def test_a_slow_rank_holds_the_others_up(servers):
    """It stops again and again for moments: nobody is named, and no bit changes."""
    s, at_work = servers[2], threading.Event()
    slow = ranks_of(s.process.pid)[1]

    def stop_and_go():
        while not at_work.wait(0.01):
            os.kill(slow, signal.SIGSTOP)
            at_work.wait(0.02)
            os.kill(slow, signal.SIGCONT)

    t = threading.Thread(target=stop_and_go)
    t.start()
    try:
        check_same(servers)
    finally:
        at_work.set()
        t.join(LIMIT)


def test_no_rank_outlives_the_server(model):
    for how in (signal.SIGKILL, signal.SIGTERM):
        s = lone(model, "--tp-size", "2")
        other = ranks_of(s.process.pid)[1]
        os.kill(other, signal.SIGTERM)  # as a batch system does to all; the server decides when it ends
        s.json("/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 4}})
        status, log = s.stop(how)
        assert status == (0 if how == signal.SIGTERM else -signal.SIGKILL), log
        until(lambda: not os.path.exists(f"/proc/{other}"), "its end")


def test_what_cannot_be_shared(model, tmp_path):
    words = ["--model-path", model, "--device", "cpu", "--port", "0"]
    status, _, err = run("clime-server", *words, "--tp-size", "3")
    assert status == 1 and "3 devices cannot share the 4 heads" in err and "these numbers can: 1, 2, 4" in err, err
    status, _, err = run("clime-server", *words, "--tensor-parallel-size", "0")
    assert status == 2 and "tp-size" in err, err
    status, _, err = run("clime-server", *words, "--tp", "2", "--pp-size", "2")
    assert status == 2 and "pp-size" in err, err
    status, _, err = run("clime-server", *words, "--tp", "2", "--ep", "4")
    assert status == 2 and "--ep-size 4 of --tp-size 2: experts lie whole on one device each" in err, err
    status, _, err = run("clime-server", *words, "--tp", "4", "--ep", "2", "--enable-expert-parallel")
    assert status == 2 and "--ep-size 2 of --tp-size 4" in err, err
    for more in (["--ep-size", "2"], ["--enable-expert-parallel"]):
        status, _, err = run("clime-server", *words, "--tp", "2", *more)
        assert status == 1 and "has no experts that could lie whole on a device each" in err, err


# ---- the trainer's servers ----


def test_a_trainer_with_servers_over_several_devices(rl_model):
    """The weights and figures of a run whose servers have one device each, the gap 0 on every token: pushed, and with the
    trainer's own weights handed over at each step; also where the trainer has ranks, too."""
    words = lambda name, *more: command(rl_model, rl_model / name, *more, num_rollout=2, rollout_max_response_len=24)
    sha = run_whole(words("tp-1", "--num-servers", "2"), rl_model / "tp-1.log")
    ways = {
        "tp-2": ["--rollout-num-gpus", "4", "--rollout-num-gpus-per-engine", "2"],
        "tp-2-colocated": ["--sglang-tp-size", "2", "--colocate", "--actor-num-gpus-per-node", "2", "--gradient-lanes", "2"],
    }
    one = run_whole(words("lanes-2", "--gradient-lanes", "2"), rl_model / "lanes-2.log")
    for name, more in ways.items():
        assert run_whole(words(name, *more), rl_model / f"{name}.log") == (one if "lanes" in str(more) else sha)
        steps = [m for m in metrics(rl_model / name) if m["kind"] == "train"]
        assert len(steps) == 4 and steps[0]["train/logprob_gap_tokens"] > 0
        assert all(m["train/train_rollout_logprob_abs_diff"] == 0 for m in steps if m["train/logprob_gap_tokens"])
    for name, gpus in (("tp-1", 2), ("tp-2", 4)):  # the speed is that of a GPU, not of a server
        with contextlib.closing(sqlite3.connect(rl_model / name / "ledger.db")) as db:
            tokens = dict(db.execute("SELECT rollout, sum(n_response) FROM sample_rows GROUP BY 1"))
        for m in metrics(rl_model / name):
            if m["kind"] == "perf":
                each = m["perf/tokens_per_gpu_per_sec"] * m["perf/rollout_time"]
                assert each == pytest.approx(tokens[m["rollout"]] / gpus, rel=1e-3), name
    logs = list((rl_model / "tp-2" / "logs").glob("server-*.log"))
    assert len(logs) == 2 and all("2 devices share the model" in log.read_text() for log in logs)


def test_a_trainers_server_that_loses_a_rank(rl_model):
    """It ends, is started again with all its ranks, and the run with the same weights."""
    go = rl_model / "lost.go"
    words = lambda name, *more: command(rl_model, rl_model / name, *more, **held_until(go, 2 * 24), eval_rm_type="random",
                                        num_rollout=6, rollout_max_response_len=24)  # fmt: skip
    p = start(words("lost", "--rollout-num-gpus-per-engine", "2"), rl_model / "lost.log")
    until(lambda: steps_done(rl_model, "lost") >= 1, "the first step")
    server_pid = next(pid for pid, name in children(p.pid).items() if name == "clime-server")
    os.kill(ranks_of(server_pid)[1], signal.SIGKILL)
    go.touch()
    assert p.wait(2 * LIMIT) == 0, (rl_model / "lost.log").read_text()[-2000:]
    assert events(rl_model, "lost", "child") == ["server-0 died"]
    assert final_sha(rl_model / "lost.log") == run_whole(words("whole"), rl_model / "whole.log")


def test_servers_that_do_not_add_up(rl_model):
    for more, says in [
        (["--rollout-num-gpus", "3", "--rollout-num-gpus-per-engine", "2"], "no multiple"),
        (["--rollout-num-gpus", "4", "--num-servers", "3"], "are 4 servers of 1 devices"),
        (["--router-url", "http://127.0.0.1:9", "--rollout-num-gpus-per-engine", "2"], "it is of servers that the trainer starts"),
    ]:
        done = subprocess.run(command(rl_model, rl_model / "none", *more), capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 1 and says in done.stderr, done.stderr
