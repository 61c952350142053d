"""A user's first hour: the help that is read first, mistakes that are told before anything is loaded, a reward that
cannot be right, what the screen shows, and Ctrl-C."""

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest
from programs import BUILD, LIMIT, ROOT, few_threads, run, tiny_model

# ---- help ------------------------------------------------------------------------------------------------------------


def options_in(text):
    return re.findall(r"^  --([\w-]+)", text, re.M)


def readme_command():
    """The words of README's command for a downloaded model and GSM8K, as pairs of option and value."""
    text = (ROOT / "README.md").read_text()
    block = next(b for b in re.findall(r"```sh\n(.*?)```", text, re.S) if "clime-train rl --run runs/gsm8k" in b)
    return dict(re.findall(r"--([\w-]+)(?: ([^\s\\-][^\s\\]*))?", block))


@pytest.mark.parametrize("command", ["rl", "eval"])
def test_help_is_short(command):
    status, out, _ = run("clime-train", command, "--help")
    assert status == 0
    assert len(out.splitlines()) <= 90
    assert 25 <= len(options_in(out)) <= 40
    for name in readme_command():
        assert name in options_in(out), f"--{name} of README is not in the short help"
    for group in ("Off-policy corrections", "Critic of ppo", "Evaluation"):
        assert group in out
    assert "--help-all" in out


def test_help_of_a_group():
    status, out, _ = run("clime-train", "rl", "--help", "corrections")
    assert status == 0 and "tis-level" in options_in(out) and "lr" not in options_in(out)
    assert "Off-policy corrections\n" in out
    status, out, _ = run("clime-train", "rl", "--help", "--tis-level")  # an option's name shows that one
    assert status == 0 and options_in(out) == ["tis-level"]
    status, out, err = run("clime-train", "rl", "--help", "nonsense")
    assert status != 0 and "nonsense" in err and "Off-policy corrections" in err and "Traceback" not in err


def test_help_of_few_options():
    status, out, _ = run("clime-train", "report", "--help")
    assert status == 0 and options_in(out) == ["now"] and "--help-all" not in out  # there is no more


def test_help_all():
    status, out, _ = run("clime-train", "rl", "--help-all")
    assert status == 0
    short = options_in(run("clime-train", "rl", "--help")[1])
    assert len(options_in(out)) > 200 and set(short) <= set(options_in(out))
    # a short table is shown whole
    whole = run("clime-router", "--help-all")[1]
    assert whole == run("clime-router", "--help")[1] and "policy" in options_in(whole)


# ---- README's command on one's own data ------------------------------------------------------------------------------

GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 altogether.\n#### 72"


def grade(rm_type, answers, label):
    lines = "".join(json.dumps({"response": a, "label": label}) + "\n" for a in answers)
    status, out, err = run("clime-train", "grade", "--rm-type", rm_type, stdin=lines.encode())
    assert status == 0, err
    return [json.loads(line).get("reward") for line in out.splitlines()]


def in_shell(command):
    """What the words print in a shell that finds the programs."""
    env = {**os.environ, "PATH": f"{BUILD.resolve()}:/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=LIMIT).stdout


def test_reward_of_readme():
    """A label is what the data set has there, a whole solution; a right answer counts however it is put."""
    answers = ["So it is \\boxed{72}.", "She sold 72 clips. The answer is 72.", "48 + 24 = 72\n#### 72", "\\boxed{24}"]
    assert grade(readme_command()["rm-type"], answers, GSM8K) == [1, 1, 1, 0]
    shown = re.search(r"^printf .*(\n .*)?clime-train grade .*", (ROOT / "docs/data.md").read_text(), re.M)[0]
    assert in_shell(shown.replace("build/clime-train", "clime-train")) == '{"reward":1.0}\n'


# ---- what is said before anything is loaded --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("hour") / "model")


@pytest.fixture
def taken_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


def rl(model, data, run_dir, *more, rm_type="math", **change):
    words = {"run": run_dir, "hf-checkpoint": model, "prompt-data": data, "num-rollout": 2, "rollout-batch-size": 2,
             "n-samples-per-prompt": 2, "rollout-max-response-len": 8, "max-tokens-per-gpu": 512, "label-key": "label",
             **({"rm-type": rm_type} if rm_type else {}),
             **{k.replace("_", "-"): v for k, v in change.items()}}  # fmt: skip
    return few_threads(["rl", "--use-dynamic-batch-size", *(w for k, v in words.items() for w in (f"--{k}", v)), *more])


def prompts(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def refused(name, words, *parts):
    """Ends at once with one line that holds the parts; nothing was loaded or started."""
    status, out, err = run(name, *words)
    lines = err.strip().splitlines()
    assert status not in (0, None) and len(lines) == 1, err
    assert not out and "memory:" not in err
    for part in parts:
        assert part in lines[0], (part, lines[0])


HUB = "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("name, words, option", [
    ("clime-server", ["--model-path", HUB], "--model-path"),
    ("clime-train", ["rl", "--run", "r", "--hf-checkpoint", HUB, "--prompt-data", "x", "--rollout-batch-size", 1,
                     "--num-rollout", 1, "--n-samples-per-prompt", 2, "--rollout-max-response-len", 8,
                     "--rm-type", "math"], "--hf-checkpoint"),
    ("clime-train", ["eval", "--run", "r", "--hf-checkpoint", HUB, "--eval-prompt-data", "x",
                     "--eval-max-response-len", 8], "--hf-checkpoint"),
    ("clime-train", ["sft", "--hf-checkpoint", HUB, "--prompt-data", "x", "--save-hf", "y"], "--hf-checkpoint"),
])  # fmt: skip
def test_name_of_the_hub(name, words, option):
    refused(name, words, f"{option} {HUB}", "no such folder", f"hf download {HUB} --local-dir Qwen3-0.6B")


