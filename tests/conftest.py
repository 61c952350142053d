"""What all tests of pytest share: the two tiers, the order of files, and what a skip for missing data means."""

import fcntl
import json
import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "e2e"))  # programs.py and its like
from programs import FULL, chat_model, server  # noqa: E402

REQUIRE_DATA = os.environ.get("CLIME_REQUIRE_DATA") == "1"
# where no times are known yet
LONGEST = "sampling pairs rl external schemathesis ranks environments fleet router_faults front bad_runs router_replay resume sessions".split()
TIMES = pathlib.Path(os.environ.get("CLIME_TEST_TIMES", "/nonexistent"))  # seconds by file, kept by tests/run.py


def pytest_collection_modifyitems(config, items):
    """Leaves out the full tier unless it is asked for; puts the files that take longest first, so that no worker is left
    with a long one at the end."""
    if not FULL:
        left_out = [i for i in items if i.get_closest_marker("full")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [i for i in items if not i.get_closest_marker("full")]
    times = {f"tests/e2e/test_{name}.py": 1 for name in LONGEST} | (json.loads(TIMES.read_text()) if TIMES.exists() else {})
    seconds = lambda item: times.get(f"tests/{item.path.relative_to(config.rootpath)}", 0)
    items.sort(key=lambda item: -seconds(item))  # stable: tests of a file stay together, in their order


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """once(name, make): a folder that make(folder) has filled. It is made once a run of the tests, by the first worker that
    asks, and is for reading: tests of other workers have it too."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def get(name, make):
        folder, done = shared / name, shared / f"{name}.done"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def plain_server():
    """A server of the stories' model, for modules that only ask it."""
    with server() as s:
        yield s


@pytest.fixture(scope="session")
def chat_server(tmp_path_factory):
    """A server of the stories' model with a chat template, for modules that only ask it."""
    with server(model=chat_model(tmp_path_factory.mktemp("chat"))) as s:
        yield s


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With CLIME_REQUIRE_DATA=1 a test that is skipped for want of the shared data has failed."""
    report = yield
    if REQUIRE_DATA and report.skipped and isinstance(report.longrepr, tuple) and "shared data is absent" in report.longrepr[2]:
        report.outcome, report.longrepr = "failed", f"CLIME_REQUIRE_DATA=1, and {report.longrepr[2]}"
    return report
