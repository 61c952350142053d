"""Runs the tests that are built: the unit programs, then pytest; both on several processors. Called by scripts/test.

    tests/run.py [--full] [--unit] [pytest arguments]

Verdicts are exit statuses and JUnit files ($CLIME_BUILD/junit). The last lines are the slowest tests, those of the fast tier
that take over TOO_LONG seconds, what was skipped and why, and "N passed, N failed, N skipped".
"""

import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("CLIME_BUILD", "build"))
JUNIT = BUILD / "junit"
TIMES = BUILD / "test-times.json"  # seconds a file of tests took when it was last run: the longest begins first
SLOW = float(os.environ.get("CLIME_SLOW", 1))
UNIT_LIMIT = 300 * SLOW  # seconds of a unit program
TOO_LONG = 10 * SLOW  # seconds of a test of the fast tier
JOBS = int(os.environ.get("CLIME_TEST_JOBS", 0)) or os.cpu_count() or 2

Case = collections.namedtuple("Case", "file name seconds verdict text")


def cases_of(path, file=None):
    """The test cases of a JUnit file; none where it cannot be read."""
    try:
        tree = ET.parse(path)
    except (ET.ParseError, OSError):
        return
    for case in tree.iter("testcase"):
        found = {child.tag: child for child in case if child.tag in ("failure", "error", "skipped")}
        verdict = next((v for v in ("failure", "error", "skipped") if v in found), "passed")
        child = found.get(verdict)
        text = "" if child is None else child.get("message") or child.text or ""
        where = file or "tests/" + case.get("classname", "").replace(".", "/") + ".py"
        yield Case(where, case.get("name", ""), float(case.get("time", 0)), verdict, text.strip())


def run_unit(program):
    """Runs one unit program; its cases. A program that ends badly without a failed case is a failed case itself."""
    name = str(program.relative_to(BUILD / "unit"))
    prefix = JUNIT / name.replace("/", ".")
    env = os.environ | {"CMOCKA_MESSAGE_OUTPUT": "xml", "CMOCKA_XML_FILE": f"{prefix}.%g.xml"}
    with open(f"{prefix}.log", "wb") as log:
        process = subprocess.Popen([program], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)
        try:
            status = process.wait(UNIT_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = f"no end within {UNIT_LIMIT:.0f} s"
    cases = [c for path in sorted(JUNIT.glob(f"{prefix.name}.*.xml")) for c in cases_of(path, name)]
    if status != 0 and not any(c.verdict in ("failure", "error") for c in cases):
        cases.append(Case(name, "", 0, "error", f"exit {status}"))
    if status != 0:
        print(f"== {name}: exit {status}", *(f"{c.name}: {c.text}" for c in cases if c.verdict in ("failure", "error")),
              pathlib.Path(f"{prefix}.log").read_text(errors="replace"), sep="\n", flush=True)  # fmt: skip
    return cases


def run_units():
    programs = sorted(p for p in (BUILD / "unit").glob("*/test_*") if p.suffix == "" and os.access(p, os.X_OK))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        cases = list(itertools.chain.from_iterable(pool.map(run_unit, programs)))
    print(f"unit: {len(programs)} programs, {len(cases)} tests", flush=True)
    return cases


def run_pytest(words):
    """(exit status, cases)."""
    report = JUNIT / "pytest.xml"
    # one more than processors: tests wait for programs that wait; two more were no faster
    workers = [] if JOBS == 1 or {"-n", "--pdb", "-s"} & set(words) else ["-n", str(JOBS + 1), "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *workers,
               "--ignore-glob=*/test_clients_*.py",  # other people's clients: `make clients`
               "tests/conformance", "tests/e2e", *words]  # fmt: skip
    # tests are compiled once, not by each worker in each run: 10 s of a processor each
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"CLIME_TEST_TIMES": str(TIMES.resolve()), "PYTHONPYCACHEPREFIX": str((BUILD / "pycache").resolve())}
    return subprocess.run(command, cwd=ROOT, env=env).returncode, list(cases_of(report))


def keep_times(cases):
    """Remembers how long each file of tests took, for the order of the next run."""
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    took = collections.Counter()
    for c in cases:
        took[c.file] += c.seconds
    TIMES.write_text(json.dumps(times | {file: round(s, 1) for file, s in took.items()}, indent=0, sort_keys=True))


def report(cases, full):
    """Prints the summary; returns how many failed."""
    count = collections.Counter("failed" if c.verdict in ("failure", "error") else c.verdict for c in cases)
    slowest = sorted(cases, key=lambda c: -c.seconds)
    print("\nslowest:", *(f"  {c.seconds:6.1f} s  {c.file} {c.name}" for c in slowest[:10]), sep="\n")
    long = [] if full else [c for c in slowest if c.seconds > TOO_LONG]
    for c in long:
        print(f"over {TOO_LONG:.0f} s: {c.file} {c.name} ({c.seconds:.1f} s)")
    reasons = collections.Counter(" ".join(c.text.split()) or "no reason given" for c in cases if c.verdict == "skipped")
    for reason, n in reasons.most_common():
        print(f"skipped {n}: {reason}")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return count["failed"]


def main():
    words = sys.argv[1:]
    full, only_unit = "--full" in words, "--unit" in words
    words = [w for w in words if w not in ("--full", "--unit")]
    os.environ["CLIME_FULL"] = "1" if full else "0"
    shutil.rmtree(JUNIT, ignore_errors=True)
    JUNIT.mkdir(parents=True)
    cases = run_units()
    if not only_unit:
        status, found = run_pytest(words)
        if status != 0 and not any(c.verdict in ("failure", "error") for c in found):
            found.append(Case("pytest", "", 0, "error", f"exit {status}"))
            print(f"pytest: exit {status} without a failed test")
        cases += found
        keep_times(cases)
    sys.exit(1 if report(cases, full) else 0)


if __name__ == "__main__":
    main()
