"""What a browser makes of the page: every view, keys, a narrow window, hostile text, and the numbers of tokens."""

import contextlib
import json
import shutil
import sqlite3
import struct
import time

import pytest
from browser import Browser, need_chromium
from programs import LIMIT
from test_page import Page, run  # noqa: F401  fixtures
from test_rl import model  # noqa: F401

HOSTILE = '</pre><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1"><svg onload=window.hacked=1>'
NUMBERS = ("logp", "old_logp", "teacher_logp", "advantages", "old_values", "returns", "entropy")
VIEWS = ("curves", "time", "fleet", "samples", "compare", "compare?what=options", "events", "sample?id=1", "group?id=0")


def floats(blob):
    return [struct.unpack("<f", blob[i : i + 4])[0] for i in range(0, len(blob), 4)]


def rewrite(path):
    """A sample with tools, several versions and masked tokens, whose every stream holds numbers that are easily lost;
    hostile text wherever text can be."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        n = db.execute("SELECT n_response FROM sample_rows WHERE id = 1").fetchone()[0]
        assert n >= 3
        hard = [-1e-45, -0.0, -0.1, -1.0000001, -16777216.0, -3.4028235e38, -0.33333334, -7.5e-05]
        pack = lambda shift: struct.pack(f"<{n}f", *(hard[(i + shift) % len(hard)] for i in range(n)))
        for shift, name in enumerate(NUMBERS):
            db.execute("INSERT OR REPLACE INTO sample_streams VALUES(1, ?, 'f32', ?)", (name, pack(shift)))
        db.execute("UPDATE sample_streams SET data = ? WHERE sample_id = 1 AND name = 'mask'", (bytes(int(i % 4 != 3) for i in range(n)),))
        db.execute("UPDATE sample_streams SET data = ? WHERE name = 'response'", (HOSTILE,))
        db.execute("UPDATE sample_rows SET versions = ?, metadata = ?, reward_json = ? WHERE id = 1",
                   (json.dumps([[3, 2], [4, n - 2]]), json.dumps({HOSTILE: HOSTILE}), json.dumps({"parts": HOSTILE})))  # fmt: skip
        db.execute("UPDATE sample_rows SET status = 'failed', reward = NULL, error = ? WHERE id = 2", (HOSTILE,))
        db.execute("UPDATE groups SET prompt = ?, label = ?, reason = ?", (HOSTILE, json.dumps(HOSTILE), HOSTILE))
        db.execute("UPDATE eval_samples SET response = ?, label = ?", (HOSTILE, json.dumps(HOSTILE)))
        db.execute("UPDATE evals SET name = ?", (HOSTILE,))
        db.execute("INSERT INTO events(at_us, incarnation, kind, detail) VALUES(1, 1, ?, ?)", (HOSTILE, HOSTILE))
        db.execute("INSERT INTO events(at_us, incarnation, kind, detail) VALUES(2, 1, 'alarm', ?)", (HOSTILE,))
        for at, name, state in [(3, "gap", "raised"), (4, "truncation", "raised"), (5, "truncation", "cleared")]:
            alarm = {"alarm": name, "state": state, "rollout": 1, "step": 2, "cause": HOSTILE, "advice": "look at " + HOSTILE}
            db.execute("INSERT INTO events(at_us, incarnation, kind, detail) VALUES(?, 1, 'alarm', ?)", (at, json.dumps(alarm)))
        lines = db.execute("SELECT kind, step, line FROM metrics").fetchall()
        for kind, step, line in lines:
            m = json.loads(line)
            if kind == "train":  # of two ranks
                m |= {f"perf/rank/{r}/{what}_time": 0.01 for r in range(2) for what in ("forward", "backward", "optimizer", "wait")}
            db.execute("UPDATE metrics SET line = ? WHERE kind = ? AND step = ?", (json.dumps({**m, "eval/" + HOSTILE: 1.5}), kind, step))
        db.commit()


pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def shown(run, tmp_path_factory):  # noqa: F811
    """(browser, page of two runs: the one of test_page, and a hostile copy of it; the copy's folder)."""
    need_chromium()
    copy = tmp_path_factory.mktemp("page") / "hostile <img src=x onerror=hacked=1>"
    copy.mkdir()
    shutil.copytree(run / "hf", copy / "hf")
    with contextlib.closing(sqlite3.connect(run / "ledger.db")) as db, contextlib.closing(sqlite3.connect(copy / "ledger.db")) as to:
        db.backup(to)
    rewrite(copy / "ledger.db")
    browser, page = Browser(), Page(run, copy)
    yield browser, page, copy
    browser.close()
    page.stop()


# What must be on a view before it counts as drawn.
DRAWN = {"curves": ".chart-card .latest span", "time": ".share-bar", "fleet": ".badge", "samples": ".row", "compare": ".answer",
         "compare?what=options": "td", "events": ".event", "sample?id=1": ".tok", "group?id=0": ".column"}  # fmt: skip


def show(browser, page, view, run=0):
    browser.open(f"{page.url}/?{run}{view.replace('?', '')}#{view}{'&' if '?' in view else '?'}run={run}")
    browser.wait(f"document.querySelector('#view {DRAWN[view]}') && document.querySelector('#runs .run')")


@pytest.mark.parametrize("width, dark", [(1280, False), (380, True)])
def test_every_view_draws(shown, width, dark):
    """Of a plain run and of one with hostile text everywhere: drawn, without an error, in a narrow window too, and no
    text runs."""
    browser, page, _ = shown
    browser.size(width, 800, dark)
    for view in VIEWS:
        for n in (0, 1):
            show(browser, page, view, n)
            assert not browser.errors, (view, n, browser.errors)
            assert browser.js("window.hacked") is None, (view, n)
            assert browser.js("document.querySelectorAll('script').length") == 1, (view, n)
            if view == "time":
                browser.wait("document.querySelector('.lanes').ariaLabel.includes('training, " + ("rank 0, rank 1, " if n else "") + "hand-over')")
                browser.wait("document.querySelector('#plan').textContent.includes('activations') && document.querySelector('.meter + #plan')")
            assert browser.js("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than {width}"
    browser.size(1280, 800)


def test_token_numbers_are_the_ledgers_bits(shown):
    browser, page, copy = shown
    with contextlib.closing(sqlite3.connect(copy / "ledger.db")) as db:
        streams = dict(db.execute("SELECT name, data FROM sample_streams WHERE sample_id = 1"))
        n_prompt, n, versions = db.execute("SELECT n_prompt, n_response, versions FROM sample_rows WHERE id = 1").fetchone()
    show(browser, page, "sample?id=1", 1)
    assert browser.js("document.querySelectorAll('.tok').length") == n
    ids = struct.unpack(f"<{n_prompt + n}I", streams["ids"])
    version = [v for v, k in json.loads(versions) for _ in range(k)]
    for i in range(min(n, 12)):
        browser.press("]")  # the keyboard walks; what it shows is read as text, as a person would
        got = browser.js("Object.fromEntries([...document.querySelectorAll('[data-value]')].map(e => [e.dataset.value, e.firstChild.textContent]))")
        assert got["position"] == str(i) and int(got["token"]) == ids[n_prompt + i]
        for name in NUMBERS:
            assert struct.pack("<f", float(got[name])) == streams[name][4 * i : 4 * i + 4], (i, name, got[name])
        assert int(got["mask"]) == streams["mask"][i] and int(got["version"]) == version[i]
    seen = set()
    for _ in range(10):  # every way of colouring paints
        seen.add(browser.js("[...document.querySelectorAll('.tok')].map(e => e.style.backgroundColor).join()"))
        browser.press("c")
    assert len(seen) >= 8, seen
    assert not browser.errors


def test_keys_and_filters(shown):
    browser, page, _ = shown
    show(browser, page, "curves")
    browser.press("4")
    browser.wait("document.querySelectorAll('.row').length > 40")
    browser.press("j", "j")
    second = browser.js("document.activeElement.href")
    assert second == browser.js("document.querySelectorAll('.row')[1].href")
    browser.press("Enter")
    browser.wait("document.querySelector('.tok')")
    assert browser.js("location.href") == second
    browser.press("Escape")
    browser.wait("document.querySelectorAll('.row').length > 40")
    browser.press("/")
    browser.type("no text of any sample")
    browser.wait("document.querySelector('.empty')")
    browser.press("Escape")
    assert browser.js("document.activeElement === document.body")
    assert "text=no+text" in browser.js("location.hash")  # the address has the filter
    browser.js("document.querySelectorAll('form button')[0].click()")
    browser.wait("document.querySelectorAll('.row').length > 40")
    browser.js("const s = document.querySelector('[name=order]'); s.value = 'shortest'; s.dispatchEvent(new Event('input', {bubbles: true}))")
    browser.wait("location.hash.includes('shortest') && document.querySelectorAll('.row').length > 40 && !document.querySelector('.busy')")
    lengths = browser.js("[...document.querySelectorAll('.row-facts')].map(e => parseInt(e.firstChild.textContent))")
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
    browser.press("?")
    browser.wait("document.querySelector('dialog[open]')")
    browser.press("Escape")
    browser.wait("!document.querySelector('dialog[open]')")
    assert not browser.errors


def test_a_point_of_a_curve_leads_to_its_rollout(shown):
    browser, page, _ = shown
    show(browser, page, "curves")
    until = time.monotonic() + LIMIT
    says = ""
    while "rollout 3" not in says:  # a curve may still move as the others come in
        assert time.monotonic() < until, says
        box = browser.js("(r => [r.x, r.y, r.width, r.height])(document.querySelector('.chart-card canvas').getBoundingClientRect())")
        at = {"x": box[0] + box[2] - 9, "y": box[1] + box[3] / 2}  # the last point
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=at["y"])
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
        says = browser.js("document.querySelector('.chart-note').textContent")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
    browser.wait("location.hash.startsWith('#samples') && location.hash.includes('rollout=3') && document.querySelector('.row')")


def test_alarms_that_are_raised_come_first(shown):
    browser, page, _ = shown
    show(browser, page, "events", 1)
    browser.wait("document.querySelector('.alarm')")
    assert browser.js("[...document.querySelectorAll('.alarm b')].map(e => e.textContent)") == ["gap"]
    assert "look at </pre><script>" in browser.js("document.querySelector('.alarm .advice').textContent")
    assert browser.js("document.querySelector('nav .badge').textContent") == "1"
    browser.press("a")
    browser.wait("document.querySelectorAll('.event').length === 5")
    assert not browser.errors


def test_a_page_that_stays_open(model, tmp_path, shown):  # noqa: F811
    """The program ends: the page says so and keeps what it has read. It is there again: the page goes on."""
    browser, _, copy = shown
    p = Page(copy)
    browser.open(f"{p.url}/#events")
    browser.wait("document.querySelector('.event')")
    p.stop()
    browser.wait("!document.querySelector('#notice').hidden && document.querySelector('#notice').textContent.includes('does not answer')")
    assert browser.js("document.querySelectorAll('.event').length")
    q = Page(copy, port=p.port)
    browser.wait("document.querySelector('#notice').hidden")
    with contextlib.closing(sqlite3.connect(copy / "ledger.db")) as db:
        db.execute("INSERT INTO events(at_us, incarnation, kind, detail) VALUES(9, 1, 'alarm', 'later')")
        db.commit()
    browser.wait("document.querySelector('.event-text').textContent === 'later'")
    q.stop()
    browser.errors.clear()  # a refused connection is one
