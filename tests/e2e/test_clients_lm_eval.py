"""lm-eval, unmodified, on server and router: local-completions with log-likelihoods, local-chat-completions with generated
answers. lm-eval, torch and transformers come from `scripts/setup clients` (`make clients`)."""

import json
import math
import os

import pytest
from programs import STORIES, chat_model, router_to, server

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
QUESTIONS = [
    {"question": "Once upon a time, there was a little", "choices": [" girl", " boy", " the", " named Lily"], "answer": 0},
    {"question": "The dog was very", "choices": [" happy", " sad", " upon", " happy and wanted to play"], "answer": 0},
    {"question": "Lily and her mom went to the", "choices": [" park", " store", " was", " park. They saw a big tree"], "answer": 0},
    {"question": "Tim said, \"", "choices": ["Hello", "Thank you", "I am sorry", "day"], "answer": 1},
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def lm_eval():
    return pytest.importorskip("lm_eval", reason="lm-eval is not here: make clients")


@pytest.fixture(scope="module", params=["server", "router"])
def url(request, tmp_path_factory, lm_eval):
    with server("--served-model-name", "tales", model=chat_model(tmp_path_factory.mktemp("chat"))) as s:
        if request.param == "server":
            yield s.url
        else:
            with router_to([s.url]) as router:
                yield router.url


def task(folder, kind):
    """A task over the questions: one of choices by likelihood, or one of generated text."""
    data = folder / "data.jsonl"
    data.write_text("\n".join(json.dumps(q) for q in QUESTIONS))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test",
              "doc_to_text": "{{question}}", "metadata": {"version": 1}}  # fmt: skip
    if kind == "choices":
        return common | {"task": "tales_choices", "output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
                         "target_delimiter": "", "metric_list": [{"metric": "acc"}]}  # fmt: skip
    return common | {"task": "tales_text", "output_type": "generate_until", "doc_to_target": "{{choices[0]}}",
                     "generation_kwargs": {"until": ["."], "max_gen_toks": 24, "temperature": 0}, "metric_list": [{"metric": "exact_match"}]}  # fmt: skip


def evaluate(model, arguments, folder, kind, **more):
    import lm_eval

    return lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=[task(folder, kind)], log_samples=True, bootstrap_iters=0, **more)


def likelihoods(results):
    (samples,) = results["samples"].values()
    return [(math.nan if not r else float(r[0][0]), bool(r[0][1])) for s in sorted(samples, key=lambda s: s["doc_id"]) for r in s["resps"]]


@pytest.fixture(scope="module")
def of_transformers(tmp_path_factory, lm_eval):
    """What lm-eval computes itself, by transformers in fp32: with the token that begins a text and without."""
    pytest.importorskip("torch", reason="torch is not here: make clients")
    common = {"pretrained": str(STORIES), "dtype": "float32", "device": "cpu"}
    return {bos: likelihoods(evaluate("hf", common | {"add_bos_token": bos}, tmp_path_factory.mktemp("hf"), "choices")) for bos in (True, False)}


@pytest.mark.parametrize("tokenizer", ["huggingface", "remote"])
def test_likelihoods_are_transformers(url, tokenizer, of_transformers, tmp_path):
    want = of_transformers[tokenizer == "huggingface"]  # the remote tokenizer begins no text with a token
    arguments = {"model": "tales", "base_url": url + "/v1/completions", "tokenizer_backend": tokenizer, "num_concurrent": 2, "max_retries": 1,
                 "batch_size": 2, "add_bos_token": True, "max_length": 512}  # fmt: skip
    if tokenizer == "huggingface":
        arguments["tokenizer"] = str(STORIES)
    got = likelihoods(evaluate("local-completions", arguments, tmp_path, "choices"))
    assert len(got) == len(want) == 16
    worst = max(abs(a - b) for (a, _), (b, _) in zip(got, want))
    print(f"{tokenizer}: the largest difference to transformers is {worst:.2e}")
    assert worst < 1e-4 and [g for _, g in got] == [g for _, g in want]


def test_chat_generates(url, tmp_path):
    arguments = {"model": "tales", "base_url": url + "/v1/chat/completions", "num_concurrent": 2, "max_retries": 1}
    results = evaluate("local-chat-completions", arguments, tmp_path, "text", apply_chat_template=True)
    (samples,) = results["samples"].values()
    texts = [s["resps"][0][0] for s in samples]
    assert len(texts) == len(QUESTIONS) and all(t and "." not in t for t in texts)
