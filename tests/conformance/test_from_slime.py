"""docs/from-slime.md against the parser: what each row says of an option is what happens when it is given.

A failure names every stale row and what the programs do instead.
"""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from programs import BUILD, run, tiny_model  # noqa: E402

PAGE = ROOT / "docs" / "from-slime.md"


def rows():
    """(line, words, here, differs) of every row."""
    found = []
    for n, line in enumerate(PAGE.read_text().splitlines(), 1):
        m = re.fullmatch(r"\| `(--.*?)` \| (.*?) \| (.*?) ?\|", line)
        if m:
            found.append((n, m[1].split(), m[2], m[3].replace("\\|", "|")))
    return found


def names(text):
    """Options of a --help, aliases too."""
    return set(re.findall(r"^  --([a-z0-9-]+)", text, re.M)) | set(re.findall(r"\(also\s+--([a-z0-9-]+)\)", text))


def help_of(*words):
    return names(subprocess.run([BUILD / words[0], *words[1:]], capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    d = tmp_path_factory.mktemp("slime")
    (d / "data.jsonl").write_text('{"input": "1+1", "label": "2"}\n')
    model = tiny_model(d / "model")
    base = ["rl", "--run", d / "none", "--hf-checkpoint", model, "--prompt-data", d / "data.jsonl", "--num-rollout", 1,
            "--rollout-batch-size", 1, "--n-samples-per-prompt", 2, "--rollout-max-response-len", 4, "--rm-type",
            "random", "--explain"]  # fmt: skip
    return dict(rl=help_of("clime-train", "rl", "--help-all"), inert=help_of("clime-train", "rl", "--help", "slime"),
                server=help_of("clime-server", "--help-all"),
                explain=lambda words: run("clime-train", *base, *words))  # fmt: skip


def to_server(name):
    m = re.match(r"(?:server|sglang|vllm)-(.*)", name)
    return m and m[1]


def known(p, name):
    return name in p["rl"] or to_server(name) in p["server"]


def check_same(p, words, differs):
    return None if known(p, words[0][2:]) else "no program has it"


def check_inert(p, words, differs):
    name = words[0][2:]
    status, out, err = p["explain"](words)
    if status:
        return err
    listed = re.search(rf"^  --{re.escape(name)}[^:\n]*: (.*)$", out.split("options without effect")[1], re.M)
    if not listed:
        return "--explain does not list it among the options without effect"
    return None if differs.startswith(listed[1]) else f"--explain's reason is: {listed[1]}"


def check_refused(p, words, differs):
    status, _, err = p["explain"](words)
    reason = re.search(rf"{re.escape(words[0])}\b.* cannot be honoured: (.*)", err)
    if status == 0:
        return "it is accepted"
    if not reason:
        return f"it fails without a reason: {err}"
    return None if differs.startswith(reason[1]) else f"its reason is: {reason[1]}"


def check_other(p, words, differs, named):
    for name in named:
        if not known(p, name):
            return f"no program has --{name}"
        if f"--{name}" not in differs:
            return f"the message does not name --{name}"
    return check_refused(p, words, differs)


def check_absent(p, words, differs):
    name = words[0][2:]
    if to_server(name) and name not in p["rl"] | p["inert"]:
        return "the server has it" if to_server(name) in p["server"] else None
    status, _, err = p["explain"](words)
    return None if status and f"unknown option {words[0]}" in err else f"it is known: {err}"


def check(p, words, here, differs):
    simple = {"same": check_same, "inert": check_inert, "refused": check_refused, "absent": check_absent}
    if here in simple:
        return simple[here](p, words, differs)
    if here.startswith("other: "):
        return check_other(p, words, differs, re.findall(r"`--([a-z0-9-]+)`", here))
    return f"'{here}' is none of same, other, inert, refused, absent"


def test_every_row(programs):
    stale = []
    for line, words, here, differs in rows():
        wrong = check(programs, words, here, differs)
        if wrong:
            stale.append(f"docs/from-slime.md:{line}: {' '.join(words)} | {here}: {wrong.strip()}")
    assert not stale, f"{len(stale)} stale rows\n" + "\n".join(stale)
    assert len(rows()) > 300


def test_every_inert_option_has_a_row(programs):
    assert sorted(programs["inert"] - {words[0][2:] for _, words, _, _ in rows()}) == []


def test_inert_options_are_no_rows_of_the_help(programs):
    assert len(programs["inert"]) > 190 and not programs["inert"] & programs["rl"]


def test_every_row_once():
    seen = [tuple(words) for _, words, _, _ in rows()]
    assert sorted({w for w in seen if seen.count(w) > 1}) == []
