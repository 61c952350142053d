"""Rewards from outside that never return or are no sane number: a failed sample with a word, and the run goes on."""

import json
import re
import sqlite3
import subprocess
import time

import pytest
from programs import BUILD, LIMIT, SLOW
from test_fleet import Run, d, rl  # noqa: F401
from test_plugin import compile_library

HANGS = """
#include <string.h>
#include <unistd.h>
#include "trainer/plugin/plugin.h"
static int f(const struct clime_plugin_question *const *q, int32_t n, double *r, char *e, size_t b) {
    (void)e; (void)b;
    for (int i = 0; i < n; i++) {
        while (strstr(q[i]->prompt, "7")) sleep(1000);
        r[i] = q[i]->label[0] & 1;
    }
    return 0;
}
const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .reward = f};
"""


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "hangs.c").write_text(HANGS)
    return compile_library(folder / "hangs.c", folder / "hangs.so")


def failed(run_dir):
    db = sqlite3.connect(run_dir / "ledger.db")
    rows = [r[0] for r in db.execute("SELECT error FROM samples WHERE status = 'failed'")]
    db.close()
    return rows


def prompts(path, *questions):
    path.write_text("".join(json.dumps({"prompt": q, "label": str(len(q))}) + "\n" for q in questions))
    return path


@pytest.mark.parametrize("more", [[], ["--group-rm"]], ids=["alone", "group"])
def test_a_library_that_never_returns(d, hangs, tmp_path, more):  # noqa: F811
    """Its calls fail at --rm-timeout, those behind them are judged by others, and the end does not wait for it."""
    data = prompts(tmp_path / "p.jsonl", "1+1", "7+1", "2+22", "1+7", "3+3", "4+44", "1+2")
    run = Run(rl(d, tmp_path / "run", "--custom-rm-path", hangs, *more, prompt_data=data, rm_timeout=0.5 * SLOW, num_rollout=1,
                 rollout_batch_size=5))  # fmt: skip
    try:
        run.end()
    finally:
        run.stop()
    errors = failed(run.dir)
    assert errors and all("TIMEOUT" in e and "--rm-timeout" in e for e in errors), errors


def test_grade_keeps_its_order(hangs):
    """A line that never gets its reward has its place all the same; those behind it are graded meanwhile."""
    lines = [{"response": "x", "prompt": p, "label": "1"} for p in ("1", "7", "2", "7", "7", "7", "3")]
    start = time.monotonic()
    done = subprocess.run([BUILD / "clime-train", "grade", "--custom-rm-path", hangs, "--rm-timeout", "1"], text=True,
                          input="".join(json.dumps(x) + "\n" for x in lines), capture_output=True, timeout=LIMIT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["reward" in x for x in out] == ["7" not in x["prompt"] for x in lines], out
    assert all(x["state"] == "TIMEOUT" for x in out if "error" in x)
    assert time.monotonic() - start < 30 * SLOW


@pytest.mark.parametrize("reward", ["1e308", "-1e160", "1000001"])
def test_a_reward_out_of_every_range_is_a_failed_sample(d, tmp_path, reward):  # noqa: F811
    data = prompts(tmp_path / "p.jsonl", *[f"{a}+{b}" for a in range(1, 8) for b in range(2)])
    command = ('while IFS= read -r line; do id=${line#*\\"id\\":}; id=${id%%,*}; case $line in *7+*) r=' + reward +
               ';; *) r=$((id % 2));; esac; echo "{\\"id\\":$id,\\"reward\\":$r}"; done')  # fmt: skip
    run = Run(rl(d, tmp_path / "run", "--rm-command", command, rm_type="command", prompt_data=data, num_rollout=4))
    try:
        run.end()
    finally:
        run.stop()
    errors = failed(run.dir)
    assert errors and all(re.search(r"a reward of \S+ is out of range", e) for e in errors), errors
