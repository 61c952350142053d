"""What ends an output or must not come in it: stop_regex (SGLang's) against Python's re over the reply's own ids, bad_words
(vLLM's) by vLLM's rule. Whatever is not cut or barred has the same bits as without them."""

import concurrent.futures
import json
import re
import time

import pytest
from programs import needs_stories


@pytest.fixture(scope="module")
def s(chat_server):
    return chat_server


PROMPT, N = [1, 403, 407, 261, 378], 60


def generate(s, **params):
    more = {"stream": True} if params.pop("stream", False) else {}
    params = {"max_new_tokens": N, "sampling_seed": 11, "ignore_eos": True} | params
    body = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True} | more
    if not more:
        return s.json("/generate", body)
    last = {}
    for event in s.events("/generate", body)[:-1]:
        event = json.loads(event)
        last[event.get("index", 0)] = event
    return last[0] if len(last) == 1 else [last[i] for i in range(len(last))]


def texts(s, reply):
    """What the first tokens say, for every number of them. The prompt goes before them, so that no space is lost."""
    ids = reply["output_ids"]
    whole = s.json("/detokenize", {"tokens": [PROMPT + ids[:k] for k in range(len(ids) + 1)]})["text"]
    return [t[len(whole[0]) :] for t in whole]


def logps(reply):
    return [lp for lp, _, _ in reply["meta_info"]["output_token_logprobs"]]


@needs_stories
@pytest.mark.parametrize("pattern", [
    r"[.!?]", r",[^,]*,", r"\sa", r"(was|is|had)\s\w+", r"a$", r"^\W+\w+\s", r"(a|e)+r?", r"[^\x00-\x7f]|zz", r"\w{4,5} ", r"(.|\n)*d.*d"])  # fmt: skip
def test_stop_regex_is_pythons(s, pattern):
    """The output ends with the first token after which its text has a match; the text keeps all of it."""
    free = generate(s)
    said = texts(s, free)
    ends = [k for k in range(1, N) if re.search(pattern, said[k])]
    for stream in (False, True):
        reply = generate(s, stop_regex=pattern, stream=stream)
        n, finish = len(reply["output_ids"]), reply["meta_info"]["finish_reason"]
        assert n == (ends[0] if ends else N)
        assert finish == ({"type": "stop", "matched": pattern} if ends else {"type": "length", "length": N})
        assert reply["output_ids"] == free["output_ids"][:n] and logps(reply) == logps(free)[:n]
        assert reply["text"] == said[n]


@needs_stories
def test_stop_regex_of_several_outputs(s):
    """Each of n outputs ends where it would alone; stop strings go first, and an expression of nothing is none."""
    free = generate(s, n=4)
    for stream in (False, True):
        replies = generate(s, n=4, stop_regex=["zzz", r"[.!]\s|big"], stream=stream)
        assert len({len(r["output_ids"]) for r in replies}) > 1
        for reply, alone in zip(replies, free):
            said = texts(s, alone)
            n = next(k for k in range(1, N + 1) if k == N or re.search(r"[.!]\s|big", said[k]))
            assert reply["output_ids"] == alone["output_ids"][:n] and logps(reply) == logps(alone)[:n]
    both = generate(s, stop=["was"], stop_regex=["w.s"])
    assert both["meta_info"]["finish_reason"]["matched"] == "was" and "was" not in both["text"]
    assert generate(s, stop_regex=["", ""])["output_ids"] == generate(s)["output_ids"]


@needs_stories
def test_stop_regex_of_openais_forms(s):
    chat = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": N, "seed": 5, "stop_regex": r"[a-z]+\s[a-z]+"}
    for path, body, text in (("/v1/chat/completions", chat, lambda c: c["message"]["content"]),
                             ("/v1/completions", chat | {"prompt": "Once upon"}, lambda c: c["text"])):  # fmt: skip
        (choice,) = s.json(path, {k: v for k, v in body.items() if path[-16:-12] == "chat" or k != "messages"})["choices"]
        assert choice["finish_reason"] == "stop" and choice["matched_stop"] == chat["stop_regex"]
        assert re.search(r"[a-z]+\s[a-z]+", text(choice))
    tokens = {"token_ids": PROMPT, "sampling_params": {"max_tokens": N, "seed": 11, "ignore_eos": True, "stop_regex": ["[.!?]"]}}
    assert s.json("/inference/v1/generate", tokens)["choices"][0]["token_ids"] == generate(s, stop_regex="[.!?]")["output_ids"]
    rendered = s.json("/v1/chat/completions/render", chat | {"bad_words": ["was"]})["sampling_params"]
    assert rendered["stop_regex"] == chat["stop_regex"] and rendered["bad_words"] == ["was"]


