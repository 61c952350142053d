"""A mixture of experts through the real programs: the same weights whatever the fleet and its limits, gap 0 over batching,
chunks of prefill, cached prefixes and members of a group, and a saved folder that is the model again. The folder it comes
from holds all experts of a layer in one tensor, as transformers 5 may write them, and a layer more than the model has.
"""

import base64
import contextlib
import hashlib
import json
import random
import re
import shutil
import sqlite3
import struct
import subprocess

import pytest
from programs import run, server, web
from test_bad_folders import change_config, pack, read_tensors
from test_external import Proxy, fleet
from test_fleet import Run, rl
from test_rl import LIMIT, TRAIN, check_record, command, metrics, run_whole
from test_server import held_under_way, in_background, wait_for

SHAPE = ["--family", "glm4_moe", "--hidden-size", 64, "--intermediate-size", 96, "--num-hidden-layers", 3,
         "--num-dense-layers", 1, "--num-experts", 6, "--num-experts-per-tok", 2, "--moe-intermediate-size", 40,
         "--num-attention-heads", 2, "--num-key-value-heads", 1, "--head-dim", 32, "--max-position-embeddings", 256,
         "--init-std", 0.1]  # fmt: skip


FURTHER = "model.layers.3.mtp.weight"


def rewrite(folder):
    """Biases that matter, fused experts in the second layer, and a tensor of a layer that predicts further tokens."""
    header, data = read_tensors(folder)
    header.pop("__metadata__")
    tensors = {n: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for n, t in header.items()}
    random.seed(3)
    for name, (dtype, shape, _) in tensors.items():
        if name.endswith("e_score_correction_bias"):
            assert (dtype, shape) == ("F32", [6])
            tensors[name] = (dtype, shape, struct.pack("<6f", *(random.gauss(0, 0.1) for _ in range(6))))
    each = lambda e, part: tensors.pop(f"model.layers.1.mlp.experts.{e}.{part}_proj.weight")[2]
    both = b"".join(each(e, "gate") + each(e, "up") for e in range(6))
    tensors["model.layers.1.mlp.experts.gate_up_proj"] = ("BF16", [6, 80, 64], both)
    tensors["model.layers.1.mlp.experts.down_proj"] = ("BF16", [6, 64, 40], b"".join(each(e, "down") for e in range(6)))
    tensors[FURTHER] = ("F64", [2, 1], struct.pack("<2d", 0.1, float("nan")))
    out, blob = {}, b""
    for name, (dtype, shape, bytes_) in tensors.items():
        out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(blob), len(blob) + len(bytes_)]}
        blob += bytes_
    (folder / "model.safetensors").write_bytes(pack(out, blob))
    change_config(num_nextn_predict_layers=1)(folder)


def make(d, shape, change):
    """A model of the shape, changed, and a task beside it."""
    do = lambda *a: subprocess.run([TRAIN, *map(str, a)], check=True, capture_output=True, timeout=LIMIT)
    do("init", d / "init", *shape)
    change(d / "init")
    do("task", d / "task", "--kind", "add", "--max-operand", 9, "--num-warmup", 40, "--num-heldout", 20)
    return d


def check_routing(run_dir):
    """The experts that drew a token in a server are those that the trainer chooses: of every token whose number is
    compared, and in every step, one way or another recorded."""
    steps = [m for m in metrics(run_dir) if m["kind"] == "train" and m["train/logprob_gap_tokens"]]
    assert steps and all(m["train/routing_tokens"] == m["train/logprob_gap_tokens"] for m in steps)
    assert not any("train/routing_wrong" in m for m in steps)
    with contextlib.closing(sqlite3.connect(run_dir / "ledger.db")) as db:
        found = db.execute("SELECT n_response, routing FROM samples").fetchall()
    hashes = [struct.unpack(f"<{n}I", routing) for n, routing in found]
    assert len({h for row in hashes for h in row}) > 5 and all(any(row) for row in hashes)


def train_undisturbed(model):
    sha = run_whole(command(model, model / "undisturbed", "--save-hf", model / "hf"), model / "undisturbed.log")
    check_record(model / "undisturbed")
    check_routing(model / "undisturbed")
    return sha