@pytest.mark.parametrize("kind, says", [("missing", "no such folder"), ("file", "is no folder"),
                                        ("empty", "no config.json"), ("untokenized", "no tokenizer.json"),
                                        ("weightless", "no model.safetensors"), ("pickled", "pytorch_model.bin are not read"),
                                        ("unfetched", "model.safetensors is a pointer of Git LFS"),
                                        ("unfetched tokenizer", "tokenizer.json is a pointer of Git LFS")])  # fmt: skip
def test_folder_that_is_no_model(model, tmp_path, kind, says):
    folder = tmp_path / "folder"
    if kind == "file":
        folder.write_text("")
    elif kind != "missing":
        folder.mkdir()
    small = ["config.json", "tokenizer.json"]
    for part in {"untokenized": small[:1], "weightless": small, "pickled": small, "unfetched": small,
                 "unfetched tokenizer": [*small, "model.safetensors"]}.get(kind, []):  # fmt: skip
        shutil.copy(model / part, folder / part)
    if kind == "pickled":
        (folder / "pytorch_model.bin").write_bytes(b"PK")
    if kind.startswith("unfetched"):  # as git clone leaves it where git-lfs is not installed
        (folder / ("tokenizer.json" if "tokenizer" in kind else "model.safetensors")).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12\n")
    refused("clime-server", ["--model-path", folder], f"--model-path {folder}", says)
    data = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1"})
    refused("clime-train", rl(folder, data, tmp_path / "run"), f"--hf-checkpoint {folder}", says)


def test_further_models_that_cannot_be(model, tmp_path):
    """Of another shape than what the servers are started with; and a critic that is no folder."""
    data, other = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1"}), tmp_path / "other"
    assert run("clime-train", "init", other, "--hidden-size", 32)[0] == 0
    for option in ("ref_load", "load"):
        words = rl(model, data, tmp_path / "run", **{option: other})
        refused("clime-train", words, f"--{option.replace('_', '-')} {other}", "another architecture or shape", f"--hf-checkpoint {model}")
    words = rl(model, data, tmp_path / "run", advantage_estimator="ppo", critic_load=tmp_path / "none")
    refused("clime-train", words, f"--critic-load {tmp_path}/none: no such folder")


@pytest.mark.parametrize("lines, change, says", [
    ([{"input": "1", "label": "1"}], {"rm_type": None}, ["data.jsonl:1", "--rm-type", "math_verify"]),
    ([{"input": "1", "label": "1", "metadata": {"rm_type": "math"}}, {"input": "2", "label": "2"}], {"rm_type": None},
     ["data.jsonl:2", "--rm-type"]),
    ([{"input": "1", "label": "1", "metadata": {"rm_type": "maht"}}], {}, ["data.jsonl:1", "maht"]),
    ([{"input": "1", "label": "one"}], {"rm_type": "dapo"}, ["data.jsonl:1", "dapo needs a label that is a number"]),
    ([{"input": "1", "answer": "1"}], {"rm_type": "dapo"}, ["data.jsonl:1", "label"]),
    ([{"input": "1", "label": "1"}], {"rm_type": "dapo"}, ["data.jsonl:1", "--reward-key", '"score"']),
    ([{"input": "1", "label": "1"}], {"rm_type": "command"}, ["--rm-command"]),
    ([{"input": "1", "label": "1"}], {"rm_type": "math:0.5,url:0.5"}, ["--rm-url"]),
])  # fmt: skip
def test_reward_that_cannot_be(model, tmp_path, lines, change, says):
    data = prompts(tmp_path / "data.jsonl", *lines)
    refused("clime-train", rl(model, data, tmp_path / "run", **change), *says)


