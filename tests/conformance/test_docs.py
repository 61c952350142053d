"""docs/options.md is what the programs say of their options."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_options_are_current():
    build = os.environ.get("CLIME_BUILD", "build")
    check = subprocess.run(
        [ROOT / "scripts/docs", "--check"], env={**os.environ, "CLIME_BUILD": build}, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_paths_exist():
    """Every file or folder of the tree that README and docs name is there."""
    folders = "common|text|kernels|model|server|router|trainer|examples|openapi|scripts|tests|docs"
    named = re.compile(rf"(?<![\w/.])((?:{folders})/(?:[\w.-]+/)*(?:[\w-]+(?:\.[\w-]+)+|(?<=/)(?!\w)))")
    missing = []
    for doc in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if doc.name == "from-slime.md":  # slime's own folders
            continue
        for path in named.findall(doc.read_text()):
            if not re.search(r"[A-Z]{3}", path) and not (ROOT / path).exists():
                missing.append(f"{doc.name}: {path}")
    assert not missing, missing