def check_same_weights(model, sha, recompute, *more):
    """Two servers over two devices each, few requests at a time, prompts in chunks, layers computed again."""
    more = ["--rollout-num-gpus", "4", "--rollout-num-gpus-per-engine", "2", "--server-max-running-requests", "3", "--server-chunked-prefill-size", "7",
            "--recompute-granularity", recompute, *more]  # fmt: skip
    assert run_whole(command(model, model / "other", *more), model / "other.log") == sha
    check_record(model / "other")
    check_routing(model / "other")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make(tmp_path_factory.mktemp("experts"), SHAPE, rewrite)


@pytest.fixture(scope="module")
def undisturbed(model):
    return train_undisturbed(model)


def test_same_weights(model, undisturbed):
    """Every expert whole on one of a server's devices."""
    check_same_weights(model, undisturbed, "full", "--sglang-ep-size", "2")
    logs = [log.read_text() for log in (model / "other" / "logs").glob("server-*.log")]
    assert len(logs) == 2 and all("experts whole" in log for log in logs)


CRITIC = ["--advantage-estimator", "ppo", "--critic-lr", "1e-3"]
SHARED = [*CRITIC, "--context-parallel-size", "2"]


@pytest.mark.parametrize("more", [CRITIC, SHARED], ids=["critic", "shared"])
def test_experts_that_stay_with_a_rank(model, more):
    """Policy, critic and reference with half of the experts on each of two ranks and of the next two, where other weights lie in
    parts: figures and weights are those of one rank, and servers get the weights as from it. Also where two ranks share a
    micro-batch."""
    terms = [*more, "--use-kl-loss", "--kl-loss-coef", "0.01", "--ref-update-interval", "2", "--entropy-coef", "0.001", "--use-tis",
             "--gradient-lanes", "4"]  # fmt: skip
    done = {}
    for n, over in ((1, 1), (4, 2)):
        name = f"stay-{n}-{more[-1]}"
        run_dir, log = model / name, model / f"{name}.log"
        words = [*terms, "--actor-num-gpus-per-node", str(n), "--expert-model-parallel-size", str(over)]
        sha = run_whole(command(model, run_dir, *words, num_rollout=3), log)
        check_routing(run_dir)
        done[n] = sha, [{k: v for k, v in m.items() if k.startswith("train/")} for m in metrics(run_dir) if m["kind"] == "train"]
    assert any(m["train/kl_loss"] != 0 for m in done[1][1]) and all(m["train/value_loss"] > 0 for m in done[1][1])
    assert done[4] == done[1]


def logps(reply):
    return [x[0] for x in reply["meta_info"]["output_token_logprobs"]]


def ids(reply):
    return [x[1] for x in reply["meta_info"]["output_token_logprobs"]]


def check_one_number(folder):
    """Members of a group, others beside them, a prompt in chunks and from the cache: the number of a token alone."""
    prompt = [(7 * i) % 250 for i in range(150)]
    sampling = {"max_new_tokens": 12, "temperature": 1, "ignore_eos": True, "sampling_seed": 5}
    with server(model=folder) as s:
        group = s.json("/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": {**sampling, "n": 4}})
        again = s.json("/generate", {"input_ids": prompt, "return_logprob": True, "sampling_params": {**sampling, "n": 4}})
        assert [logps(x) for x in again] == [logps(x) for x in group] and len({tuple(ids(x)) for x in group}) > 1
    with server("--chunked-prefill-size", "9", "--disable-radix-cache", "--max-running-requests", "2",
                model=folder) as s:  # fmt: skip
        for member in group:
            scored = s.json("/generate", {"input_ids": prompt + ids(member), "return_logprob": True,
                                          "logprob_start_len": len(prompt),
                                          "sampling_params": {"max_new_tokens": 0}})  # fmt: skip
            assert [x[0] for x in scored["meta_info"]["input_token_logprobs"]][-12:] == logps(member)


def spoil_router(folder, to):
    """Another folder, in which the router of the last layer is another one: its weights with their signs turned."""
    shutil.copytree(folder, to)
    header, data = read_tensors(to)
    header.pop("__metadata__", None)
    name = max(n for n in header if n.endswith("mlp.gate.weight"))
    first, end = header[name]["data_offsets"]
    turned = b"".join(struct.pack("<H", h ^ 0x8000) for (h,) in struct.iter_unpack("<H", data[first:end]))
    (to / "model.safetensors").write_bytes(pack(header, data[:first] + turned + data[end:]))
    return to


