"""The server's page in a browser: the key, a chat with its tokens and their numbers, /generate as it is, stopping."""

import json
import struct

import pytest
from browser import Browser, need_chromium
from programs import chat_model, needs_stories, server, web
from test_front import wait_for

KEY = "secret <key>"
HOSTILE = '</pre><img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'


@pytest.fixture(scope="module")
def s(tmp_path_factory):
    need_chromium()
    with server("--api-key", KEY, "--served-model-name", "tales", model=chat_model(tmp_path_factory.mktemp("chat"))) as running:
        running.client.headers["Authorization"] = f"Bearer {KEY}"
        yield running


@pytest.fixture(scope="module")
def browser(s):
    b = Browser()
    yield b
    b.close()


def enter(b, selector, text):
    b.js(f"(e => {{ e.focus(); e.value = '' }})(document.querySelector({json.dumps(selector)}))")
    b.type(text)


def give_key(b, key):
    b.wait("document.querySelector('#key-dialog').open")
    enter(b, "#key", key)
    b.press("Enter")


@pytest.fixture
def page(s, browser):
    """The page, met with its key, with a seed that makes replies the same again."""
    browser.errors.clear()
    browser.open(s.url)
    browser.wait("document.querySelector('#key-dialog').open || document.querySelector('#policy').textContent")
    if browser.js("document.querySelector('#key-dialog').open"):
        give_key(browser, KEY)
    browser.wait("document.querySelector('#policy').textContent.includes('tales')")
    enter(browser, "[name=seed]", "18446744073709551557")  # more than a number of the page holds
    enter(browser, "[name='max tokens']", "20")
    return browser


def say(b, text):
    n = b.js("document.querySelectorAll('.message.assistant').length")
    enter(b, "[name=message]", text)
    b.press("Enter")
    b.wait(f"document.querySelectorAll('.message.assistant .foot').length === {n + 1} && document.querySelector('.composer button').textContent === 'send'"
           " && [...document.querySelectorAll('.message.assistant .foot')].pop().textContent")  # fmt: skip


def choose(b, css, i):
    """What the page says of a token when it is chosen."""
    b.js(f"document.querySelectorAll({json.dumps(css)})[{i}].click()")
    return b.js("Object.fromEntries([...document.querySelectorAll('#token [data-value]')].map(e => [e.dataset.value, e.textContent]))")


def same(shown, number):
    return struct.pack("<f", float(shown)) == struct.pack("<f", number)


def test_a_wrong_key_is_asked_for_again(s, browser):
    browser.open(s.url)
    give_key(browser, "wrong")
    browser.wait("document.querySelector('#key-dialog').open && document.querySelector('#key-why').textContent.includes('wrong')")
    browser.press("Escape")  # without one there is nothing to do, and the page says so
    browser.wait("!document.querySelector('#notice').hidden && !document.querySelector('#key-button').hidden")
    browser.js("document.querySelector('#key-button').click()")
    give_key(browser, "k\u043bjuch")  # no header can carry it
    browser.wait("document.querySelector('#notice').textContent.includes('ASCII')")
    browser.js("document.querySelector('#key-button').click()")
    give_key(browser, KEY)
    browser.wait("document.querySelector('#policy').textContent === 'tales · weights default · 512 tokens'")


@needs_stories
def test_a_chat_shows_the_tokens_that_were_drawn(s, page):
    messages = [{"role": "user", "content": HOSTILE}]
    say(page, HOSTILE)
    body = {"messages": messages, "seed": "18446744073709551557", "max_tokens": 20, "logprobs": True, "top_logprobs": 5, "return_token_ids": True}
    want = s.json("/v1/chat/completions", body)["choices"][0]
    numbers = want["logprobs"]["content"]
    assert page.js("document.querySelectorAll('.assistant .tok').length") == len(want["token_ids"]) == 20
    for i, (id_, number) in enumerate(zip(want["token_ids"], numbers)):
        got = choose(page, ".assistant .tok", i)
        assert int(got["id"]) == id_ and same(got["logp"], number["logprob"]) and json.loads(got["text"]) == number["token"]
    alternatives = page.js("[...document.querySelectorAll('.alternatives td:first-child')].map(e => e.textContent)")
    assert [json.loads(a) for a in alternatives] == [t["token"] for t in numbers[-1]["top_logprobs"]]
    page.press("ArrowLeft")
    assert page.js("document.querySelector('#token [data-value=position]').textContent") == "18"
    # the next turn takes the whole conversation along
    say(page, "And then?")
    messages += [{"role": "assistant", "content": want["message"]["content"]}, {"role": "user", "content": "And then?"}]
    n = s.json("/apply_template", {"messages": messages})["count"]
    assert f"prompt {n} ·" in page.js("[...document.querySelectorAll('.assistant .foot')].pop().textContent")
    # colours: of the numbers, of ids, none
    seen = []
    for way in ("log-probability", "id", "none"):
        page.js(f"[...document.querySelectorAll('.bar button')].find(e => e.textContent === '{way}').click()")
        seen.append(page.js("[...document.querySelectorAll('.tok')].map(e => e.style.backgroundColor).join()"))
    assert len(set(seen)) == 3 and not seen[2].strip(",")
    page.js("[...document.querySelectorAll('.bar button')].find(e => e.textContent === 'ids').click()")
    assert page.js("document.querySelector('.assistant .tokens').textContent").split() == [str(i) for i in want["token_ids"]]
    assert page.js("window.hacked") is None and not page.errors