def test_eval_without_a_reward(model, tmp_path):
    data = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1"})
    refused("clime-train", ["eval", "--run", tmp_path / "run", "--hf-checkpoint", model, "--eval-prompt-data", data,
                            "--eval-max-response-len", 8], "data.jsonl:1", "--rm-type")  # fmt: skip


def test_port_in_use(model, tmp_path, taken_port):
    says = [f"port {taken_port}", "in use"]
    refused("clime-server", ["--model-path", model, "--port", taken_port], *says)
    refused("clime-server", ["--model-path", model, "--port", 0, "--health-port", taken_port], *says)
    refused("clime-server", ["--model-path", model, "--host", "localhost", "--port", taken_port], *says)
    refused("clime-router", ["--port", taken_port], *says)
    nowhere = "x" * 64  # no label of a name is as long, so no name server is asked, which may answer late or anything
    for name, words in (("clime-server", ["--model-path", model]), ("clime-router", [])):
        refused(name, [*words, "--host", nowhere, "--port", 0], f"{nowhere} is no address")
    data = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1"})
    words = rl(model, data, tmp_path / "run", "--environment", environment_port=taken_port, rollout_max_context_len=64)
    refused("clime-train", words, "--environment-port", *says)


# ---- where a model goes ----------------------------------------------------------------------------------------------


def goes_to(model, command, tmp_path, out):
    """The words of a command that writes a model to `out`."""
    pairs = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1", "prompt": "1", "response": "1", "chosen": "1", "rejected": "2"})
    return {"init": ["init", out],
            "sft": ["sft", "--hf-checkpoint", model, "--prompt-data", pairs, "--save-hf", out],
            "dpo": ["dpo", "--hf-checkpoint", model, "--prompt-data", pairs, "--save-hf", out],
            "rl": rl(model, pairs, tmp_path / "run", save_hf=f"{out}")}[command]  # fmt: skip


@pytest.mark.parametrize("command", ["init", "sft", "dpo", "rl"])
def test_a_model_takes_the_place_of_a_model_alone(model, tmp_path, command):
    """Known before anything is computed, and nothing of another kind is removed."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("kept")
    refused("clime-train", goes_to(model, command, tmp_path, out), f"{out} holds notes.txt")
    assert (out / "notes.txt").read_text() == "kept" and os.listdir(out) == ["notes.txt"]
    refused("clime-train", goes_to(model, command, tmp_path, out / "notes.txt" / "hf"), "notes.txt")
    refused("clime-train", goes_to(model, command, tmp_path, f"{out}/."), "by its name")


def test_a_folder_with_a_slash_at_its_end(model, tmp_path):
    for _ in range(2):  # the second takes the first one's place
        status, _, err = run("clime-train", *goes_to(model, "sft", tmp_path, f"{tmp_path}/out/"), "--threads", 1)
        assert status == 0, err
    assert run("clime-train", "init", f"{tmp_path}/new/")[0] == 0
    assert sorted(os.listdir(tmp_path)) == ["data.jsonl", "new", "out"]
    assert sorted(os.listdir(tmp_path / "out")) == sorted(os.listdir(tmp_path / "new"))


def test_a_folder_that_is_a_link(tmp_path):
    """It stays one, and the model goes where it points to."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    status, _, err = run("clime-train", "init", tmp_path / "out")
    assert status == 0, err
    assert (tmp_path / "out").is_symlink() and sorted(os.listdir(tmp_path)) == ["disk", "out"]
    assert (tmp_path / "disk" / "model.safetensors").exists()
    (tmp_path / "gone").symlink_to("nowhere")
    refused("clime-train", ["init", tmp_path / "gone"], f"{tmp_path}/gone is a link to nothing")
    assert (tmp_path / "gone").is_symlink()


