"""docs/options.md is what the programs say of their options."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_options_are_current():
    build = os.environ.get("CLIME_BUILD", "build")
    check = subprocess.run(
        [ROOT / "scripts/docs", "--check"], env={**os.environ, "CLIME_BUILD": build}, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr
