"""Guessed rows (--speculative-algorithm NGRAM): the replies are those of a server without, bit for bit, whatever is asked
and whatever comes in between; and the server says how well it guesses."""

import concurrent.futures
import contextlib
import json
import re

import pytest
from programs import run, server, tiny_model
from test_devices import replies

ALL = ["--speculative-algorithm", "NGRAM", "--no-speculative-adaptive"]  # every guess runs that there is room for
SPEC = {"spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_accept_rate", "spec_accept_length"}
OWN = SPEC | {"id", "e2e_latency", "response_sent_to_client_ts", "cached_tokens", "cached_tokens_details", "num_retractions"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    shape = {"num-hidden-layers": 2, "num-attention-heads": 4, "num-key-value-heads": 2, "head-dim": 16}
    return tiny_model(tmp_path_factory.mktemp("drafting") / "m", **shape)


WAYS = {
    "plain": [],
    "all": [*ALL, "--speculative-num-draft-tokens", 6],
    "scarce": [*ALL, "--max-total-tokens", 1024, "--chunked-prefill-size", 40, "--max-running-requests", 12],
    "not cached": [*ALL, "--disable-radix-cache", "--speculative-num-draft-tokens", 64],
    "adaptive": ["--speculative-algorithm", "NGRAM"],
}


@pytest.fixture(scope="module")
def servers(model):
    with contextlib.ExitStack() as all_of:
        yield {name: all_of.enter_context(server("--threads", 1, *words, model=model)) for name, words in WAYS.items()}


def body(i, temperature=0.0, new=120, **more):
    params = {"temperature": temperature, "max_new_tokens": new, "sampling_seed": i, "ignore_eos": True}
    top = {k: more.pop(k) for k in list(more) if k in ("logprob_start_len", "token_ids_logprob", "stream", "rid", "input_ids",
                                                   "return_sampling_mask")}
    given = {"input_ids": [(k * k + 7 * i) % 250 for k in range(3 + 11 * i % 90)], "return_logprob": True, "top_logprobs_num": i % 3}
    return given | top | {"sampling_params": params | more}


# what may be guessed for, and what may not: draws whose edits change from token to token
GUESSED = {
    "greedy": body(1), "long": body(2, new=300), "warm": body(3, 0.4), "n": body(4, 0.7, n=4), "random": body(5, 1.5, top_p=0.9, top_k=40),
    "end": body(6, ignore_eos=False), "one token": body(7, new=1), "two tokens": body(8, new=2), "no token": body(9, new=0),
    "scored": body(10, logprob_start_len=0), "ids": body(11, token_ids_logprob=[3, 17, 200]), "bias": body(12, logit_bias={"11": 2.5}),
    "masks": body(14, 0.4, top_k=9, top_p=0.95, return_sampling_mask=True), "cold masks": body(16, return_sampling_mask=True),
    "allowed": body(13, 1.0, allowed_token_ids=[3, 5, 200, 201]),
}  # fmt: skip
EDITED = {
    "repetition": body(20, repetition_penalty=1.3), "frequency": body(21, frequency_penalty=0.3), "presence": body(22, presence_penalty=0.5),
    "minimum": body(23, min_new_tokens=119), "grammar": body(24, new=40, regex="(ab|cd|[0-9]){30}", ignore_eos=False),
}  # fmt: skip


def told(reply):
    """All of a reply but what time and chance decide."""
    return [{**r, "meta_info": {k: v for k, v in r["meta_info"].items() if k not in OWN}} for r in (reply if isinstance(reply, list) else [reply])]


def at_once(s, bodies):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
        return dict(zip(bodies, threads.map(lambda b: s.json("/generate", b), bodies.values()), strict=True))


@pytest.fixture(scope="module")
def plain(servers):
    return {name: s for name, s in at_once(servers["plain"], GUESSED | EDITED).items()}


@pytest.mark.parametrize("way", [w for w in WAYS if w != "plain"])
def test_the_same_replies(servers, plain, way):
    for together in (False, True):  # the second time with siblings' text to guess from
        every = GUESSED | EDITED
        got = at_once(servers[way], every) if together else {name: servers[way].json("/generate", b) for name, b in every.items()}
        for name, reply in got.items():
            assert told(reply) == told(plain[name]), (way, name, together)
        for name in EDITED:
            assert got[name]["meta_info"]["spec_num_proposed_drafts"] == 0, name
        for meta in [r["meta_info"] for reply in got.values() for r in (reply if isinstance(reply, list) else [reply])]:
            steps, guessed, right = meta["spec_verify_ct"], meta["spec_num_proposed_drafts"], meta["spec_num_correct_drafts"]
            assert 0 <= right <= guessed and steps + right == meta["completion_tokens"]
            assert meta["spec_accept_rate"] == (right / guessed if guessed else 0)
            assert meta["spec_accept_length"] == (meta["completion_tokens"] / steps if steps else 0)
        if way != "adaptive" and not together:  # alone it has room
            assert got["long"]["meta_info"]["spec_num_correct_drafts"] > 100
    assert not SPEC & plain["greedy"]["meta_info"].keys()


def test_stops_and_streams(servers):
    """A string or a token to stop at in the middle of what was guessed; deltas add up to the whole."""
    letters = lambda **more: body(30, 0.5, allowed_token_ids=list(range(97, 110)), ignore_eos=False, **more)
    whole = servers["plain"].json("/generate", letters())
    ids, text = whole["output_ids"], whole["text"]
    last = max(range(120), key=lambda k: ids.index(ids[k]))  # the token that comes first as late as any
    stops = {"id": letters(stop_token_ids=[ids[last]]), "both": letters(stop_token_ids=[ids[last]], stop=[text[20:24]])}
    stops |= {f"string {k}": letters(stop=[text[k : k + 5]]) for k in (5, 40, 80)}
    expected = at_once(servers["plain"], stops)
    assert all(r["meta_info"]["finish_reason"]["type"] == "stop" for r in expected.values())
    for way in ("all", "scarce", "adaptive"):
        for name, reply in at_once(servers[way], stops).items():
            assert told(reply) == told(expected[name]), (way, name)
        for name, b in {"whole": letters(), **stops}.items():
            events = [json.loads(e) for e in servers[way].events("/generate", b | {"stream": True}) if e != "[DONE]"]
            assert told(events[-1]) == told(expected.get(name, whole)), (way, name)
            assert [len(e["output_ids"]) for e in events] == sorted(len(e["output_ids"]) for e in events)


def test_what_comes_in_between(servers, plain, model):
    """Aborts, pauses of every mode and updates to the same weights, over and over while guesses run."""
    s = servers["all"]
    everything = {f"{name} {k}": b | {"rid": f"{name}/{k}"} for name, b in GUESSED.items() if name != "no token" for k in range(3)}
    long = {f"cut {k}": body(2, new=3000, rid=f"cut/{k}", input_ids=GUESSED["long"]["input_ids"]) for k in range(4)}
    with concurrent.futures.ThreadPoolExecutor(len(everything) + len(long)) as threads:
        running = {name: threads.submit(s.json, "/generate", b) for name, b in (everything | long).items()}
        k = 0
        while k < 40 and not all(f.done() for name, f in running.items() if name in everything):
            s.json("/pause_generation", {"mode": ("in_place", "retract")[k % 2]})
            if k % 3 == 0:
                s.json("/update_weights_from_disk", {"model_path": str(model), "weight_version": "default", "flush_cache": False})
            s.json("/continue_generation", {})
            if k >= 3:
                s.json("/abort_request", {"rid": f"cut/{k % 4}"})
            k += 1
        s.json("/abort_request", {"rid": "cut/"})
        got = {name: f.result() for name, f in running.items()}
    for name in everything:
        for x, y in zip(told(got[name]), told(plain[name.rsplit(" ", 1)[0]]), strict=True):
            for key in ("kept_kv", "token_versions", "weight_version"):
                x["meta_info"].pop(key), y["meta_info"].pop(key)
            assert x == y, name
    whole = servers["plain"].json("/generate", body(2, new=3000, input_ids=GUESSED["long"]["input_ids"]))
    for name in long:
        n = len(got[name]["output_ids"])
        assert got[name]["output_ids"] == whole["output_ids"][:n]
        assert got[name]["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"][:n]


def test_several_devices(model):
    words = ["--device", "cpu", "--threads", "1", "--chunked-prefill-size", "48", "--max-running-requests", "12"]
    with server(*words, model=model) as alone, server("--tp-size", 2, *words, *ALL, model=model) as two:
        assert replies(two) == replies(alone)
        assert two.get("/server_info").json()["internal_states"][0]["avg_spec_accept_length"] > 1


def test_how_well_it_guesses(servers):
    s = servers["all"]
    text = s.get("/metrics").text
    value = lambda name: float(re.search(rf"^sglang:{name}{{[^}}]*}} (\S+)$", text, re.M)[1])
    guessed, right = value("spec_num_proposed_drafts_total"), value("spec_num_correct_drafts_total")
    assert guessed > right > 0 and value("spec_accept_length") > 1 and 0 < value("spec_accept_rate") < 1
    info = s.get("/server_info").json()["internal_states"][0]
    assert info["avg_spec_accept_length"] == pytest.approx(value("spec_accept_length"), rel=1e-3)
    assert servers["plain"].get("/server_info").json()["internal_states"][0]["avg_spec_accept_length"] == 1


@pytest.mark.parametrize("flags, why", [
    (["--speculative-algorithm", "EAGLE"], "NGRAM"), (["--speculative-algorithm", "NGRAM", "--max-running-requests", "1"], "2 or more"),
    (["--speculative-num-draft-tokens", "1"], "--speculative-num-draft-tokens")])  # fmt: skip
def test_what_is_refused(flags, why):
    status, _, err = run("clime-server", "--model-path", "/nowhere", *flags)
    assert status == 2 and why in err
