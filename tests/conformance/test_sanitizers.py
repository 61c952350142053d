"""What `make asan` and `make tsan` go by: each sanitizer's report comes in the file that log_path names."""

import os
import pathlib
import re
import shlex
import subprocess

import pytest

MAKEFILE = (pathlib.Path(__file__).resolve().parents[2] / "Makefile").read_text()
FAULTS = {
    "heap-buffer-overflow": ("ASAN", "char *at = malloc(words); return at[words];"),
    "detected memory leaks": ("ASAN", "void *volatile lost = malloc(words); lost = NULL;"),
    "signed integer overflow": ("ASAN", "return INT_MAX - 1 + words == 0;"),
    "data race": ("TSAN", "pthread_t other; pthread_create(&other, NULL, add, NULL); add(NULL); pthread_join(other, NULL);"),
}
PROGRAM = """#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
static int shared;
void *add(void *unused) { shared++; return unused; }
int main(int words, char **word) { (void)word; %s return 0; }
"""


@pytest.mark.parametrize("said", FAULTS)
def test_a_report_comes_in_a_file(tmp_path, said):
    name, fault = FAULTS[said]
    flags = re.search(rf'^{name} .*\bSAN="([^"]*)"', MAKEFILE, re.MULTILINE).group(1)
    (tmp_path / "fault.c").write_text(PROGRAM % fault)
    subprocess.run(
        [*shlex.split(os.environ.get("CC", "cc")), *flags.split(), "-pthread", "-o", "fault", "fault.c"], cwd=tmp_path, check=True
    )
    options = f"log_path={tmp_path}/report:exitcode=99"
    env = {**os.environ, "ASAN_OPTIONS": options, "UBSAN_OPTIONS": options, "TSAN_OPTIONS": options}
    assert subprocess.run(["./fault", "one", "two"], cwd=tmp_path, env=env).returncode == 99
    assert any(said in report.read_text() for report in tmp_path.glob("report.*"))
