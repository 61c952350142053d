"""The tokenizers of the shared data, unpacked. Shared by the conformance tests."""

import tarfile

from programs import DATA, need
NAMES = ["qwen3", "llama3", "glm4"]


def unpack_tokenizers(to):
    """A folder each; skips the test where there is no shared data."""
    need(DATA / "tokenizers")
    for name in NAMES:
        with tarfile.open(DATA / "tokenizers" / f"{name}.tgz") as tar:
            tar.extractall(to)
    return to