def test_prompts_that_fill_the_model(model, tmp_path):
    """Told before the run, and how they are left out; the servers would refuse them one after another."""
    data = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1"}, {"input": "1" * 5000, "label": "1"})
    status, _, err = run("clime-train", *rl(model, data, tmp_path / "run", "--explain"))
    assert status == 0 and "1 of 2 prompts leave no room for an answer" in err and "--rollout-max-prompt-len" in err, err
    status, _, err = run("clime-train", *rl(model, data, tmp_path / "run", "--explain", rollout_max_prompt_len=100))
    assert status == 0 and "no room" not in err, err


def test_prompts_of_which_the_template_shows_a_part(model, tmp_path):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    data = prompts(tmp_path / "data.jsonl", *({"input": "1", "label": "1", "tools": t} for t in ([tool], [], [tool])))
    lost = "that the chat template does not show: tools: 2\n"
    status, _, err = run("clime-train", *rl(model, data, tmp_path / "run", "--explain", "--apply-chat-template", tool_key="tools"))
    assert status == 0 and f"W train: rows with something {lost}" in err, err
    status, _, err = run("clime-train", *rl(model, data, tmp_path / "run", "--explain", "--apply-chat-template", tool_key="tools", eval_prompt_data=data, eval_interval=1))
    assert status == 0 and f"rows of the evaluation set data with something {lost}" in err, err
    status, out, _ = run("clime-train", "data", data, "--hf-checkpoint", model, "--input-key", "input", "--tool-key", "tools", "--apply-chat-template")
    assert status == 0 and lost in out, out


def test_reward_without_what_it_needs_is_not_passed_over(tmp_path):
    data = prompts(tmp_path / "data.jsonl", {"prompt": "1", "label": "1"})
    refused("clime-train", ["data", data, "--label-key", "label", "--rm-type", "exact"], "--rm-type", "--hf-checkpoint")


@pytest.mark.parametrize("word, program", [("bfloat16", "clime-train"), ("bf16", "clime-server"), ("fp16", "clime-train")])
def test_types_have_both_their_names(model, tmp_path, word, program):
    data = prompts(tmp_path / "data.jsonl", {"input": "1", "label": "1"})
    if word == "fp16":
        refused(program, rl(model, data, tmp_path / "run", dtype=word), "--dtype", "fp16", "bf16")
    elif program == "clime-train":
        status, _, err = run(program, *rl(model, data, tmp_path / "run", "--explain", dtype=word))
        assert status == 0, err
    else:
        assert run(program, "--dtype", word, "--print-routes")[0] == 0


def test_export_of_what_is_no_checkpoint(model, tmp_path):
    refused("clime-train", ["export", model, tmp_path / "out", "--hf-checkpoint", model], f"{model}: no state.json", "checkpoints/step_")


# ---- the screen ------------------------------------------------------------------------------------------------------


COLOUR = re.compile(r"\x1b\[\d*m")


