"""Runs whose servers pull the weights: the bits of a run that pushes them, whoever hands them on and whoever dies."""

import json
import os
import re

from many_mocks import Many
from programs import LIMIT, program
from programs import run as program_run
from test_fleet import Run, d, rl  # noqa: F401
from test_rl import final_sha

# Kills one of the trainer's servers before it answers for the first time.
KILLER = """
if mkdir "$ONCE" 2>/dev/null; then
    read -r pid name state above rest < "/proc/$PPID/stat"
    for p in /proc/[0-9]*; do
        read -r pid name state parent rest 2>/dev/null < "$p/stat" || continue
        case "$name $parent" in "(clime-server) $PPID" | "(clime-server) $above") kill -9 "$pid" && echo "$pid" > "$ONCE/killed" && break ;; esac
    done 2>/dev/null
fi
while IFS= read -r l; do id=${l#*\\"id\\":}; id=${id%%,*}; r=${l#*\\"response\\":}; echo "{\\"id\\":$id,\\"reward\\":0.$((${#r} % 7))}"; done
"""


def go(d, folder, *words, **change):  # noqa: F811
    run = Run(rl(d, folder, *words, **{"num_rollout": 5, "num_servers": 3, **change}))
    try:
        run.end()
    finally:
        run.stop()
    lines = [json.loads(line) for line in open(run.dir / "metrics.jsonl")]
    assert change.get("server_threads", 1) is None or all(m.get("train/train_rollout_logprob_abs_diff", 0) == 0 for m in lines)
    run.perf = [m for m in lines if "perf/update_weights_wire_bytes" in m]
    return run


def pulls(run):
    """(version, source, packets) of all pulls of the run's servers."""
    logs = [path.read_text(errors="replace") for path in (run.dir / "logs").glob("server-*.log")]
    return re.findall(r"weights of version (\d+) pulled from (\S+): (\d+) packets", "".join(logs))


def test_the_same_weights_as_pushed(d, tmp_path):  # noqa: F811
    pull = ["--update-weight-transport", "pull"]
    pushed = final_sha(go(d, tmp_path / "http", "--update-weight-transport", "http").log_path)
    run = go(d, tmp_path / "pull", *pull, "--update-weight-fanout", "1")
    assert pushed and final_sha(run.log_path) == pushed
    own = re.search(r"servers pull them from (\S+)", run.log()).group(1)
    done = pulls(run)
    assert {v for v, _, _ in done} == {str(v) for v in range(6)} and len(done) == 18, done
    assert all(n == ("0" if v == "0" else "1") for v, _, n in done), done  # they had version 0, of the same folder
    sources = {source for v, source, _ in done}
    assert own in sources and len(sources) > 1, done  # the trainer, and servers
    assert len(run.perf) == 5 and all(0 < m["perf/update_weights_density"] <= 1 for m in run.perf)

    folder = tmp_path / "shared"
    folder.mkdir()
    for name in ("0" * 64 + ".packet", "1" * 64 + ".packet.tmp.1234"):
        (folder / name).write_text("what a predecessor left, the second killed while it wrote")
    (folder / "note.tmp.1").write_text("of somebody else")
    run = go(d, tmp_path / "folder", *pull, "--update-weight-disk-dir", folder, "--update-delta-chain", "2")
    assert final_sha(run.log_path) == pushed
    assert {source for _, source, _ in pulls(run)} == {str(folder)}
    kept = sorted(set(os.listdir(folder)) - {"note.tmp.1"})
    assert 3 <= len(kept) <= 5 and all(re.fullmatch("[0-9a-f]{64}.packet", name) for name in kept), kept  # a whole one, two deltas, and those that just went
    assert not {"0" * 64 + ".packet", "1" * 64 + ".packet.tmp.1234"} & set(kept) and (folder / "note.tmp.1").exists()


