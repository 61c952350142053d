"""The programs of one round and what may be done to them: a trainer that is started again until it is done, its own router, servers
and environments or an outside fleet behind proxies, a reward server.

Every fault is a method that returns the name under which it is counted, or None when it met nothing. Whoever is stopped is woken
by a timer of its own, so that no order of faults can leave somebody asleep.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from proxy import Proxy
from reward import Reward

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "e2e"))
from programs import free_port  # noqa: E402

PROBES = ["--health-check-interval", "0.2", "--health-check-timeout", "2", "--health-failure-threshold", "2",
          "--health-success-threshold", "1"]  # fmt: skip
# With what a trainer may end but by a kill; a machine may have no more threads.
MAY_SAY = ("disk is full", "could be started", "no thread", "No space left", "database or disk is full", "waiting for",
           "--router-url: GET")  # fmt: skip


def processes():
    """(pid, parent, state, command line) of every process."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, parent = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[:2]
            yield int(entry), int(parent), state, pathlib.Path(f"/proc/{entry}/cmdline").read_text(errors="replace")


class Machine:
    def __init__(self, build, model, folder, kind, rng, hostile, n_rollouts):
        self.build, self.model, self.folder, self.kind, self.rng, self.hostile = build, model, folder, kind, rng, hostile
        self.n_rollouts = n_rollouts
        self.run_dir, self.log = folder / "run", folder / "log"
        self.reward = Reward(rng.random())
        self.outside, self.proxies, self.timers, self.restarts = {}, [], [], 0
        self.stopped_until, self.reward_killed = 0.0, False
        self.reward_proxy = self.proxied(self.reward.port)
        if kind == "outside fleet":
            self.start_outside()
        self.trainer = self.start()

    # ---- starting and ending ----

    def proxied(self, port):
        self.proxies.append(Proxy(port, self.rng.random()))
        return self.proxies[-1]

    def start_outside(self):
        """Two servers and their router, each reached through a proxy alone."""
        ports = {name: free_port() for name in ("server-0", "server-1", "router")}
        urls = {name: self.proxied(port).url for name, port in ports.items()}
        for name, port in ports.items():
            words = ["--model-path", self.model / "init", "--threads", 1] if name != "router" else \
                [*PROBES, "--worker-urls", urls["server-0"], urls["server-1"]]  # fmt: skip
            program = self.build / ("clime-router" if name == "router" else "clime-server")
            self.outside[name] = [None, [*map(str, (program, "--port", port, *words))]]
        self.router_url = urls["router"]
        self.keep_outside()

    def keep_outside(self):
        """Starts again what was killed, as whoever looks after such programs would."""
        for name, entry in self.outside.items():
            if entry[0] is None or entry[0].poll() is not None:
                entry[0] = subprocess.Popen(entry[1], stdout=subprocess.DEVNULL, stderr=open(self.folder / f"{name}.log", "a"))

    def words(self, **change):
        options = {
            "run": self.run_dir, "hf-checkpoint": self.model / "init", "prompt-data": self.model / "task" / "train.jsonl",
            "input-key": "prompt", "label-key": "label", "rm-type": "remote_rm", "rm-url": self.reward_proxy.url, "rm-timeout": 60,
            "num-rollout": self.n_rollouts, "rollout-batch-size": 4, "n-samples-per-prompt": 4, "num-steps-per-rollout": 2,
            "rollout-max-response-len": 48, "lr": 5e-4, "max-tokens-per-gpu": 512, "save-interval": 4, "threads": 1,
            "rollout-health-check-interval": 0.3, "rollout-health-check-timeout": 2, **change,
        }  # fmt: skip
        if self.kind == "outside fleet":
            options["router-url"] = self.router_url
        else:
            options |= {"num-servers": 2, "server-threads": 1}
        if self.kind == "environments":
            options |= {"environment-command": f"exec {sys.executable} {HERE}/environment.py", "num-environments": 2,
                        "rm-type": "command", "rm-command": f"exec {sys.executable} {HERE}/reward_command.py",
                        "environment-lease-timeout": 3, "environment-attempts": 1000, "rollout-max-context-len": 160}  # fmt: skip
        words = [self.build / "clime-train", "rl", "--apply-chat-template", "--rollout-shuffle", "--use-dynamic-batch-size"]
        for name, value in options.items():
            words += [f"--{name}", value]
        return [*map(str, words)]

    def start(self, **hostile):
        """The same command every time, on a machine that is hostile in this way."""
        self.begun = self.log.stat().st_size if self.log.exists() else 0
        env = os.environ | {f"HOSTILE_{k}": str(v) for k, v in hostile.items()} | ({"LD_PRELOAD": str(self.hostile)} if hostile else {})
        return subprocess.Popen(self.words(), stdout=open(self.log, "a"), stderr=subprocess.STDOUT, env=env)

    def restart(self, **hostile):
        if self.trainer.poll() is None:
            self.trainer.kill()
        self.trainer.wait()
        self.trainer = self.start(**hostile)

    def keep_trainer(self):
        """None while it works, 0 when it is done; one that ended with a word that it may say is started again."""
        status = self.trainer.poll()
        if status is None:
            return None
        said = self.log.read_bytes()[self.begun :].decode(errors="replace").splitlines()
        if status == 0 and any(line.startswith("done ") for line in said):
            return 0
        last = said[-8:]
        # SIGTERM before there is a rollout to end behind ends it at once.
        if status == -signal.SIGTERM or (status == 0 and any(line.startswith("stopped  by SIGTERM ") for line in last)):
            self.trainer = self.start()
            return None
        assert status == 1 and any(word in line for line in last[-3:] for word in MAY_SAY), (status, last)
        self.restarts += 1
        self.trainer = self.start()
        return None

    def close(self):
        for t in self.timers:
            t.cancel()
        with contextlib.suppress(ProcessLookupError):
            self.trainer.kill()
        self.trainer.wait()
        for process, _ in self.outside.values():
            process.kill()
            process.wait()
        for p in self.proxies:
            p.close()
        self.reward.close()

    # ---- faults ----

    def pick(self, who):
        """A process of that name, or None."""
        if who == "trainer":
            return self.trainer.pid if self.trainer.poll() is None else None
        if who in ("router", "server") and self.outside:
            live = [p.pid for name, (p, _) in self.outside.items() if name.startswith(who) and p.poll() is None]
        else:
            word = {"router": "clime-router", "server": "clime-server", "reward": "reward_command.py"}.get(who, "environment.py")
            live = sorted(pid for pid, parent, state, words in processes() if parent == self.trainer.pid and word in words and state != "Z")
        return self.rng.choice(live) if live else None

    def signal(self, pid, how):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)

    def kill(self, who):
        pid = self.pick(who)
        if pid is None:
            return None
        self.signal(pid, signal.SIGKILL)
        if who == "trainer":
            self.restart()
        return f"kill -9 {who}"

    def kill_reward(self):
        """Once a round: of a command that dies twice under the same question its sample has failed, as it should."""
        if self.reward_killed:
            return None
        name = self.kill("reward")
        self.reward_killed = name is not None
        return name

    def stop(self, who):
        """SIGSTOP, and SIGCONT after up to 3 s, which is longer than the probes wait."""
        pid, seconds = self.pick(who), self.rng.uniform(0.1, 3)
        if pid is None:
            return None
        self.signal(pid, signal.SIGSTOP)
        self.stopped_until = max(self.stopped_until, time.time() + seconds)
        self.timers.append(threading.Timer(seconds, self.signal, (pid, signal.SIGCONT)))
        self.timers[-1].start()
        return f"SIGSTOP {who}"

    def ask_to_end(self):
        pid = self.pick("trainer")
        if pid is not None:
            self.signal(pid, signal.SIGTERM)
        return None if pid is None else "SIGTERM trainer"

    def connections(self, how):
        proxy = self.rng.choice(self.proxies)
        seconds = self.rng.uniform(0.1, 1.5)
        met = {"cut": proxy.cut, "half-closed": proxy.half_close, "held up": lambda: proxy.hold(seconds),
               "refused": lambda: proxy.refuse(seconds)}[how]()  # fmt: skip
        return f"connections {how}" if met else None

    def misbehave(self, how):
        self.reward.misbehave(how, self.rng.randint(1, 4))
        return f"{how} reward"

    def full_disk(self):
        self.restart(FULL=self.run_dir, ROOM=self.rng.randint(0, 3_000_000))
        return "full disk"

    def leaping_clock(self):
        self.restart(CLOCK=1)
        return "leaping clock"

    def flipped_byte(self):
        """A byte of the newest checkpoint, while no trainer runs. The one before it must do, so there must be two."""
        saved = lambda: sorted((self.run_dir / "checkpoints").glob("step_*[0-9]"))
        until = time.time() + 20
        while len(saved()) < 2 and self.trainer.poll() is None and self.stopped_until < time.time() < until:
            self.keep_outside()
            time.sleep(0.01)
        self.trainer.kill()
        self.trainer.wait()
        folders = saved()
        met = None
        if len(folders) > 1:
            file = self.rng.choice(sorted(p for p in folders[-1].iterdir() if p.is_file() and p.stat().st_size))
            data = bytearray(file.read_bytes())
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            file.write_bytes(data)
            met = "flipped bit in a checkpoint"
        self.trainer = self.start()
        return met

    def second_trainer(self):
        """On the same folder: it is turned away with a word."""
        if self.trainer.poll() is not None or not (self.run_dir / "ledger.db").exists():
            return None
        done = subprocess.run(self.words(), capture_output=True, text=True, timeout=60)
        # The first may have been done, or gone, by the time that the second one looked.
        if done.returncode == 0 or self.trainer.poll() is not None:
            return None
        assert "another clime-train works on" in done.stdout + done.stderr, (done.stdout + done.stderr)[-1000:]
        return "second trainer"

    def faults(self):
        """Every fault that this kind of round may have, each with how often it is drawn."""
        found = [(3, lambda: self.kill("trainer")), (3, lambda: self.kill("server")), (2, lambda: self.kill("router")),
                 (2, lambda: self.stop("trainer")), (2, lambda: self.stop("server")), (2, lambda: self.stop("router")),
                 *((1, lambda how=how: self.misbehave(how)) for how in ("failing", "slow", "lying")),
                 *((2 if self.outside else 1, lambda how=how: self.connections(how)) for how in ("cut", "half-closed", "held up", "refused")),
                 (1, self.full_disk), (1, self.leaping_clock), (2, self.flipped_byte), (1, self.ask_to_end), (1, self.second_trainer)]  # fmt: skip
        if self.kind == "environments":
            found += [(5, lambda: self.kill("environment")), (3, lambda: self.stop("environment")), (3, self.kill_reward)]
        return found