class Terminal:
    """A program on a terminal of so many columns; what it writes, as it comes."""

    def __init__(self, name, words, columns, folder, **env):
        self.master, slave = pty.openpty()
        self.resize(columns)
        env = {**os.environ, "TERM": "xterm", **env}
        self.process = subprocess.Popen([BUILD.resolve() / name, *map(str, words)], cwd=folder, stdin=slave,
                                        stdout=slave, stderr=slave, start_new_session=True, env=env)  # fmt: skip
        os.close(slave)
        self.text = ""

    def resize(self, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def read(self, until=None, limit=LIMIT):
        """Reads to the end, or until the pattern has come."""
        deadline = time.monotonic() + limit
        while not (until and re.search(until, COLOUR.sub("", self.text))):
            assert time.monotonic() < deadline, self.text
            if not select.select([self.master], [], [], 1)[0]:
                continue
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the other side is closed
                break
            self.text += piece.decode(errors="replace")
        return self.text

    def end(self):
        self.read()
        os.close(self.master)
        return self.process.wait(LIMIT)


def shown(text):
    """What stands on the lines at the end, and every state that a line was in on the way."""
    text = COLOUR.sub("", text)
    lines, states = [], []
    for line in text.replace("\r\n", "\n").split("\n"):
        now = ""
        for piece in line.split("\r"):
            erased = "\x1b[K" in piece
            piece = piece.replace("\x1b[K", "")
            now = piece + ("" if erased else now[len(piece) :])
            states.append(piece)
        lines.append(now.rstrip())
    return lines, states


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    path = tmp_path_factory.mktemp("sums") / "sums.jsonl"
    return prompts(path, *({"input": f"{i}+1=", "label": str(i + 1)} for i in range(16)))


@pytest.mark.parametrize("columns", [40, 80, 110])
def test_screen(model, sums, tmp_path, columns):
    """A live line with a bar, rows that fit, and at the end what there is and what comes next. The rewards of the first
    rollout wait, but for some, until a live line was shown."""
    reward = (f'while IFS= read -r line; do id=${{line#*\\"id\\":}}; id=${{id%%,*}}; [ $id -lt 8 ] || '
              f'until [ -e {tmp_path}/shown ]; do sleep 0.05; done; echo "{{\\"id\\":$id,\\"reward\\":$((id % 2))}}"; done')
    words = rl(model, sums, tmp_path / "run", "--eval-prompt-data", "sums", sums, "--eval-rm-type", "random", eval_interval=2,
               rm_type="command", rm_command=reward, rm_timeout=LIMIT, num_rollout=4, rollout_max_response_len=48,
               rollout_batch_size=8, n_samples_per_prompt=8)  # fmt: skip
    terminal = Terminal("clime-train", words, columns, tmp_path)
    terminal.read(until=r"\] 0 of 4" if columns == 40 else r"rollout 0: \d+ of 64 samples")
    (tmp_path / "shown").touch()
    assert terminal.end() == 0, terminal.text
    lines, states = shown(terminal.text)
    # the log has lines of its own, and commands that are there to be copied are not broken
    next_at = next(i for i, line in enumerate(lines) if line.startswith("next  "))
    copied = {line for line in lines[next_at:] if "/run" in line}
    ours = [s for s in lines + states if not re.match(r"\d{4}-\d\d-\d\dT", s) and s not in copied]
    assert all(len(s) < columns for s in ours), max(ours, key=len)
    rows = [line for line in lines if line.startswith("rollout  ")]
    assert len(rows) == 4
    for i, row in enumerate(rows):
        if columns == 40:
            assert re.match(rf"rollout  {i} +reward \d\.\d{{4}}", row), row
            continue
        assert re.match(rf"rollout  {i} +reward \d\.\d{{4}}  {i + 1} of 4(, [\d.]+ (s|min|h) left)?  ", row), row
    assert columns == 40 or " left" in rows[2]
    bars = [s for s in states if re.match(r"\[=*>-*\] \d of 4(, [\d.]+ (s|min|h) left)?(  |$)", s)]
    assert {s.index("]") - 1 for s in bars} == {min(columns // 5, 20)}
    assert columns == 40 or any(re.search(r"  rollout \d: ", s) for s in bars)
    assert [s[1 : s.index("]")].count("=") for s in bars if "1 of 4" in s] == [min(columns // 5, 20) // 4] * len(
        [s for s in bars if "1 of 4" in s])  # fmt: skip
    assert not any(re.search(r"\b0 tokens/s", s) for s in states)
    for line in lines:  # nothing of the live line is left before or behind another one
        assert not re.search(r".\d{4}-\d\d-\d\dT\d\d:", line), line
        assert not re.match(r"\[", line)
    assert re.search(r"^ *(weights  )?sha256 *[0-9a-f]*$", "\n".join(lines), re.M)  # it goes on in a line of its own
    assert any(line.startswith("score    sums") for line in lines)
    said = "\n".join(lines[next_at:]).removeprefix("next")
    commands = [line.strip() for line in said.splitlines() if line.strip()]
    assert [c.split()[1] for c in commands] == ["page", "report", "--model-path", "-readonly"], commands
    assert subprocess.run(["sh", "-c", commands[1]], cwd=tmp_path, capture_output=True, timeout=LIMIT).returncode == 0
    assert all((tmp_path / p).exists() for p in ("run/hf", "run/ledger.db")) and "run/hf" in commands[2]


def test_screen_that_changes_its_width(model, sums, tmp_path):
    """From the next line on; colours are off where NO_COLOR is set."""
    words = rl(model, sums, tmp_path / "run", rm_type="random", num_rollout=100000, save_interval=100000)
    terminal = Terminal("clime-train", words, 110, tmp_path, NO_COLOR="1")
    terminal.read(until=r"rollout  3 ")
    assert any(len(s) > 60 for s in shown(terminal.text)[1])
    terminal.resize(50)
    deadline, newest = time.monotonic() + LIMIT, []
    while not newest or any(len(line) >= 50 for line in newest):
        assert time.monotonic() < deadline, newest
        terminal.read(until=rf"(?s)^.{{{len(terminal.text) + 500}}}")
        newest = [line for line in shown(terminal.text)[0] if line.startswith("rollout  ")][-8:-1]
    terminal.process.kill()
    terminal.end()
    assert not COLOUR.search(terminal.text)


def test_colours(model, sums, tmp_path):
    words = rl(model, sums, tmp_path / "run", "--alarm", "disk=1", rm_type="random", num_rollout=1)
    terminal = Terminal("clime-train", words, 100, tmp_path, NO_COLOR="")
    assert terminal.end() == 0
    assert "\x1b[1mrollout\x1b[0m  0 " in terminal.text and re.search(r"\x1b\[33m\S+ W train:\x1b\[0m alarm disk", terminal.text)
    status, out, err = run("clime-train", *rl(model, sums, tmp_path / "piped", rm_type="random", num_rollout=1))
    assert status == 0 and "\x1b" not in out + err and "\r" not in out and "next " in out


@pytest.mark.parametrize("columns", [40, 80])
def test_help_on_a_narrow_terminal(tmp_path, columns):
    for words in (["rl", "--help"], ["page", "--help"]):
        terminal = Terminal("clime-train", words, columns, tmp_path)
        assert terminal.end() == 0
        lines = terminal.text.replace("\r\n", "\n").split("\n")
        wide = [s for s in lines if len(s) > columns and not re.match(r"  --\S+( \S+){0,2}$| +\S+$", s)]
        assert not wide, wide


def test_interrupt_says_how_to_resume(model, sums, tmp_path):
    words = rl(model, sums, tmp_path / "run", rm_type="random", num_rollout=400, rollout_max_response_len=64)
    terminal = Terminal("clime-train", words, 100, tmp_path)
    terminal.read(until=r"rollout  1 ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == -signal.SIGINT
    lines, _ = shown(terminal.text)
    said = [line for line in lines if "interrupted" in line]
    assert len(said) == 1 and "the same command" in said[0], lines
    words[words.index("--num-rollout") + 1] = 4  # how long a run is does not decide its weights
    status, out, err = run("clime-train", *words)
    assert status == 0 and "rollout  0 " not in out and "done " in out, err


# ---- rewards that say nothing ----------------------------------------------------------------------------------------


def test_rewards_that_are_all_alike(model, sums, tmp_path):
    """One line says so, with a command that grades one of the answers: it runs as it is shown."""
    words = rl(model, sums, tmp_path / "run", "--eval-prompt-data", "sums", sums, "--alarm", "disk=off",
               "truncation=off", "lengths=off",
               eval_interval=2, num_rollout=3)  # fmt: skip
    status, _, err = run("clime-train", *words)
    assert status == 0, err
    warned = [line for line in err.splitlines() if " W train: " in line]
    rollouts = [line for line in warned if "rollout 0: all 4 rewards are 0" in line]
    assert len(rollouts) == 1 and not any("rollout 1: all" in line for line in warned), err
    assert len([line for line in warned if "evaluation sums at step 0: all 16 rewards are 0" in line]) == 1, err
    for line in warned:
        shown_command = re.search(r"printf %s '.*' \| clime-train grade --rm-type math$", line)
        assert shown_command, line
        asked = json.loads(shown_command[0].split("'")[1])
        assert asked["label"] in {str(i + 1) for i in range(16)} and isinstance(asked["response"], str)
        assert in_shell(shown_command[0]) == '{"reward":0.0}\n', line


def test_no_command_of_half_a_label(model, tmp_path):
    """A label that no line has room for: the doubt alone, not a command that cannot be read."""
    (tmp_path / "long.jsonl").write_text(json.dumps({"input": "1", "label": 2_000_000 * "9"}) + "\n")
    status, _, err = run("clime-train", *rl(model, tmp_path / "long.jsonl", tmp_path / "run", num_rollout=1))
    said = [line for line in err.splitlines() if "rollout 0: all 4 rewards are 0" in line]
    assert status == 0 and len(said) == 1 and "Does the reward fit" in said[0] and "printf" not in said[0], err


def test_rewards_that_differ_are_no_matter(model, sums, tmp_path):
    status, _, err = run("clime-train", *rl(model, sums, tmp_path / "run", rm_type="random", rollout_batch_size=4))
    assert status == 0 and "rewards are" not in err, err