def routing(reply):
    hashes = reply["meta_info"]["routing_hashes"]
    assert len(hashes) == len(reply["output_ids"]) and all(0 < h < 1 << 32 for h in hashes)
    return hashes


def test_routing_hashes(model, tmp_path):
    """They follow from the tokens before and the weights alone: members of a group, streams, what is resumed, chunks, no
    cache; and another router is told by them, though it gives the token that was given anyway."""
    prompt = [(11 * i) % 250 for i in range(100)]
    body = {"input_ids": prompt, "return_routing_hashes": True,
            "sampling_params": {"max_new_tokens": 20, "temperature": 1, "ignore_eos": True, "sampling_seed": 3}}  # fmt: skip
    three = {**body, "sampling_params": {**body["sampling_params"], "n": 3}}
    with server(model=model / "init") as s:
        group = s.json("/generate", three)
        want = [(x["output_ids"], routing(x)) for x in group]
        assert len({h for _, hashes in want for h in hashes}) > 5
        assert [(x["output_ids"], routing(x)) for x in s.json("/generate", three)] == want  # from the cache
        assert "routing_hashes" not in s.json("/generate", {**body, "return_routing_hashes": False})["meta_info"]
        one = s.json("/generate", body)
        events = s.events("/generate", {**body, "stream": True, "incremental_streaming_output": True})
        assert [h for e in events[:-1] for h in json.loads(e)["meta_info"]["routing_hashes"]] == routing(one)
        part = {**one, "output_ids": one["output_ids"][:8],
                "meta_info": {**one["meta_info"], "token_versions": [["default", 8]]}}  # fmt: skip
        again = s.json("/generate", {**body, "resume": part})
        assert again["meta_info"]["resumed_tokens"] == 8 and routing(again) == routing(one)
        del part["meta_info"]["routing_hashes"]  # of a server that did not say them: not known
        assert s.json("/generate", {**body, "resume": part})["meta_info"]["routing_hashes"] == [0] * 8 + routing(one)[8:]
    with server("--chunked-prefill-size", "9", "--disable-radix-cache", "--max-running-requests", "2",
                model=model / "init") as s:  # fmt: skip
        assert [(x["output_ids"], routing(x)) for x in s.json("/generate", three)] == want
        assert "return_routing_hashes" in json.dumps(s.json("/generate", {**body, "return_routing_hashes": 1}, 400))
    given = one["output_ids"][0]
    with server(model=spoil_router(model / "init", tmp_path / "spoiled")) as s:
        forced = {**body, "sampling_params": {**body["sampling_params"], "max_new_tokens": 1, "allowed_token_ids": [given]}}
        reply = s.json("/generate", forced)
        assert reply["output_ids"] == [given] and routing(reply)[0] != routing(one)[0]
    with server() as s:
        assert "the model has no experts" in json.dumps(s.json("/generate", body, 400))


def choices(reply, from_=0):
    """[position][layer] of the experts that were chosen there, as SGLang's clients read them."""
    meta = reply["meta_info"]
    assert meta["routed_experts_start_len"] == from_
    flat = [x for (x,) in struct.iter_unpack("<i", base64.b64decode(meta["routed_experts"], validate=True))]
    assert len(flat) == (meta["prompt_tokens"] + meta["completion_tokens"] - 1 - from_) * 3 * 2
    return [[tuple(flat[p + 2 * layer : p + 2 * layer + 2]) for layer in range(3)] for p in range(0, len(flat), 6)]


def fold(layers):
    """A row's routing hash from what its layers chose (kernels/checksum.h)."""
    word, h = 0xFFFFFFFF, 0
    for experts in layers:
        terms = 0
        for e in experts:
            x = (e + 1) * 0x9E3779B1 & word
            x = (x ^ x >> 15) * 0x85EBCA6B & word
            terms += x ^ x >> 13
        x = (((h << 7 | h >> 25) ^ terms) & word) * 0xC2B2AE35 & word
        h = x ^ x >> 16
    return h