@pytest.mark.parametrize("pattern, says", [("(a", "group"), ("a(?=b)", "looking around"), ("\\bx", "boundary"), ("[", "class"), ("(?i)x", "flag")])
def test_stop_regex_that_cannot_be(s, pattern, says):
    message = s.json("/generate", {"input_ids": [1], "sampling_params": {"stop_regex": ["x", pattern]}}, 400)["message"]
    assert message.startswith("stop_regex") and says in message


def test_stop_regex_that_costs_too_much(s):
    """The output fails by itself and at once, in a stream too; its neighbours do not notice."""
    params = {"max_new_tokens": 400, "ignore_eos": True, "stop_regex": "(.|..|.\\s|[^x]{2,9}){1,9999}[^x]{4000}!"}
    free = generate(s)
    assert "stop_regex" in s.json("/generate", {"input_ids": PROMPT, "sampling_params": params}, 422)["message"]
    events = s.events("/generate", {"input_ids": PROMPT, "sampling_params": params, "stream": True})
    assert "stop_regex" in json.loads(events[-2])["error"]["message"] and events[-1] == "[DONE]"
    assert generate(s)["output_ids"] == free["output_ids"]


def test_many_expressions_hold_no_other_request_up(s):
    """They are compiled on the threads that all texts go through, some of a request at a time."""
    large = [{"max_new_tokens": 1, "stop_regex": ["." * (505 + i) for i in range(8)]} for _ in range(60)]

    def seconds(body):
        began = time.monotonic()
        s.json("/generate", body)
        return time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        all_of_it = pool.submit(seconds, {"input_ids": [PROMPT] * len(large), "sampling_params": large})
        time.sleep(0.2)
        mine = seconds({"text": "Once", "sampling_params": {"max_new_tokens": 1}})
        assert mine < all_of_it.result() / 2


# ---- bad words -------------------------------------------------------------------------------------------------------


def words(s, *said):
    """As vLLM makes ids of them."""
    ids = lambda text: s.json("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    found = []
    for word in said:
        first, other = ids(word.lstrip()), ids(" " + word.lstrip())
        found += [first] + [other] * (other[0] != first[0] and len(other) == len(first))
    return found


def first_of(ids, bad):
    """The place of the first token that completes a word."""
    return min((i for w in bad for i in range(len(w) - 1, len(ids)) if ids[i - len(w) + 1 : i + 1] == w), default=None)


@needs_stories
@pytest.mark.parametrize("more", [{"temperature": 0}, {}, {"stream": True}])
def test_bad_words_are_vllms(s, more):
    """A word that would have come does not. Greedy outputs are as they were before it; a draw among fewer ids may be another
    one, but an id's log-probability is the same as long as those before it are."""
    n_long = 0
    for seed in range(1 if "temperature" in more else 2):
        free = generate(s, sampling_seed=seed, **more)
        ids = free["output_ids"]
        for at, k in ((at, k) for at in range(6, 50, 4) for k in (1, 2, 3)):
            said = s.json("/detokenize", {"tokens": ids[at : at + k]})["text"].strip()
            bad = words(s, said, "zebra") if said else []
            at = first_of(ids, bad)
            if at is None:
                continue  # the model spelt it in other tokens
            reply = generate(s, sampling_seed=seed, bad_words=[said, " zebra"], **more)
            assert first_of(reply["output_ids"], bad) is None
            same = next(i for i, (x, y) in enumerate(zip(reply["output_ids"], ids)) if x != y)
            assert same <= at and (same == at or "temperature" not in more)
            assert logps(reply)[:same] == logps(free)[:same]
            n_long += len(min(bad[:-1], key=len)) > 1
    assert n_long >= 2


def test_bad_words_of_a_grammar(s):
    """What a grammar and the words leave is drawn; where that is nothing the output fails."""
    only = {"regex": "[ab]{12}", "bad_words": ["a"]}
    a = words(s, "a")[0]
    assert first_of(generate(s, **only)["output_ids"], words(s, "a")) is None
    message = s.json("/generate", {"input_ids": PROMPT, "sampling_params": {"allowed_token_ids": a, "bad_words": ["a"]}}, 422)["message"]
    assert "bad_words" in message


def test_bad_words_are_no_prompts(s):
    """Only what was sampled begins a word (vLLM's rule), and an empty list bars nothing."""
    free = generate(s, max_new_tokens=1)
    said = s.json("/detokenize", {"tokens": [PROMPT[-1], free["output_ids"][0]]})["text"]
    assert generate(s, max_new_tokens=1, bad_words=[said])["output_ids"] == free["output_ids"]
    assert generate(s, bad_words=[])["output_ids"] == generate(s)["output_ids"]
    assert "empty" in s.json("/generate", {"input_ids": [1], "sampling_params": {"bad_words": [" "]}}, 400)["message"]
