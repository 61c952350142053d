"""scripts/layers: the tree keeps its rules, and each kind of breach is refused, in a small tree where it is planted."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What every planted tree holds beside its breach: header and user, from the bottom to the top.
SOUND = {
    "common/err.h": "",
    "text/bpe.h": '#include "common/err.h"\n',
    "kernels/kernels.h": '#include "common/err.h"\n',
    "kernels/cpu/tile.h": '#include "kernels/kernels.h"\n',
    "model/model.h": '#include "kernels/kernels.h"\n#include "text/bpe.h"\n',
    "server/job/job.h": '#include "model/model.h"\n',
    "server/api/routes.c": '#include "server/job/job.h"\n',
    "router/pick.c": '#include "text/bpe.h"\n',
    "trainer/sample/sample.h": '#include "common/err.h"\n',
    "trainer/plugin/plugin.h": "",
    "trainer/ledger/samples.c": '#include "trainer/sample/sample.h"\n',
    "examples/mine.c": '#include "trainer/plugin/plugin.h"\n',
    "model/grow.h": "",  # a module with an inside, and one that stands on it
    "model/grow_int.h": '#include "model/grow.h"\n',
    "model/grow.c": '#include "model/grow_int.h"\n',
    "model/rings.c": '#include "model/grow_int.h"\n',
    "model/wood.h": '#include "model/grow.h"\n',
    "model/saw.c": '#include "model/grow.h"\n#include "model/wood.h"\n',
}

BREACHES = {
    "a lower layer": ({"common/log.c": '#include "text/bpe.h"\n'},
                      "common/log.c includes text/bpe.h: common may not see text"),
    "a neighbour": ({"trainer/learn/x.c": '#include "server/job/job.h"\n'},
                    "trainer/learn/x.c includes server/job/job.h: trainer may not see server"),
    "an upper room": ({"trainer/ledger/db.h": "", "trainer/sample/sample.c": '#include "trainer/ledger/db.h"\n'},
                      "trainer/sample/sample.c includes trainer/ledger/db.h: trainer/sample may not see trainer/ledger"),
    "an upper room of the server": ({"server/engine/engine.h": "", "server/job/job.c": '#include "server/engine/engine.h"\n'},
                                    "server/job/job.c includes server/engine/engine.h: server/job may not see server/engine"),
    "through a header": ({"trainer/env/env.h": "", "trainer/sample/sample.h": '#include "trainer/env/env.h"\n'},
                         "trainer/sample/sample.h includes trainer/env/env.h: trainer/sample may not see trainer/env"),
    "a circle": ({"model/a.h": '#pragma once\n#include "model/b.h"\n', "model/b.h": '#pragma once\n#include "model/a.h"\n'},
                 "model/a.h and model/b.h include each other"),
    "a circle of modules": ({"model/fold.h": "", "model/cut.h": '#include "model/fold.h"\n', "model/fold.c": '#include "model/fold.h"\n#include "model/cut.h"\n'},
                            "a circle: model/cut -> model/fold -> model/cut"),
    "a circle through an inside": ({"model/sum.h": "", "model/sum_int.h": '#include "model/sum.h"\n', "model/parts.c": '#include "model/sum_int.h"\n#include "model/leaf.h"\n',
                                    "model/leaf.h": "", "model/leaf.c": '#include "model/leaf.h"\n#include "model/sum.h"\n'},
                                   "a circle: model/leaf -> model/sum -> model/leaf"),
    "private to kernels": ({"model/fast.c": '#include "kernels/cpu/tile.h"\n'},
                           "model/fast.c includes kernels/cpu/tile.h: private to kernels"),
    "an example": ({"examples/deep.c": '#include "trainer/sample/sample.h"\n'},
                   "examples/deep.c includes trainer/sample/sample.h: examples see trainer/plugin/plugin.h only"),
    "a new folder": ({"trainer/attic/x.c": '#include "common/err.h"\n'},
                     "trainer/attic/x.c: its folder is no room of scripts/layers"),
    "a crowd": ({f"text/t{i}.c": "" for i in range(40)}, "text has 41 files of its own: more than 40"),
    "two users": ({"common/a.c": "#include <sqlite3.h>\n", "common/b.c": "#include <sqlite3.h>\n"},
                  "sqlite3.h is included by more than one file: common/a.c common/b.c"),
}


def layers(tree):
    return subprocess.run(["scripts/layers"], cwd=tree, capture_output=True, text=True, timeout=300)


def plant(tree, files):
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/layers", tmp_path / "scripts/layers")
    subprocess.run(["git", "init", "-q", tmp_path], check=True, env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})
    plant(tmp_path, SOUND)
    return tmp_path


@pytest.mark.full  # CI runs scripts/layers itself
def test_this_tree():
    result = layers(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_sound_tree(tree):
    result = layers(tree)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("what", BREACHES)
def test_breach(tree, what):
    files, line = BREACHES[what]
    plant(tree, files)
    result = layers(tree)
    assert result.returncode == 1
    assert line in result.stdout.splitlines(), result.stdout + result.stderr


CALLS = {"text/odd.c": "int odd(int n) { int even(int); return n && even(n - 1); }\n",
         "text/even.c": "int even(int n) { int odd(int); return !n || odd(n - 1); }\n",
         "text/use.c": "int use(void) { int odd(int); return odd(3); }\n"}


@pytest.mark.parametrize("calls, known, line", [
    (CALLS, "", "a circle by calls that scripts/circles does not have: text/even.c text/odd.c"),
    (CALLS, "text/even.c text/odd.c\n", None),
    ({"text/use.c": CALLS["text/use.c"]}, "text/even.c text/odd.c\n", "scripts/circles has a circle that is gone: text/even.c text/odd.c"),
])
def test_circle_by_calls(tree, calls, known, line):
    plant(tree, {**calls, "scripts/circles": known})
    for name in (name for name in calls if name.endswith(".c")):
        made = tree / "build/obj" / name.replace(".c", ".o")
        made.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-I.", "-c", "-o", made, name], cwd=tree, check=True)
    result = layers(tree)
    assert result.returncode == (line is not None), result.stdout + result.stderr
    assert (line or "1 circles by calls") in result.stdout