def test_routed_experts(model):
    """Every position's choices but the last token's: computed, found in the cache, forked from another member, in chunks;
    and they are those that the hashes are of."""
    prompt = [(13 * i) % 250 for i in range(140)]
    body = {"input_ids": prompt, "return_routing_hashes": True, "return_routed_experts": True,
            "sampling_params": {"max_new_tokens": 9, "temperature": 1, "ignore_eos": True, "sampling_seed": 4, "n": 3}}  # fmt: skip
    one = {**body, "sampling_params": {**body["sampling_params"], "n": 1}}
    with server("--enable-return-routed-experts", model=model / "init") as s:
        first = s.json("/generate", body)
        again = s.json("/generate", body)
        assert again[0]["meta_info"]["cached_tokens"] > 100
        chosen = [choices(x) for x in first]
        assert [choices(x) for x in again] == chosen
        for reply, of in zip(first, chosen, strict=True):
            assert of[:140] == chosen[0][:140]
            assert all(p[0] == (0, 0) and all(0 <= a < b < 6 for a, b in p[1:]) for p in of)  # the first layer is dense
            assert [fold(p[1:]) for p in of[139:]] == routing(reply)
        assert len({p[2] for of in chosen for p in of}) > 3
        alone = s.json("/generate", {**one, "routed_experts_start_len": 130})
        assert choices(alone, 130) == choices(s.json("/generate", one))[130:]
        events = [json.loads(e)["meta_info"] for e in s.events("/generate", {**one, "stream": True})[:-1]]
        assert events[-1]["routed_experts"] == s.json("/generate", one)["meta_info"]["routed_experts"]
        assert not any("routed_experts" in e for e in events if not e["finish_reason"])
        stops = {**one, "sampling_params": {**one["sampling_params"], "stop": [s.json("/generate", one)["text"][3:5]]}}
        *_, last, done = s.events("/generate", {**stops, "stream": True})  # its text ends before the engine knows it
        last, whole = json.loads(last), s.json("/generate", stops)
        assert last["meta_info"]["finish_reason"]["type"] == "stop" and choices(last) == choices(whole)
        for start in -1, "x":
            assert "routed_experts_start_len" in json.dumps(s.json("/generate", {**one, "routed_experts_start_len": start}, 400))
        whole = s.json("/generate", {**one, "return_logprob": True})
        part = {**whole, "output_ids": whole["output_ids"][:5],
                "meta_info": {**whole["meta_info"], "token_versions": [["default", 5]]}}  # fmt: skip
        resumed = s.json("/generate", {**one, "return_logprob": True, "resume": part})
        assert resumed["meta_info"]["resumed_tokens"] == 5 and choices(resumed) == choices(whole)
    with server("--enable-return-routed-experts", "--chunked-prefill-size", "9", "--disable-radix-cache",
                "--max-running-requests", "2", model=model / "init") as s:  # fmt: skip
        assert [choices(x) for x in s.json("/generate", body)] == chosen
    with server(model=model / "init") as s:
        assert "--enable-return-routed-experts" in json.dumps(s.json("/generate", one, 400))


def test_routed_experts_of_the_aborted(model):
    """All that their tokens make known, or none: clients shape the array by the tokens that came."""
    body = {"input_ids": list(range(140)), "return_routed_experts": True, "sampling_params": {"max_new_tokens": 110, "ignore_eos": True, "n": 16}}
    with server("--enable-return-routed-experts", model=model / "init") as s:
        for mode in "in_place", "retract":  # without its KV it knows them still: so may be whose text has ended meanwhile
            call = held_under_way(s, body, 16)
            s.json("/pause_generation", {"mode": mode})
            s.json("/abort_request", {"abort_all": True})
            s.json("/continue_generation", {})
            for reply in call.result(LIMIT):
                assert reply["meta_info"]["completion_tokens"] > 0 and choices(reply)
        s.json("/pause_generation", {})
        call = in_background(lambda: web.post(s.url + "/generate", json=body, timeout=LIMIT).json())
        wait_for(lambda: s.json("/abort_request", {"abort_all": True})["num_aborted"] == 16)
        s.json("/continue_generation", {})
        assert not any("routed_experts" in reply["meta_info"] for reply in call.result(LIMIT))


