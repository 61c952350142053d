"""--version of every program: one line, the same version."""

import pytest
from programs import run


@pytest.mark.parametrize("name", ["clime-server", "clime-router", "clime-train", "clime-tok"])
def test_version(name):
    status, out, _ = run(name, "--version")
    assert status == 0 and out == f"{name} {run('clime-router', '--version')[1].split()[1]}\n"
