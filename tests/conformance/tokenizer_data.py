"""The tokenizers of the shared data, unpacked. Shared by the conformance tests."""

import os
import pathlib
import tarfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = (ROOT / os.environ.get("CLIME_DATA", "../shared/data")).resolve()
NAMES = ["qwen3", "llama3", "glm4"]


def unpack_tokenizers(to):
    """A folder each; skips the test where there is no shared data."""
    if not (DATA / "tokenizers").is_dir():
        pytest.skip(f"no test data in {DATA}")
    for name in NAMES:
        with tarfile.open(DATA / "tokenizers" / f"{name}.tgz") as tar:
            tar.extractall(to)
    return to
