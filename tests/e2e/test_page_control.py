"""Orders from the page to its run (--page-control): who may give them, and what each does."""

import contextlib
import pathlib
import re
import sqlite3
import stat
import subprocess
import time

import httpx
import pytest
from browser import Browser, need_chromium
from programs import LIMIT
from test_page import training
from test_rl import command, model, run_whole  # noqa: F401  the fixture



class Run:
    """A run that takes orders, until it is left."""

    def __init__(self, words):
        self.process = subprocess.Popen([*words, "--page-control"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.url = self.until(r"^page +(http://127\.0\.0\.1:\d+/)$")[1]
        self.key = pathlib.Path(self.until(r"that (.*)/ports/page-key holds$")[1], "ports", "page-key").read_text().strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def until(self, pattern):
        for line in self.process.stdout:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError("".join(self.lines)[-3000:])

    def order(self, word, key=None, **headers):
        return httpx.post(self.url + "api/runs/0/order", json={"order": word}, timeout=LIMIT,
                          headers={"Authorization": f"Bearer {key or self.key}", **headers})  # fmt: skip

    def control(self):
        return httpx.get(self.url + "api/runs/0/now", timeout=LIMIT).json()["control"]


def events(run, kind="order"):
    with contextlib.closing(sqlite3.connect(run / "ledger.db")) as db:
        return [d for (d,) in db.execute("SELECT detail FROM events WHERE kind = ? ORDER BY id", (kind,))]


def wait(true):
    until = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_page_without_control_only_reads(model):  # noqa: F811
    with training(command(model, model / "reads", num_rollout=1000)) as (url, _):
        for headers in ({}, {"Authorization": "Bearer " + "0" * 32}):
            reply = httpx.post(url + "api/runs/0/order", json={"order": "stop"}, headers=headers, timeout=LIMIT)
            assert reply.status_code == 403 and "--page-control" in reply.json()["message"]
        assert "control" not in httpx.get(url + "api/runs/0/now", timeout=LIMIT).json()
    assert not (model / "reads" / "ports" / "page-key").exists()


@pytest.mark.parametrize("more", [["--replay", "x"], ["--page-port", "-1"], ["--debug-rollout-only"]])
def test_nothing_that_takes_orders(model, more):  # noqa: F811
    p = subprocess.run([*command(model, model / "none"), "--page-control", *more], capture_output=True, text=True, timeout=LIMIT)
    assert p.returncode == 1 and "--page-control cannot be honoured with " + more[0] in p.stderr


def test_orders(model):  # noqa: F811
    """Refused without the key and from another site; a pause holds the run until it goes on; a checkpoint is written out of
    turn; a stop ends it, and the same command goes on to the weights of a run that nobody has touched."""
    run, words = model / "ordered", lambda n: command(model, model / "ordered", num_rollout=n, save_interval=1000, lr_decay_style="constant")
    with Run(words(1000)) as r:
        key_file = run / "ports" / "page-key"
        assert key_file.read_text().strip() == r.key and stat.S_IMODE(key_file.stat().st_mode) == 0o600
        without_key = httpx.post(r.url + "api/runs/0/order", json={"order": "stop"}, timeout=LIMIT)
        for refused, status in ((r.order("stop", key="0" * 32), 401), (without_key, 401),
                                (r.order("stop", Origin="http://evil.example"), 403), (r.order("stop", Host="evil.example"), 403),
                                (r.order("explode"), 400), (r.order(""), 400)):  # fmt: skip
            assert refused.status_code == status, refused.text
            assert refused.json()["message"]
        assert r.control() == {"pause": False, "checkpoint": False, "stop": False, "waiting": False}
        r.until(r"^rollout  0 ")
        assert r.order("pause").json()["control"]["pause"]
        wait(lambda: r.control()["waiting"])
        done = httpx.get(r.url + "api/runs", timeout=LIMIT).json()["runs"][0]["step"]
        assert r.order("checkpoint").status_code == 200
        wait(lambda: events(run)[-1].startswith("pause") and len(events(run)) == 4)  # taken, and it pauses again
        assert f"checkpoint: step {done} is saved" in events(run)
        assert httpx.get(r.url + "api/runs", timeout=LIMIT).json()["runs"][0]["step"] == done
        r.order("resume")
        wait(lambda: httpx.get(r.url + "api/runs", timeout=LIMIT).json()["runs"][0]["step"] > done)
        assert r.order("stop").json()["control"]["stop"]
        said = r.until(r"^stopped  by the page after (\d+) of 1000 rollouts; the same command goes on$")
        assert r.process.wait(LIMIT) == 0
    n = int(said[1])
    with contextlib.closing(sqlite3.connect(run / "ledger.db")) as db:
        steps = [s for (s,) in db.execute("SELECT step FROM checkpoints")]
        assert max(steps) == db.execute("SELECT max(step) FROM steps WHERE done_us IS NOT NULL").fetchone()[0]
    assert not events(run, "error") and not events(run, "end")
    with Run(words(n + 1)) as again:  # not longer than what is compared: it trains until it is left
        assert again.key == r.key and again.url == r.url  # for a page that stayed open
    assert run_whole(words(n + 1), model / "ordered.log") == run_whole(
        command(model, model / "untouched", num_rollout=n + 1, save_interval=1000, lr_decay_style="constant"), model / "untouched.log")  # fmt: skip


def test_buttons(model):  # noqa: F811
    """The address has the key, which leaves it at once; without it there are no buttons."""
    need_chromium()
    browser = Browser()
    try:
        with Run(command(model, model / "buttons", num_rollout=1000)) as r:
            browser.open(r.url + "#fleet")
            browser.wait("document.querySelector('.facts')")
            assert not browser.js("document.querySelector('#orders')")
            browser.open("about:blank")
            browser.open(f"{r.url}#key={r.key}")
            browser.wait("document.querySelector('#runs .run')")
            assert r.key not in browser.js("location.href")
            browser.press("3")
            browser.wait("document.querySelector('[name=pause]')")
            browser.js("document.querySelector('[name=pause]').click()")
            browser.wait("document.querySelector('#orders-say').textContent === 'It waits.' && document.querySelector('.lead').textContent.includes('is paused')")
            browser.js("document.querySelector('[name=resume]').click()")
            browser.wait("document.querySelector('[name=pause]')")
            assert not r.control()["pause"] and not browser.errors
            browser.js("window.confirm = () => true; document.querySelector('[name=stop]').click()")
            assert r.process.wait(LIMIT) == 0
    finally:
        browser.close()
