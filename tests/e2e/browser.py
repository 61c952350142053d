"""A headless Chromium, driven over the DevTools protocol through a pair of pipes (no socket, no package)."""

import base64
import fcntl
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from programs import LIMIT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
         "--disable-background-networking", "--disable-component-update",
         "--disable-features=Translate,MediaRouter,OptimizationHints"]  # fmt: skip


@functools.cache
def refuses():
    """Why there is no browser here; "" = there is one, and it starts (in some containers it cannot)."""
    if not CHROMIUM:
        return "no chromium here (apt-get install chromium)"
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        try:
            done = subprocess.run([CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "--dump-dom", "about:blank"],
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)  # fmt: skip
        except subprocess.TimeoutExpired:
            return "chromium does not come up here"
        return "" if done.returncode == 0 else f"chromium does not start here: {done.stderr.decode()[-300:]}"


def need_chromium():
    if refuses():
        pytest.skip(refuses() + ": what a browser makes of the page is not tested")


class Browser:
    """One tab. errors: what the page wrote to its console as errors, and exceptions that nothing caught."""

    def __init__(self, width=1280, height=900, dark=False):
        self.folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, from_write = os.pipe()
        words = [CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"]

        def as_3_and_4():  # where chromium looks for them; by way of numbers that are neither
            ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, from_write)]
            for fd, want in zip(ends, (3, 4)):
                os.dup2(fd, want)

        self.process = subprocess.Popen(words, pass_fds=(3, 4), preexec_fn=as_3_and_4, start_new_session=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self.buffer, self.n, self.errors, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(width, height, dark)

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            got = self.message()
            if got.get("id") == self.n:
                assert "error" not in got, (method, got["error"])
                return got["result"]

    def message(self):
        while b"\0" not in self.buffer:
            assert select.select([self.back], [], [], LIMIT)[0], "chromium says nothing"
            more = os.read(self.back, 1 << 20)
            assert more, "chromium has ended"
            self.buffer += more
        one, self.buffer = self.buffer.split(b"\0", 1)
        m = json.loads(one)
        p = m.get("params", {})
        if m.get("method") == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.errors.append(d.get("exception", {}).get("description") or d["text"])
        elif m.get("method") == "Runtime.consoleAPICalled" and p["type"] in ("error", "assert"):
            self.errors.append(str([a.get("value", a.get("description")) for a in p["args"]]))
        elif m.get("method") == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.errors.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        return m

    def size(self, width, height, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def js(self, expression):
        """The value of an expression; of a promise, what it comes to."""
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in r, r["exceptionDetails"]
        return r["result"].get("value")

    def wait(self, expression, limit=LIMIT):
        """Until the expression is true."""
        until = time.monotonic() + limit
        while True:
            if self.js(f"(() => {{ try {{ return Boolean({expression}) }} catch (e) {{ return false }} }})()"):
                return
            assert time.monotonic() < until, (expression, self.errors, self.js("document.body.innerText")[:3000])
            time.sleep(0.03)

    def press(self, *keys):
        for key in keys:
            text = key if len(key) == 1 else "\r" if key == "Enter" else ""
            code = {"Enter": 13, "Escape": 27}.get(key, 0)
            for kind in ("keyDown", "keyUp"):
                down = {"text": text} if kind == "keyDown" and text else {}
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **down)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def picture(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(30)
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()
