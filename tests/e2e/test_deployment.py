"""The files of scripts/launch: their command lines start the programs, probes are answered, a drain ends in order, and what they
name (packages, metrics, keys) is there. The Slurm file runs with stand-ins for srun and scontrol that do what it expects of them."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

import httpx
import pytest
import yaml
from programs import BUILD, LIMIT, ROOT, free_port, program, run, tiny_model, web

LAUNCH = ROOT / "scripts" / "launch"


def documents(name):
    return [d for d in yaml.safe_load_all((LAUNCH / name).read_text()) if d]


def pod(document):
    spec = document["spec"]
    if document["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return spec["template"]["spec"]


def container(name, kind):
    return pod(next(d for d in documents(f"kubernetes/{name}.yaml") if d["kind"] == kind))["containers"][0]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where a container would find its policy, keys and data."""
    folder = tmp_path_factory.mktemp("deployment")
    for name in ("admin", "client"):
        (folder / name).write_text(f"{name}-key")
    tiny_model(folder / "policy")
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+1", "label": str(i + 1)}) + "\n" for i in range(40)))
    return folder


def here(words, place, **more):
    """The command's words with this machine's places."""
    changes = {"/keys": place, "/models/policy": place / "policy", "/data": place, "/runs": place / "runs", **more}
    out = []
    for word in words:
        for a, b in changes.items():
            word = word.replace(a, str(b))
        out.append(word)
    return out


