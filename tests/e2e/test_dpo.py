"""clime-train dpo: learning from pairs in the loop of sft."""

import hashlib
import json
import math

import pytest
from programs import LIMIT, run, tiny_model


@pytest.fixture(scope="module")
def d(tmp_path_factory):
    """A random model and 48 sums with a right and a wrong answer."""
    d = tmp_path_factory.mktemp("dpo")
    tiny_model(d / "init")
    pairs = [{"prompt": f"{i}+{i % 7}=", "chosen": str(i + i % 7), "rejected": str(9 * i + 50)} for i in range(48)]
    (d / "pairs.jsonl").write_text("".join(json.dumps(p) + "\n" for p in pairs))
    return d


def dpo(d, name, status=0, **change):
    options = {"hf-checkpoint": d / "init", "prompt-data": d / "pairs.jsonl", "save-hf": d / name / "hf", "run": d / name,
               "global-batch-size": 8, "num-epoch": 4, "lr": 1e-3, "threads": 2, "save-interval": 7,
               **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    words = [str(w) for k, v in options.items() if v is not None for w in ([f"--{k}"] if v is True else [f"--{k}", v])]
    got, out, err = run("clime-train", "dpo", *words, timeout=2 * LIMIT)
    assert got == status, err
    return out if status == 0 else err


def steps(d, name):
    return [m for m in map(json.loads, open(d / name / "metrics.jsonl")) if m["kind"] == "train"]


def weights(d, name):
    return hashlib.sha256((d / name / "hf" / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("loss, first, more", [
    ("sigmoid", math.log(2), {}),
    ("dpo_norm", math.log(2), {"beta": 5}),
    ("ipo", 1 / (4 * 0.1**2), {}),
    ("simpo", None, {"beta": 2}),
])  # fmt: skip
def test_the_chosen_side_is_preferred(d, loss, first, more):
    dpo(d, loss, loss_type=loss, **more)
    all_steps = steps(d, loss)
    assert len(all_steps) == 24
    if first:  # the policy is its reference: h is 0
        assert all_steps[0]["train/loss"] == pytest.approx(first, rel=1e-6) and all_steps[0]["train/rewards/margins"] == 0
    last = all_steps[-6:]  # an epoch: all pairs
    assert sum(m["train/rewards/accuracies"] for m in last) / 6 > 0.9
    assert all(m["train/rewards/margins"] > 0 for m in last)
    assert last[-1]["train/loss"] < all_steps[0]["train/loss"]


def test_a_resumed_run_has_the_same_bits_and_packing_is_none_of_its_business(d):
    dpo(d, "whole", num_epoch=2)
    dpo(d, "resumed", num_epoch=1)
    dpo(d, "resumed", num_epoch=2)
    assert weights(d, "whole") == weights(d, "resumed") and steps(d, "whole") == steps(d, "resumed")
    dpo(d, "narrow", num_epoch=1, max_tokens_per_gpu=16)  # a pair is longer: one in each micro-batch
    for a, b in zip(steps(d, "narrow"), steps(d, "whole")[:6], strict=True):
        assert a["train/loss"] == pytest.approx(b["train/loss"], rel=1e-4)
    assert "beta" in dpo(d, "whole", status=1, num_epoch=3, beta=0.2)
    (d / "other").mkdir()
    tiny_model(d / "other" / "init")  # the same random weights are the same model
    dpo(d, "whole", num_epoch=2, ref_load=d / "other" / "init")
    assert "the reference model is another one" in dpo(d, "whole", status=1, num_epoch=3, ref_load=d / "whole" / "hf")


def printed(d, rows, tmp_path, *more, status=0):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    got, out, err = run("clime-train", "dpo", "--hf-checkpoint", d / "init", "--prompt-data", path, "--print-samples", 99,
                        *more)  # fmt: skip
    assert got == status, err
    return [json.loads(line) for line in out.splitlines()] if status == 0 else err


def trained(sample):
    """Text of the trained tokens, special ones as their numbers in brackets."""
    return "".join(chr(i) if i < 128 else f"[{i}]" for i, m in zip(sample["ids"], sample["mask"]) if m)


def test_forms_of_pairs(d, tmp_path):
    user, good, bad = ({"role": "user", "content": "u"}, {"role": "assistant", "content": "good"},
                       {"role": "assistant", "content": "bad"})  # fmt: skip
    shared = [user, {"role": "assistant", "content": "shared"}, user]
    template = "--apply-chat-template"
    texts = printed(d, [{"prompt": "u", "chosen": "good", "rejected": "bad"}], tmp_path, template)
    assert [trained(s)[:4].rstrip("[") for s in texts] == ["good", "bad"]
    as_messages = printed(d, [{"prompt": [user], "chosen": [good], "rejected": [bad]}], tmp_path, template)
    whole = printed(d, [{"chosen": [user, good], "rejected": [user, bad]}], tmp_path, template)
    assert texts == as_messages == whole
    turns = printed(d, [{"chosen": [*shared, good], "rejected": [*shared, bad]}], tmp_path, template)
    assert [trained(s) for s in turns] == [trained(s) for s in texts]  # what they share is context
    assert all("shared" in "".join(map(chr, (i for i in s["ids"] if i < 128))) for s in turns)
    plain = printed(d, [{"prompt": "ab", "chosen": "c", "rejected": "dd"}], tmp_path)
    assert [s["mask"] for s in plain] == [[0, 0, 1, 1], [0, 0, 1, 1, 1]]
    # a pair is taken whole or not at all
    kept = printed(d, [{"prompt": "a", "chosen": "b", "rejected": "c" * 60}, {"prompt": "a", "chosen": "b", "rejected": "c"}],
                   tmp_path, "--max-len", 50)  # fmt: skip
    assert len(kept) == 2
    for row, says in (({"prompt": "a", "chosen": "b"}, 'no "rejected"'), ({"prompt": [user], "chosen": "b", "rejected": "c"}, "--apply-chat-template"),
                      ({"prompt": "", "chosen": "b", "rejected": "c"}, "empty")):  # fmt: skip
        assert says in printed(d, [row], tmp_path, status=1)


def test_answers_that_hold_their_prompt_are_whole(d, tmp_path):
    """UltraFeedback's rows: the prompt stands once, whatever form it has; what is another conversation is refused."""
    def message(role, content):
        return {"content": content, "role": role}  # members in the order of Hugging Face's data sets

    system, user = message("system", "s"), message("user", "u")
    good, bad = message("assistant", "good"), message("assistant", "bad")
    template = "--apply-chat-template"
    for context in ([user], [system, user], [message("user", "before"), message("assistant", "x"), user]):
        whole = printed(d, [{"chosen": [*context, good], "rejected": [*context, bad]}], tmp_path, template)
        for prompt in ("u", [{"role": "user", "content": "u"}], context, [message("user", [{"type": "text", "text": "u"}])]):
            row = {"prompt": prompt, "chosen": [*context, good], "rejected": [*context, bad]}
            assert printed(d, [row], tmp_path, template) == whole
    turns = printed(d, [{"prompt": "u", "chosen": [user, good, user, good], "rejected": [user, bad]}], tmp_path, template)
    assert turns == printed(d, [{"chosen": [user, good, user, good], "rejected": [user, bad]}], tmp_path, template)
    other = [message("user", "v"), good]
    for chosen, rejected, key in ((other, [message("user", "v"), bad], "chosen"), ([system, *other], "bad", "chosen"),
                                  ([good], other, "rejected")):  # fmt: skip
        err = printed(d, [{"prompt": "u", "chosen": chosen, "rejected": rejected}], tmp_path, template, status=1)
        assert f'"{key}" is a conversation of its own' in err and "line 1" in err
    # a prompt that ends with an answer may be gone on with by the user
    row = {"prompt": [user, good], "chosen": [user, good], "rejected": [user, bad]}
    assert len(printed(d, [row], tmp_path, template)) == 2


def test_refused(d):
    assert "simpo has no reference" in dpo(d, "no", status=1, loss_type="simpo", ref_load=d / "init")
