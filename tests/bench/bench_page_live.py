"""The page of a run that trains: until its views are drawn, memory of browser and trainer over minutes, and what the open
page costs the run.

    build/venv/bin/python tests/bench/bench_page_live.py MINUTES clime-train rl --run RUN ...

The command needs more rollouts than it will get to; it is killed at the end. First a tab goes through the views for MINUTES.
Then spells of 10 rollouts with it and without it, in turn: what the trainer's process takes (the page's server is in it) is of
the same minutes.
"""

import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from bench_page import DRAWN, VIEWS  # noqa: E402
from browser import Browser  # noqa: E402

SPELL = 10
TICK = 100  # of /proc/PID/stat, a second
LIVE = [v for v in VIEWS if "?" not in v]


class Run:
    """The trainer; `done` grows with its rollouts."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.done, self.url, self.moved = 0, None, threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            with self.moved:
                if found := re.match(r"page +(http\S+)", line):
                    self.url = found[1]
                self.done += line.startswith("rollout ")
                self.moved.notify_all()

    def wait(self, true):
        with self.moved:
            assert self.moved.wait_for(true, 600), "the run does not go on"

    def cpu(self):
        return sum(map(int, open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()[11:13])) / TICK

    def memory(self):
        return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{self.process.pid}/status").read())[1]) / 1024


def heap(browser):
    """Megabytes of JavaScript after its garbage, nodes of the document."""
    browser.call("HeapProfiler.collectGarbage")
    return browser.call("Runtime.getHeapUsage")["usedSize"] / 2**20, browser.call("Memory.getDOMCounters")["nodes"]


def first_pictures(browser, run, times):
    for view in LIVE:
        found = []
        for i in range(times):
            browser.open(f"{run.url}?{view}{i}#{view}")
            found.append(browser.js(DRAWN % VIEWS[view]) / 1000)
        print(f"after {run.done} rollouts: {view:8} drawn in {statistics.median(found):.3f} s, at most {max(found):.3f}", flush=True)


def stay(page, run, minutes):
    """A tab that goes through the views once a second, for minutes."""
    end, looked, n = time.monotonic() + 60 * minutes, 0, 0
    while time.monotonic() < end:
        n += 1
        page.js(f"location.hash = '{LIVE[n % len(LIVE)]}'")
        time.sleep(1)
        if n % len(LIVE) == 0 and time.monotonic() >= looked:
            looked = time.monotonic() + 30
            megabytes, nodes = heap(page)
            print(f"after {run.done:4} rollouts: {megabytes:.2f} MB of JavaScript, {nodes} nodes, trainer {run.memory():.0f} MB", flush=True)


def pairs(page, run, n_pairs):
    """Spells with the page and without it, one after another."""
    spells = {True: [], False: []}
    for n in range(2 * n_pairs):
        shown = n % 4 in (0, 3)  # either is first as often
        page.open(f"{run.url}?{n}#{LIVE[n // 2 % len(LIVE)]}" if shown else "about:blank")
        run.wait(lambda at=run.done: run.done > at + 1)  # what opening it takes is over
        begin, at, cpu = time.monotonic(), run.done, run.cpu()
        for k in range(SPELL):
            run.wait(lambda: run.done > at + k)
        spells[shown].append(((run.cpu() - cpu) / SPELL, (time.monotonic() - begin) / SPELL))
    for shown, name in ((True, "with"), (False, "without")):
        cpu, wall = (statistics.median(x) for x in zip(*spells[shown]))
        print(f"{name:8} the page: {cpu:.4f} s of CPU a rollout, {wall:.3f} s of time ({n_pairs} spells of {SPELL})", flush=True)


def main():
    run, browser = Run(sys.argv[2:]), Browser()
    try:
        browser.call("Network.setCacheDisabled", cacheDisabled=True)
        run.wait(lambda: run.url and run.done >= 5)
        browser.open(run.url + "#curves")
        stay(browser, run, float(sys.argv[1]))
        run.wait(lambda: run.done >= 200)
        first_pictures(browser, run, 7)
        pairs(browser, run, 12)
    finally:
        run.process.kill()
        browser.close()


if __name__ == "__main__":
    main()
