"""How quick the page is in a browser: until a view is drawn, and until a filter's samples are there.

    build/venv/bin/python tests/bench/bench_page.py RUN [times]

RUN is a run folder, such as tests/bench/make_ledger.py makes.
"""

import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from browser import Browser  # noqa: E402
from test_page import Page  # noqa: E402

VIEWS = {"curves": ".chart-card .latest span", "time": ".share-bar", "samples": ".row", "sample?id=5000": ".tok", "group?id=500": ".column",
         "compare": ".answer", "events": ".event"}  # fmt: skip
FILTERS = {"status": "failed", "rollout": "150", "order": "best", "reward_min": "0.5", "length_min": "1900", "text": "eureka"}
DRAWN = """new Promise(done => {
  const look = () => document.querySelector(%r) ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 1);
  look(); })"""
FILTERED = """new Promise(done => {
  const form = document.querySelector('form'), first = () => document.querySelector('.row, .empty'), before = first(), t0 = performance.now();
  form.elements[%r].value = %r;
  form.dispatchEvent(new Event('input', {bubbles: true}));
  const look = () => first() && first() !== before ? requestAnimationFrame(() => done(performance.now() - t0)) : setTimeout(look, 1);
  look(); })"""


def say(what, seconds):
    print(f"{what:28} {statistics.median(seconds):7.3f} s, at most {max(seconds):.3f}")


def main():
    times = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    page, browser = Page(sys.argv[1]), Browser()
    try:
        browser.call("Network.setCacheDisabled", cacheDisabled=True)
        for n, (view, selector) in enumerate(VIEWS.items()):
            found = []
            for i in range(times):
                browser.open(f"{page.url}/?{n}.{i}#{view}")
                found.append(browser.js(DRAWN % selector) / 1000)
            say(f"drawn: {view}", found)
        for n, (name, value) in enumerate(FILTERS.items()):
            found = []
            for i in range(times):
                browser.open(f"{page.url}/?f{n}.{i}#samples")
                browser.js(DRAWN % ".row")
                time.sleep(0.5)  # what else the first picture brings is over
                found.append(browser.js(FILTERED % (name, value)) / 1000)
            say(f"filtered: {name} {value}", found)
    finally:
        browser.close()
        page.stop()


if __name__ == "__main__":
    main()
