"""return_sampling_mask: what each token was drawn from, and its log-probability over those ids alone, against the
rule in doubles; the same in streams, batches and under a router; and it changes nothing of what is drawn."""

import itertools
import json
import math

import pytest
from programs import chat_model, router_to, server, tiny_model

VOCAB = 512
MASK, LOGP = "output_token_sampling_mask", "output_token_sampling_logprobs"


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    with server("--return-sampling-mask", model=chat_model(tmp_path_factory.mktemp("chat"))) as made:
        yield made


def ask(new=24, text="Once upon a time", mask=True, **params):
    params = {"max_new_tokens": new, "sampling_seed": 7, "ignore_eos": True} | params
    return {"text": text, "return_sampling_mask": mask, "sampling_params": params}


def kept(z, top_k=-1, top_p=1.0, min_p=0.0):
    """The ids that a draw keeps of z = logits / T, and their log-probabilities: by (value, lowest id first) top_k, then
    top_p of those, then min_p of those."""
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if top_k > 0:
        order = order[:top_k]
    p = [math.exp(z[i] - z[order[0]]) for i in order]
    before = [0, *itertools.accumulate(p)]
    order = [i for i, w, b in zip(order, p, before, strict=False) if w > 0 and w >= min_p and (top_p == 1 or b < top_p * sum(p))]
    total = math.log(sum(math.exp(z[i]) for i in order))
    return {i: z[i] - total for i in order}


CUTS = {
    "count": {"top_k": 5},
    "mass": {"top_p": 0.8},
    "both, cold": {"top_k": 40, "top_p": 0.9, "temperature": 0.3},
    "both, hot": {"top_k": 40, "top_p": 0.9, "temperature": 1.7},
    "least": {"top_p": 0.99, "min_p": 0.1},
    "one": {"top_k": 1},
    "bias": {"top_p": 0.9, "logit_bias": {"9": 3.5, "410": -4, "261": 2}},
    "allowed": {"top_k": 6, "allowed_token_ids": [*range(300, 340)]},
    "penalty": {"top_p": 0.7, "presence_penalty": 0.9},
}


def edited(z, params, before):
    t, allowed = params.get("temperature", 1), params.get("allowed_token_ids", range(VOCAB))
    bias = {int(i): b / t for i, b in params.get("logit_bias", {}).items()}
    penalty = params.get("presence_penalty", 0) / t
    return [v + bias.get(i, 0) - penalty * (i in before) if i in allowed else -math.inf for i, v in enumerate(z)]


def test_masks_are_what_the_cuts_leave(s):
    bodies = [ask(**params) | {"token_ids_logprob": [*range(VOCAB)], "return_logprob": True} for params in CUTS.values()]
    one = bodies[0] | {"text": [b["text"] for b in bodies], "sampling_params": [b["sampling_params"] for b in bodies]}
    one["token_ids_logprob"] = [[*range(VOCAB)]] * len(bodies)
    for (name, params), reply, body in zip(CUTS.items(), s.json("/generate", one), bodies, strict=True):
        meta, ids = reply["meta_info"], reply["output_ids"]
        cuts = {k: v for k, v in params.items() if k in ("top_k", "top_p", "min_p")}
        assert len(meta[MASK]) == len(meta[LOGP]) == meta[MASK + "_length"] == len(ids) == 24
        for k, token in enumerate(ids):
            z = [lp for lp, _, _ in meta["output_token_ids_logprobs"][k]]
            want = kept(edited(z, params, ids[:k]), **cuts)
            assert meta[MASK][k] == sorted(want), (name, k)
            assert token in want and meta[LOGP][k] == pytest.approx(want[token], abs=2e-5), (name, k)
        plain = s.json("/generate", body | {"return_sampling_mask": False})
        assert plain["output_ids"] == ids and plain["meta_info"]["output_token_logprobs"] == meta["output_token_logprobs"]
        assert not [k for k in plain["meta_info"] if "sampling" in k]


def test_greedy_grammar_and_no_tokens(s):
    greedy = s.json("/generate", ask(temperature=0))
    assert greedy["meta_info"][MASK] == [[i] for i in greedy["output_ids"]] and set(greedy["meta_info"][LOGP]) == {0}
    grammar = s.json("/generate", ask(top_k=50, top_p=0.99, regex="(ab|cd|[0-9]){30}", ignore_eos=False))
    masks = grammar["meta_info"][MASK]
    assert len(masks[0]) > 1 and all(i in m for i, m in zip(grammar["output_ids"], masks, strict=True))
    free = s.json("/generate", ask(top_k=50, top_p=0.99))["meta_info"][MASK]
    assert set(masks[0]) != set(free[0])
    none = s.json("/generate", ask(new=0, top_k=4))["meta_info"]
    assert none[MASK] == none[LOGP] == [] and none[MASK + "_length"] == 0