def test_a_folder_that_cannot_be_written(d, tmp_path):  # noqa: F811
    """It is the trainer's trouble: the run ends with the reason, and no server is put in question."""
    folder, script = tmp_path / "shared", tmp_path / "reward.sh"
    script.write_text(f'rm -rf {folder}\n: > {folder}\nwhile read -r l; do id=${{l#*\\"id\\":}}; echo "{{\\"id\\":${{id%%,*}},\\"reward\\":0.5}}"; done\n')
    run = Run(rl(d, tmp_path / "run", "--update-weight-transport", "pull", "--update-weight-disk-dir", str(folder), "--rm-type", "command",
                 "--rm-command", f"sh {script}", rm_type=None, num_servers=1))  # fmt: skip
    try:
        assert run.process.wait(LIMIT) != 0
    finally:
        run.stop()
    assert f"cannot create {folder}/" in run.log().splitlines()[-1], run.log()[-2000:]
    assert "server-0 died" not in run.log() and run.log().count("is up at http") == 2, run.log()[-3000:]


def test_an_evaluation_pulls_nothing(d, tmp_path):  # noqa: F811
    """It has the words of a training run, whose folder it leaves alone."""
    packet = tmp_path / ("0" * 64 + ".packet")
    packet.write_text("the training run's")
    status, out, err = program_run("clime-train", "eval", "--run", tmp_path / "run", "--hf-checkpoint", d / "init", "--apply-chat-template",
                                   "--eval-prompt-data", "a", d / "task" / "heldout.jsonl", "--eval-input-key", "prompt", "--eval-label-key", "label",
                                   "--eval-max-response-len", 2, "--rm-type", "random", "--update-weight-transport", "pull",
                                   "--update-weight-disk-dir", tmp_path)  # fmt: skip
    assert status == 0, err
    assert packet.exists()


def test_an_address_that_servers_cannot_pull_from(d, tmp_path):  # noqa: F811
    """It is every address of the trainer's host, and of theirs."""
    for host in ("0.0.0.0", "::"):
        run = Run(rl(d, tmp_path / "all", "--update-weight-transport", "pull", "--update-weight-host", host, num_servers=1))
        try:
            assert run.process.wait(LIMIT) != 0
        finally:
            run.stop()
        assert f"--update-weight-host {host}" in run.log().splitlines()[-1], run.log()[-2000:]


def test_a_server_that_dies_takes_the_chain_or_a_whole_version(d, tmp_path, monkeypatch):  # noqa: F811
    script = tmp_path / "reward.sh"
    script.write_text(KILLER)
    shas = set()
    for name, kills in [("undisturbed", False), ("killed", True)]:
        once = tmp_path / f"{name}.once"
        monkeypatch.setenv("ONCE", str(once))
        if not kills:
            once.mkdir()
        run = go(d, tmp_path / name, "--update-weight-transport", "pull", "--rm-type", "command", "--rm-command", f"sh {script}", rm_type=None)
        shas.add(final_sha(run.log_path))
        assert (once / "killed").exists() == kills
        assert not kills or run.log().count("is up at http") == 5, run.log()[-3000:]  # router, three servers, and one again
        assert len([v for v, _, n in pulls(run) if v != "0" and int(n) > 0]) >= 15, pulls(run)
    assert len(shas) == 1 and None not in shas, shas


def test_servers_that_hand_on_may_die(d, tmp_path):  # noqa: F811
    """Of 24 servers three die while answers are under way: the others have every version, most of them from one another."""

    async def disturb(n):
        if n == 60:
            for mock in sorted(many.mocks, key=lambda m: -m.n_sent)[:3]:
                many.kill(mock)
                dead.append(mock)

    dead = []
    many = Many(24, on_answer=disturb)
    try:
        with program("clime-router", "--health-check-interval", "0.2", "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = go(d, tmp_path / "run", "--router-url", router.url, "--update-weight-transport", "pull", "--update-weight-fanout", "2",
                     num_servers=None, server_threads=None, server_concurrency=4, rollout_batch_size=16, update_quorum=1)  # fmt: skip
    finally:
        many.close()
    assert len(dead) == 3 and all(m.n_behind == 0 for m in many.mocks)
    alive = [m for m in many.mocks if m not in dead]
    assert all(m.version == "5" for m in alive), [(m.version, m.n_packets) for m in alive]
    handed = int(re.search(r"weights: (\d+) bytes were handed out", run.log()).group(1))
    assert handed < sum(m.n_sent for m in many.mocks), (handed, [m.n_sent for m in many.mocks])
