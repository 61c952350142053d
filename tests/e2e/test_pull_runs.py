"""Runs whose servers pull the weights: the bits of a run that pushes them, whoever hands them on and whoever dies."""

import asyncio
import json
import os
import re

from many_mocks import Many
from mocks import workers
from programs import LIMIT, program
from programs import run as program_run
from test_fleet import Run, d, rl  # noqa: F401
from test_many_servers import wait_until
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
    kept = sorted(set(os.listdir(folder)) - {"note.tmp.1", ".lock"})
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


def test_two_runs_and_one_folder(d, tmp_path):  # noqa: F811
    """The second would remove what the first one's servers are about to fetch: it is refused."""
    asked, go_on = tmp_path / "asked", tmp_path / "go"
    reward = f': >{asked}; until [ -e {go_on} ]; do sleep 0.05; done; while read -r l; do id=${{l#*\\"id\\":}}; echo "{{\\"id\\":${{id%%,*}},\\"reward\\":0.5}}"; done'
    words = ["--update-weight-transport", "pull", "--update-weight-disk-dir", str(tmp_path / "shared")]
    first = Run(rl(d, tmp_path / "first", *words, num_servers=1, rm_type="command", rm_command=reward, rm_timeout=2 * LIMIT))
    try:
        wait_until(asked.exists, first)
        second = Run(rl(d, tmp_path / "second", *words, num_servers=1))
        try:
            assert f"another clime-train publishes in {tmp_path / 'shared'}" in second.end(1).splitlines()[-1]
        finally:
            second.stop()
        go_on.touch()
        first.end()
    finally:
        first.stop()


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


def test_an_address_that_other_hosts_cannot_pull_from(d, tmp_path):  # noqa: F811
    """By default it is this host's alone."""

    def lists(handler, _):
        if handler.path != "/workers" or handler.command != "GET":
            return False
        handler.reply(200, {"workers": [{"url": "http://127.0.0.1:9"}, {"url": "http://[::1]:9"}, {"url": "http://192.0.2.1:30000"}]})
        return True

    with workers(1, lists) as (router,):
        run = Run(rl(d, tmp_path / "run", "--router-url", router.url, "--update-weight-transport", "pull", server_threads=None))
        try:
            run.wait_for(r"http://192\.0\.2\.1:30000 has no loopback address: .* cannot pull weights from 127\.0\.0\.1 .--update-weight-host")
        finally:
            run.stop()
        assert run.log().count("no loopback address") == 1


def test_a_server_that_hands_nothing_on_is_no_source(d, tmp_path):  # noqa: F811
    many = Many(8)
    for mock in many.mocks:
        mock.keeps = False
    try:
        with program("clime-router", "--worker-urls", *(m.url for m in many.mocks)) as router:
            go(d, tmp_path / "run", "--router-url", router.url, "--allow-difference", "identity", "--update-weight-transport", "pull", "--update-weight-fanout", "2",
               num_servers=None, server_threads=None, server_concurrency=4, update_quorum=1)  # fmt: skip
    finally:
        many.close()
    assert all(len(m.sources) == 6 for m in many.mocks), [len(m.sources) for m in many.mocks]
    assert all(len(sources) == 1 for m in many.mocks for sources in m.sources), [m.sources for m in many.mocks]


def test_a_pull_that_is_outdated_is_given_up(d, tmp_path):  # noqa: F811
    """It does not end, and the rollouts go on without that server: it is asked for the newest version."""
    samples, freed = 32, asyncio.Event()

    async def wait_for_it(n):
        if n > 3 * samples:  # of the fourth rollout
            await freed.wait()

    many = Many(12, on_answer=wait_for_it)
    late = many.mocks[5]
    late.stuck = True
    try:
        with program("clime-router", "--health-check-interval", "0.2", "--worker-urls", *(m.url for m in many.mocks)) as router:
            run = Run(rl(d, tmp_path / "run", "--router-url", router.url, "--allow-difference", "identity", "--update-weight-transport", "pull", num_rollout=6, server_threads=None,
                         server_concurrency=4, rollout_batch_size=16, n_samples_per_prompt=2))  # fmt: skip
            try:
                wait_until(lambda: late.number not in (None, 0), run)
                many.loop.call_soon_threadsafe(freed.set)
                run.end()
            finally:
                run.stop()
    finally:
        many.close()
    assert re.search(rf"the pull of version 1 by {late.url} is given up: version \d is out", run.log()), run.log()[-3000:]
    assert late.n_behind == 0


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
            run = go(d, tmp_path / "run", "--router-url", router.url, "--allow-difference", "identity", "--update-weight-transport", "pull", "--update-weight-fanout", "2",
                     num_servers=None, server_threads=None, server_concurrency=4, rollout_batch_size=16, update_quorum=1)  # fmt: skip
    finally:
        many.close()
    assert len(dead) == 3 and all(m.n_behind == 0 for m in many.mocks)
    alive = [m for m in many.mocks if m not in dead]
    assert all(m.number == 5 for m in alive), [(m.version, m.n_packets) for m in alive]
    handed = int(re.search(r"weights: (\d+) bytes were handed out", run.log()).group(1))
    assert handed < sum(m.n_sent for m in many.mocks), (handed, [m.n_sent for m in many.mocks])