def test_streams_batches_and_samples(s):
    body = ask(top_k=20, top_p=0.9, n=2) | {"text": ["Once upon", "Tom and"], "return_sampling_mask": [True, False]}
    whole = s.json("/generate", body)
    assert [MASK in r["meta_info"] for r in whole] == [True, True, False, False]
    assert whole[0]["meta_info"][MASK] != whole[1]["meta_info"][MASK]
    for incremental in (False, True):
        got = [{MASK: [], LOGP: []} for _ in whole]
        for e in s.events("/generate", body | {"stream": True, "incremental_streaming_output": incremental})[:-1]:
            e = json.loads(e)
            for name in (MASK, LOGP):
                new, meta = got[e["index"]], e["meta_info"]
                new[name] = new[name] * incremental + meta.get(name, [])
                assert len(meta.get(name, [])) == (len(e["output_ids"]) if e["index"] < 2 else 0)
        for new, r in zip(got[:2], whole, strict=False):
            assert new == {name: r["meta_info"][name] for name in new}


def test_chat_and_vllms_endpoint(s):
    meta = s.json("/generate", ask(top_k=20, top_p=0.9))["meta_info"]
    with router_to([s.url]) as router:
        through = router.json("/generate", ask(top_k=20, top_p=0.9))["meta_info"]
        assert {k: through[k] for k in (MASK, LOGP)} == {k: meta[k] for k in (MASK, LOGP)}
    prompt = s.json("/tokenize", {"prompt": "Once upon a time"})["tokens"]
    params = {"max_tokens": 24, "seed": 7, "top_k": 20, "top_p": 0.9, "ignore_eos": True}
    body = {"token_ids": prompt, "sampling_params": params}
    plain = s.json("/inference/v1/generate", {"token_ids": prompt, "sampling_params": {"max_tokens": 2}})["choices"][0]
    assert "sampling_mask" not in plain  # nothing was cut
    choice = s.json("/inference/v1/generate", body)["choices"][0]
    assert choice["sampling_mask"] == meta[MASK] and choice[LOGP] == meta[LOGP]
    with server() as unasked:
        assert "sampling_mask" not in unasked.json("/inference/v1/generate", body)["choices"][0]
        asked = unasked.json("/inference/v1/generate", body | {"return_sampling_mask": True})["choices"][0]
    assert asked["sampling_mask"] == meta[MASK]
    parts = [json.loads(e)["choices"][0] for e in s.events("/inference/v1/generate", body | {"stream": True})[:-1]]
    assert sum((p["sampling_mask"] for p in parts), []) == meta[MASK] and sum((p[LOGP] for p in parts), []) == meta[LOGP]
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "top_p": 0.9, "top_k": 20,
            "return_sampling_mask": True}  # fmt: skip
    meta = s.json("/v1/chat/completions", chat | {"return_meta_info": True})["choices"][0]["meta_info"]
    assert len(meta[MASK]) == len(meta["output_token_logprobs"])
    assert "return_meta_info" in s.json("/v1/chat/completions", chat, 400)["error"]["message"]


@pytest.mark.parametrize("params, says", [
    ({}, "top_k (1 to 4096) or a top_p below 1"),
    ({"top_k": VOCAB}, "top_k (1 to 4096) or a top_p below 1"),
    ({"min_p": 0.2}, "top_k (1 to 4096) or a top_p below 1"),
    ({"top_p": 0.9, "max_new_tokens": 400, "n": 512}, "top_k"),
], ids=str)  # fmt: skip
def test_what_is_refused(s, params, says):
    assert says in s.json("/generate", ask(**params), 400)["message"]


def test_more_ids_than_a_mask_lists(tmp_path):
    """Known only when a token is drawn: the output fails, as one whose grammar leaves nothing does, and no other."""
    with server(model=tiny_model(tmp_path / "m", **{"vocab-size": 6000})) as big:
        hot, fine = ask(text="a", top_p=0.99999, temperature=50), ask(text="a", top_k=4096)
        assert "top_k" in big.json("/generate", hot, 422)["message"]
        last = json.loads(big.events("/generate", hot | {"stream": True})[-2])
        assert last["error"]["code"] == 422 and "top_k" in last["error"]["message"]
        assert {len(m) for m in big.json("/generate", fine)["meta_info"][MASK]} == {4096}
        assert "4097" in big.json("/generate", ask(text="a", top_k=4097), 400)["message"]
        small = big.json("/generate", ask(text="a", top_k=4097, top_p=0.5))["meta_info"]
        assert all(0 < len(m) < 4096 for m in small[MASK])