def test_a_bias_that_only_chooses_is_shown_as_files_have_it(model):
    """The buffer holds it in three parts, which are nobody else's matter."""
    header, data = read_tensors(model / "init")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    raw = data[slice(*header[name]["data_offsets"])]
    with server(model=model / "init") as s:
        assert s.json("/get_weights_by_name", {"name": name}) == pytest.approx(struct.unpack("<6f", raw), rel=1e-6)
        assert len(s.json("/get_weights_by_name", {"name": name, "truncate_size": 2})) == 2
        sums = s.json("/weights_checker", {"action": "checksum"})["ranks"][0]["checksums"]
        assert sums[name] == hashlib.sha256(raw).hexdigest()


def test_routed_experts_have_a_byte_budget(model):
    """Six numbers a position, ten bytes each: a request that could take more is refused before any work."""
    body = {"input_ids": [[5] * 200] * 200, "return_routed_experts": True, "sampling_params": {"max_new_tokens": 2}}
    with server("--enable-return-routed-experts", "--max-logprob-bytes", "1m", "--max-queued-requests", "400",
                model=model / "init") as s:  # fmt: skip
        assert "routed experts" in s.json("/generate", body, 400)["message"]
        assert "routed experts" in s.json("/generate", {**body, "stream": True}, 400)["message"]
        assert len(s.json("/generate", {**body, "routed_experts_start_len": 190})) == 200
        assert len(s.json("/generate", {**body, "return_routed_experts": False})) == 200


def test_other_experts_are_told(model, tmp_path):
    """A server whose routers choose otherwise for one token, by what it says: an alarm in the ledger with the token's
    place, and the end of the run, since its numbers must be equal."""

    def change(path, body):
        if path != "/generate":
            return body
        reply = json.loads(body)
        hashes = reply["meta_info"]["routing_hashes"]
        hashes[2:3] = [h ^ 1 << 17 for h in hashes[2:3]]
        return json.dumps(reply).encode()

    with fleet(tmp_path, model / "init", 1) as (router, _), Proxy(router, change=change) as p:
        run = Run(rl(model, tmp_path / "run", "--router-url", p.url, "--gap-must-be-zero", server_threads=None, num_rollout=1))
        log = run.end(status=1)
    says = re.search(r"(\d+) of (\d+) tokens were drawn by other experts than the trainer chooses, the first is token 2 of "
                     r"sample 0/\d/\d, part 0: its hash does not tell in which layer", log)  # fmt: skip
    assert says and 0 < int(says[1]) < int(says[2]), log
    with contextlib.closing(sqlite3.connect(run.dir / "ledger.db")) as db:
        (event,) = [json.loads(t) for (t,) in db.execute("SELECT detail FROM events WHERE kind = 'alarm'")
                    if json.loads(t)["alarm"] == "routing"]  # fmt: skip
    assert says[0] in json.dumps(event) and event["state"] == "raised"


def test_one_number(model):
    check_one_number(model / "init")


def test_saved_folder(model, undisturbed):
    """It has the names of the family, an expert each; what no step changes is as it was; and it is served."""
    given, given_data = read_tensors(model / "init")
    saved, data = read_tensors(model / "hf")
    config = json.loads((model / "hf" / "config.json").read_text())
    assert config["first_k_dense_replace"] == 1 and config["num_nextn_predict_layers"] == 1
    assert "model.layers.1.mlp.experts.5.down_proj.weight" in saved and "model.layers.0.mlp.up_proj.weight" in saved
    assert "model.layers.1.mlp.experts.down_proj" not in saved
    same = [n for n in given if n == FURTHER or n.endswith("correction_bias")]
    assert len(same) == 3
    for name in same:
        a, b = given[name], saved[name]
        assert (a["dtype"], a["shape"]) == (b["dtype"], b["shape"])
        assert given_data[slice(*a["data_offsets"])] == data[slice(*b["data_offsets"])]
    with server(model=model / "hf") as s:
        assert ids(s.json("/generate", {"input_ids": [5], "return_logprob": True, "sampling_params": {"max_new_tokens": 3}}))


def test_init_says_what_does_not_fit(tmp_path):
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "qwen3", "--num-experts", "4")
    assert status != 0 and "--family qwen3 has no experts" in err
    status, _, err = run("clime-train", "init", tmp_path / "a", "--family", "qwen3_moe", "--num-experts-per-tok", "9")
    assert status != 0 and "--num-experts-per-tok is above --num-experts" in err