def wait_for(ask):
    end = time.monotonic() + LIMIT
    while not (answer := ask()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return answer


def probe(port, path):
    try:
        return web.get(f"http://127.0.0.1:{port}{path}", timeout=LIMIT).status_code == 200
    except httpx.ConnectError:  # before anybody listens
        return False


def ports(c):
    return {p["name"]: p["containerPort"] for p in c["ports"]}


def start(c, place, **more):
    """A container's command, its ports replaced by free ones: (process, {name: port})."""
    given = {name: (number, free_port()) for name, number in ports(c).items()}
    words = here([*c["command"], *c["args"]], place, **more)
    for number, free in given.values():
        assert any(w.endswith(f"port={number}") for w in words), f"no option says port {number}"
        words = [re.sub(f"(port=|http://127.0.0.1:){number}$", rf"\g<1>{free}", w) for w in words]
    process = subprocess.Popen([BUILD / words[0], *words[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return process, {name: free for name, (_, free) in given.items()}


def end(process):
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err.decode()[-2000:]


def test_kubernetes_fleet(place):
    """Router and server as the manifests start them find each other, their probes answer, and SIGTERM takes a server out."""
    router, server = container("router", "Deployment"), container("servers", "Deployment")
    r, at = start(router, place)
    try:
        wait_for(lambda: probe(at["health"], router["readinessProbe"]["httpGet"]["path"]))
        assert probe(at["health"], router["livenessProbe"]["httpGet"]["path"])
        s, own = start(server, place, **{"http://clime-router:30000": f"http://127.0.0.1:{at['http']}", "$(POD_IP)": "127.0.0.1"})
        try:
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert ports(server)[server[kind]["httpGet"]["port"]] == ports(server)["health"]
                wait_for(lambda k=kind: probe(own["health"], server[k]["httpGet"]["path"]))
            ask = {"input_ids": [5], "sampling_params": {"max_new_tokens": 2}}
            url = f"http://127.0.0.1:{at['http']}"
            wait_for(lambda: web.post(f"{url}/generate", json=ask, headers={"Authorization": "Bearer client-key"}).status_code == 200)
            assert web.post(f"{url}/generate", json=ask).status_code == 401
        finally:
            end(s)
        workers = web.get(f"{url}/workers", headers={"Authorization": "Bearer admin-key"}).json()
        assert not [w for w in workers.get("workers", workers) if w.get("url", "").endswith(str(own["http"]))], workers
    finally:
        end(r)


@pytest.mark.parametrize("name", ["servers", "router", "trainer"])
def test_kubernetes_selectors_and_times(name):
    """Selectors find what they are of, and a pod has longer to end than its program takes."""
    labels = []
    for d in documents(f"kubernetes/{name}.yaml"):
        if d["kind"] in ("Deployment", "JobSet"):
            spec = d["spec"] if d["kind"] == "Deployment" else d["spec"]["replicatedJobs"][0]["template"]["spec"]
            labels.append(spec["template"]["metadata"]["labels"])
            c = pod(d)["containers"][0]
            drain = [int(w.split("=")[1]) for w in c.get("args", []) if w.startswith("--drain-timeout=")]
            assert all(pod(d)["terminationGracePeriodSeconds"] > x for x in drain)
            assert {m["name"] for m in c["volumeMounts"]} == {v["name"] for v in pod(d)["volumes"]}
    for d in documents(f"kubernetes/{name}.yaml"):
        if d["kind"] == "JobSet":
            continue
        selector = d["spec"]["selector"]
        assert selector.get("matchLabels", selector) in labels, d["kind"]


def explained(words, place):
    """The trainer's command as far as its plan."""
    words = here(words, place, **{"http://clime-router:30000": "http://127.0.0.1:9", "http://router:30000": "http://127.0.0.1:9"})
    assert words[:2] == ["clime-train", "rl"]
    alone = [w for w in words[1:] if not w.startswith("--actor-num-nodes")]
    status, out, err = run("clime-train", *alone, "--explain")
    assert status == 0 and "memory" in out, (out, err)


def test_kubernetes_trainer(place):
    """The options are good, and the script starts a rank for each GPU of this host and ends with the first that fails."""
    c = container("trainer", "JobSet")
    explained(["clime-train", "rl", *c["args"]], place)
    sizes = {e["name"]: e.get("value") for e in c["env"]}
    said = dict(w[2:].split("=", 1) for w in c["args"] if "=" in w)
    assert said["actor-num-nodes"] == sizes["HOSTS"] and said["actor-num-gpus-per-node"] == sizes["GPUS"]
    (place / "bin").mkdir(exist_ok=True)
    (place / "bin" / "clime-train").write_text('#!/bin/sh\necho "$RANK $LOCAL_RANK $WORLD_SIZE $*" >> "$OUT"\n'
                                              'if [ "$RANK" = 9 ]; then until [ $(wc -l <"$OUT") = 8 ]; do sleep 0.05; done; exit 3; fi\nexec sleep 600\n')  # fmt: skip
    (place / "bin" / "clime-train").chmod(0o755)
    out = place / "ranks"
    environment = {**os.environ, **{k: v for k, v in sizes.items() if v}, "JOB_COMPLETION_INDEX": "1", "OUT": str(out),
                   "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}  # fmt: skip
    done = subprocess.run([*c["command"], *c["args"][:2]], env=environment, timeout=LIMIT)
    assert done.returncode == 3
    lines = out.read_text().splitlines()
    assert all(re.fullmatch(r"(\d+) (\d+) 16 rl " + " ".join(c["args"][:2]), x) for x in lines)
    assert sorted((int(x.split()[0]), int(x.split()[1])) for x in lines) == [(8 + i, i) for i in range(8)]


def test_compose(place):
    """Every service's command is one that its program takes."""
    services = documents("compose.yaml")[0]["services"]
    for name, service in services.items():
        words = here(service["command"], place)
        if words[0] == "clime-train":
            explained(service["command"], place)
        else:
            status, out, err = run(words[0], *words[1:], "--print-routes")
            assert status == 0, (name, err)
            path = re.search(r"30001(/\w+)", " ".join(service["healthcheck"]["test"])).group(1)
            assert path in {r["path"] for r in json.loads(out)}
        assert set(service.get("depends_on", {})) <= set(services)


def test_systemd(place, tmp_path):
    """Units that systemd itself finds good (where it is there), with commands that the programs take."""
    for unit in sorted((LAUNCH / "systemd").iterdir()):
        text = unit.read_text().replace("\\\n", " ")
        words = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M).group(1))
        change = {"%i": "1", "%d": str(place), "%S": str(place), "${MODEL}": str(place / "policy"), "${ROUTER}": "http://127.0.0.1:9"}
        for a, b in change.items():
            words = [w.replace(a, b) for w in words]
        name = words[0].rsplit("/", 1)[1]
        if name == "clime-train":
            options = ["--hf-checkpoint", str(place / "policy"), "--prompt-data", str(place / "train.jsonl"), "--input-key", "prompt", "--label-key", "label",
                       "--rollout-batch-size", "4", "--rm-type", "math",
                       "--num-rollout", "1", "--n-samples-per-prompt", "2", "--rollout-max-response-len", "4"]  # fmt: skip
            words = [w for word in words for w in (options if word == "$TRAIN_OPTIONS" else [word])]
            status, _, err = run(name, *words[1:], "--explain")
        else:
            status, _, err = run(name, *words[1:], "--print-routes")
        assert status == 0, (unit.name, err)
        drain = re.search(r"--drain-timeout (\d+)", text)
        assert not drain or int(re.search(r"TimeoutStopSec=(\d+)", text).group(1)) > int(drain.group(1))
        installed = tmp_path / unit.name.replace("@", "@1")
        installed.write_text(unit.read_text().replace("/usr/local/bin", str(BUILD.resolve())))
        if shutil.which("systemd-analyze"):
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(installed)], capture_output=True, text=True, timeout=LIMIT)
            assert done.returncode == 0 and str(tmp_path) not in done.stderr, done.stderr


def test_container_packages():
    """The image has a package for each library that the programs are linked with, and builds with scripts/setup."""
    text = (LAUNCH / "Containerfile").read_text().replace("\\\n", " ")
    assert "RUN scripts/setup && make" in text
    packages = set(re.search(r"--no-install-recommends (.*?) &&", text).group(1).replace("${UTF8PROC}", re.search(r"UTF8PROC=(\S+)$", text, re.M).group(1)).split())
    if not shutil.which("dpkg-query"):
        pytest.skip("no dpkg here")
    programs = [BUILD / name for name in ("clime-server", "clime-router", "clime-train", "clime-tok")]
    listed = subprocess.run(["readelf", "-d", *programs], capture_output=True, text=True).stdout
    libraries = {x for x in re.findall(r"NEEDED.*\[(.*?)\]", listed) if "san" not in x}
    assert len(libraries) > 8
    owned = subprocess.run(["dpkg-query", "-S", *(f"*/{x}" for x in sorted(libraries))], capture_output=True, text=True).stdout
    base = {"libc6", "libgcc-s1", "libstdc++6"}  # of every image
    for library in libraries:
        owners = {line.split(":")[0] for line in owned.splitlines() if line.endswith(f"/{library}")}
        assert owners & (packages | base), (library, owners)


def test_dashboard(place):
    """Every metric of the dashboard is one that a program gives or docs/metrics.md lists."""
    board = json.loads((LAUNCH / "grafana.json").read_text())
    names = set()
    for p in board["panels"]:
        for t in p.get("targets", []):
            names |= set(re.findall(r"\b((?:clime|sglang)[_:][a-z_]+)", t["expr"]))
    assert len(names) > 30
    with program("clime-router") as r, program("clime-server", "--model-path", place / "policy", "--router", r.url) as s:
        s.json("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 2}})
        wait_for(lambda: r.post("/generate", {"input_ids": [5], "sampling_params": {"max_new_tokens": 2}}).status_code == 200)
        text = s.get("/metrics").text + r.get("/metrics").text
    there = set(re.findall(r"^([a-z_:]+)", text, re.M)) | set(re.findall(r"`(clime_train_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    assert names <= there, names - there


STAND_INS = {
    "scontrol": '#!/bin/sh\necho "$SLURM_JOB_NODELIST"\n',
    # as srun: -n tasks side by side on this node, each told which it is; the first that fails ends all where asked
    "srun": """#!/bin/bash
n=1
while [ $# -gt 0 ]; do
    case $1 in
    -n) n=$2; shift 2 ;;
    -N | -w) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
tasks=()
trap 'kill "${tasks[@]}" 2>/dev/null' TERM
for ((i = 0; i < n; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NTASKS=$n "$@" & tasks+=($!); done
status=0
for task in "${tasks[@]}"; do
    wait "$task" || status=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task" || status=$?; done
done
exit $status
""",
}


def test_slurm(place, tmp_path):
    """A whole run as the sbatch file lays it out: router, server, two ranks; the job ends with its trainer, the fleet with the job."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7",
                   "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "127.0.0.1", "TRAIN_GPUS": "2", "SERVERS": "1", "RUN": str(tmp_path / "run"),
                   "ROUTER_PORT": str(free_port()), "MASTER_PORT": str(free_port()), "FIRST_SERVER_PORT": str(free_port())}  # fmt: skip
    (tmp_path / "build").symlink_to(BUILD.resolve())
    done = subprocess.run([LAUNCH / "clime.sbatch", f"--hf-checkpoint={place / 'policy'}", "--prompt-data", place / "train.jsonl", "--input-key", "prompt", "--label-key", "label",
                           "--rm-type", "math", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--num-rollout", "1",
                           "--rollout-max-response-len", "4", "--threads", "1"],
                          env=environment, capture_output=True, text=True, timeout=4 * LIMIT)  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search(r"^done +1 rollouts.*sha256 \w{64}$", done.stdout, re.M), done.stdout
    assert (tmp_path / "run" / "keys" / "admin").stat().st_mode & 0o77 == 0
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert not left, left


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no Open MPI here")
def test_mpirun(place, tmp_path):
    """Two ranks by Open MPI end with the weights of one process."""
    words = ["--hf-checkpoint", place / "policy", "--prompt-data", place / "train.jsonl", "--input-key", "prompt", "--label-key", "label", "--rm-type", "command",
             "--rm-command", f"python3 {ROOT}/examples/rewards/close_reward.py", "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--num-rollout", "1",
             "--rollout-max-response-len", "4", "--threads", "1", "--gradient-lanes", "2"]  # fmt: skip
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.getuid() == 0 else {}
    environment = {**os.environ, **root, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CLIME_TRAIN": str(BUILD / "clime-train")}
    together = subprocess.run([LAUNCH / "mpirun.sh", "2", "--oversubscribe", "--", "--run", tmp_path / "two", *words],
                              env=environment, capture_output=True, text=True, timeout=4 * LIMIT)  # fmt: skip
    status, alone, err = run("clime-train", "rl", "--run", tmp_path / "one", *words)
    assert together.returncode == 0 and status == 0, (together.stdout[-2000:], together.stderr[-2000:], err)
    assert re.search(r"sha256 (\w{64})", together.stdout).group(1) == re.search(r"sha256 (\w{64})", alone).group(1)
