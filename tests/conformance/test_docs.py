"""README and docs against the tree and the programs: options, files, links, figures, tables and columns of the ledger. (The contracts
of openapi/ have test_openapi.py, options of slime test_from_slime.py, alarms and Prometheus' names unit and end-to-end tests.)"""

import json
import os
import pathlib
import re
import sqlite3
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CLIME_BUILD", ROOT / "build"))
DOCS = {doc.name: doc.read_text() for doc in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]}
OPTIONS = {f"options/{page.name}": page.read_text() for page in sorted((ROOT / "docs/options").glob("*.md"))}
LAB = {f"lab/{page.name}": page.read_text() for page in sorted((ROOT / "docs/lab").glob("*.md"))}
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def place(name, at):
    """Where it stands, as file:line."""
    return f"{name}:{DOCS[name].count(chr(10), 0, at) + 1}"


def test_options_are_current():
    check = subprocess.run(
        [ROOT / "scripts/docs", "--check"], env={**os.environ, "CLIME_BUILD": str(BUILD)}, capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_options_are_there_once():
    """No program has two options of one name, of which one would never be reached."""
    for program in OPTIONS.values():
        names = re.findall(r"^\| `--([\w-]+)", program, re.M) + re.findall(r"\(also `--([\w-]+)`\) \|$", program, re.M)
        assert len(names) == len(set(names)), (program.split("\n")[0], [n for n in names if names.count(n) > 1])


OF_OTHERS = {"--random-source", "--strict", "--max-restarts", "--nnodes", "--sync-tensorboard"}  # shuf, kubernetes-validate, torchrun, wandb


def test_options_that_are_named():
    """Every option that README and docs name is one of a program's, or of a script that is ours."""
    known = set(re.findall(r"--[a-z][a-z0-9-]*", "".join([DOCS["options.md"], *OPTIONS.values()]))) | OF_OTHERS | {"--help", "--help-all"}
    takes = r'(?:add_argument\(|strcmp\([\w\[\]]+, )"(--[a-z-]+)"|"(--[a-z-]+)" in (?:sys\.argv|words)'  # a script of ours, in Python or C
    known |= {w for f in TRACKED if f.startswith("tests/") for found in re.findall(takes, (ROOT / f).read_text(errors="ignore")) for w in found}
    wrong = []
    for name in DOCS.keys() - {"options.md", "from-slime.md"}:
        for m in re.finditer(r"(?<![\w-])--(?:(?:server|router)-)?(?:no-)?([a-z][a-z0-9-]*[a-z0-9])(?!-|\w)", DOCS[name]):
            if m[0] not in known and f"--{m[1]}" not in known:
                wrong.append(f"{place(name, m.start())}: {m[0]}")
    assert not wrong, wrong


def test_paths_exist():
    """Every file or folder of the tree that README and docs name is there."""
    folders = "common|text|grade|kernels|model|server|router|trainer|examples|openapi|scripts|tests|docs"
    named = re.compile(rf"(?<![\w/.])((?:{folders})/(?:[\w.-]+/)*(?:[\w-]+(?:\.[\w-]+)+|(?<=/)(?!\w)))")
    missing = []
    for name in DOCS.keys() - {"from-slime.md"}:  # slime's own folders
        for path in named.findall(DOCS[name]):
            if not re.search(r"[A-Z]{3}", path) and not (ROOT / path).exists():
                missing.append(f"{name}: {path}")
    assert not missing, missing


def test_sources_and_names_exist():
    """A source that is named without its folder is somewhere in the tree, and so is every function or struct of ours."""
    missing = []
    sources = "\n".join((ROOT / f).read_text() for f in TRACKED if f.endswith((".c", ".h", ".cu", ".cuh", ".js")))
    words = set(re.findall(r"\w+", sources))
    for name in DOCS.keys() - {"from-slime.md"}:
        for m in re.finditer(r"`([\w./-]+\.(?:c|h|cu|cuh|py|js|sh|jinja))`", DOCS[name]):
            if not re.search(r"[A-Z]{3}", m[1]) and not any(f"/{f}".endswith(f"/{m[1]}") for f in TRACKED):
                missing.append(f"{place(name, m.start())}: {m[1]}")
        for m in re.finditer(r"`(?:struct )?(clime_\w*\w)`", DOCS[name]):
            if m[1] not in words and f'"{m[1]}' not in sources:
                missing.append(f"{place(name, m.start())}: {m[1]}")
    assert not missing, missing


def test_the_table_of_clients():
    """protocol.md names each row of the table of clients, its version and where it runs; each has its script, and each script its row."""
    rows = [[c.strip() for c in line.split("|")] for line in (ROOT / "tests/e2e/clients/rows.txt").read_text().splitlines() if line[0] != "#"]
    places, said = {"S": "server", "R": "router", "E": "session", "T": "a run"}, []
    for name, where, _, _, packages, *_ in rows:
        package, version = re.match(r"([\w-]+)(?:\[[\w,]*\])?==([\w.]+)", packages).groups()
        said.append(f"| {name} | `{package}` {version} | {', '.join(places[w] for w in where)} |")
    table = DOCS["protocol.md"].split("| row | package | where |\n| --- | --- | --- |\n")[1].split("\n\n")[0].split("\n")
    assert table == said, "\n".join(said)
    scripts = {f.rsplit("/run_", 1)[1] for f in TRACKED if f.startswith("tests/e2e/clients/run_")}
    assert scripts == {name.replace("-", "_") + ".py" for name, *_ in rows}


def anchors(text):
    """Those that a reader of Markdown makes of headings."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", h).lower()).replace(" ", "-") for h in heads}


def test_links_lead_somewhere():
    """Every link leads to a file and a heading that are there; README leads to every page, and some page shows every picture."""
    wrong, reached = [], {}
    for name, text in (DOCS | LAB | OPTIONS).items():
        folder = ROOT if name in ("README.md", "CONTRIBUTING.md") else (ROOT / "docs" / name).parent
        for m in re.finditer(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)", text):
            to = (folder / m[1]).resolve() if m[1] else folder / pathlib.Path(name).name
            reached.setdefault(to, set()).add(name)
            if not to.exists() or (m[2] and m[2] not in anchors(to.read_text())):
                wrong.append(f"{place(name, m.start())}: {m[0]}")
    wrong += [f"README.md does not lead to {d}" for d in DOCS if d != "README.md" and "README.md" not in reached.get(ROOT / d if d == "CONTRIBUTING.md" else ROOT / "docs" / d, ())]
    wrong += [f"options.md does not lead to {page}" for page in OPTIONS if "options.md" not in reached.get(ROOT / "docs" / page, ())]
    wrong += [f"performance.md does not lead to {page}" for page in LAB if "performance.md" not in reached.get(ROOT / "docs" / page, ())]
    wrong += [f"no page shows {p.name}" for p in (ROOT / "docs/page").iterdir() if p not in reached]
    assert not wrong, wrong


def expanded(name):
    """x/{a,b} as x/a and x/b."""
    m = re.search(r"\{([^}]*)\}", name)
    return {name} if not m else {y for x in m[1].split(",") for y in expanded(name[: m.start()] + x + name[m.end() :])}


def test_figures():
    """The table of figures in metrics.md has what the trainer writes, no more and no less. What a figure's name has of a run is X."""
    table = DOCS["metrics.md"].split("## Figures\n")[1]
    named = set()
    for cell in re.findall(r"^\| (`.*?) \| `?\w+`? \| ", table, re.M):
        for name in re.findall(r"`([^`]+)`", cell):
            named |= {re.sub(r"(?<![A-Za-z])(?:[A-Z]{4,}|K|R)\b", "X", x) for x in expanded(name)}
    written = set()
    for f in TRACKED:
        if f.startswith("trainer/") and f.endswith(".c") and not f.startswith(("trainer/watch/page/", "trainer/watch/")):
            written |= set(re.findall(r'"((?:rollout|train|perf|eval)/[^"\\]*\w)"', (ROOT / f).read_text()))
    written = {re.sub(r"%[-.0-9]*[a-z]", "X", name) for name in written}
    lengths = {f"/response_len/{x}" for x in ("mean", "median", "max", "min")}  # of a prefix, PREFIXresponse_len/mean
    written |= {f"rollout{x}" for x in lengths} | {f"eval/X{x}" for x in lengths}
    for short, ends in {  # names that are put together of two
        "perf/X/X": ("perf/rank_sent_bytes/X", "perf/rank_waits_for/X"),
        "perf/rank/X/X_time": tuple(f"perf/rank/X/{x}_time" for x in ("forward", "backward", "optimizer", "wait")),
        "eval/X-pass@X": ("eval/X-pass@X", "eval/X-pass@X-ci95"),
        "eval/SET": (), "eval/SET-pass@k": (), "rollout/turns/branched": (), "rollout/turns/extended": (),  # in comments and in readers
    }.items():  # fmt: skip
        if short in written:
            written = written - {short} | set(ends)
    assert named == written, {"not written": sorted(named - written), "not in the table": sorted(written - named)}


def test_the_ledger(tmp_path):
    """Every query of docs runs, and ledger.md has every table, with columns that are there."""
    rows = [json.dumps({"prompt": f"{i} =", "response": str(i)}) for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    sizes = ("--hidden-size", "--intermediate-size", "--num-hidden-layers", "--num-attention-heads", "--num-key-value-heads", "--head-dim")
    for words in (["init", tmp_path / "model", *(w for s, n in zip(sizes, (16, 32, 1, 1, 1, 16)) for w in (s, str(n)))],
                  ["sft", "--hf-checkpoint", tmp_path / "model", "--prompt-data", tmp_path / "rows.jsonl", "--global-batch-size", "8",
                   "--run", tmp_path / "run", "--save-hf", tmp_path / "hf"]):  # fmt: skip
        done = subprocess.run([BUILD / "clime-train", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    db = sqlite3.connect(f"file:{tmp_path}/run/ledger.db?mode=ro", uri=True)
    queries = [q for text in DOCS.values() for b in re.findall(r"```sql\n(.*?)```", text, re.S) for q in b.split(";") if q.strip()]
    assert len(queries) > 10
    for query in queries:
        db.execute(query)
    tables = {t: {c[1] for c in db.execute(f'PRAGMA table_info("{t}")')} for (t,) in db.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite%'")}  # fmt: skip
    assert f"`PRAGMA user_version` (now {db.execute('PRAGMA user_version').fetchone()[0]})" in DOCS["ledger.md"]
    text, columns = DOCS["ledger.md"].split("## Tables")[1].split("## What always holds")[0].split("### samples")
    named = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", text, re.M))
    assert named.keys() == tables.keys()
    for table, said in named.items():
        while re.search(r"\([^()]*\)", said):  # what stands in brackets are values, and columns of others
            said = re.sub(r"\([^()]*\)", "", said)
        if table != "samples":
            assert set(re.findall(r"`(\w+)`", said)) <= tables[table], table
    said = {c for row in re.findall(r"^\| (`.*?) \| ", columns, re.M) for c in re.findall(r"`(\w+)`", row)}
    assert len(said) > 20 and said <= tables["samples"], said - tables["samples"]