def test_generate_as_it_is(s, page):
    ids = [1, 403, 407, 261]
    page.js("[...document.querySelectorAll('#mode button')].find(e => e.textContent === '/generate').click()")
    enter(page, "[name=prompt]", "[1, 403 407,261]")
    page.js("document.querySelector('[name=\"as ids\"]').click(), document.querySelector('[name=score]').click()")
    page.js("document.querySelector('.composer').requestSubmit()")
    page.wait("JSON.parse(document.querySelector('#came').textContent).meta_info.finish_reason")
    sent = json.loads(page.js("document.querySelector('#sent').textContent"))
    assert sent["input_ids"] == ids and sent["sampling_params"] == {"max_new_tokens": 20, "stream_interval": 16, "sampling_seed": "18446744073709551557"}
    want = s.json("/generate", sent | {"stream": False})
    meta = want["meta_info"]
    entries = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert page.js("document.querySelectorAll('.tok.prompt').length") == 4 and page.js("document.querySelectorAll('.tok').length") == 24
    for i, (number, id_, text) in enumerate(entries):
        got = choose(page, ".tok", i)
        assert int(got["id"]) == id_ and json.loads(got["text"]) == text
        assert got["logp"] == "none" if number is None else same(got["logp"], number)
    enter(page, "[name=prompt]", "1, two")
    page.js("document.querySelector('.composer').requestSubmit()")
    page.wait("document.querySelector('.error') && document.querySelector('.error').textContent.includes('whole numbers')")
    assert not page.errors


def test_stopping_ends_the_request_and_errors_are_said(s, page):
    enter(page, "[name='max tokens']", "480")
    page.js("document.querySelector(\"[name='go on after its end']\").click()")
    assert web.post(s.url + "/pause_generation", json={"mode": "retract"}, headers=s.client.headers).status_code == 200
    enter(page, "[name=message]", "Once")
    page.press("Enter")
    busy = "fetch('v1/loads', {headers: {Authorization: 'Bearer ' + sessionStorage.getItem('api-key')}}).then(r => r.json()).then(l => l.loads[0].num_running_reqs + l.loads[0].num_waiting_reqs)"
    wait_for(lambda: page.js(busy) == 1)
    enter(page, "[name=message]", "more")
    page.press("Enter")  # sends, and there is nothing to send now: it is no way to stop
    assert page.js("document.querySelector('[name=message]').value") == "more" and page.js(busy) == 1
    assert page.js("document.querySelector('.composer button').textContent") == "stop"
    page.js("document.querySelector('.composer button').click()")
    page.wait("document.querySelector('.assistant .foot').textContent.startsWith('stopped')")
    wait_for(lambda: page.js(busy) == 0)
    s.post("/continue_generation")
    enter(page, "[name=temperature]", "-1")
    page.js("[...document.querySelectorAll('.composer button')].find(e => e.textContent === 'again').click()")
    page.wait("document.querySelector('.assistant .error') && document.querySelector('.assistant .error').textContent.includes('temperature')")
    page.errors.clear()  # a refused request is one
    enter(page, "[name=temperature]", "0")
    enter(page, "[name='max tokens']", "4")
    say(page, "And then?")  # what failed was never said
    n = s.json("/apply_template", {"messages": [{"role": "user", "content": text} for text in ("Once", "And then?")]})["count"]
    assert f"prompt {n} ·" in page.js("[...document.querySelectorAll('.assistant .foot')].pop().textContent")


def test_it_fits_a_narrow_window(s, page):
    page.size(380, 800, True)
    say(page, "word " * 60)
    assert page.js("document.documentElement.scrollWidth <= innerWidth")
    page.size(1280, 900)
    assert not page.errors
