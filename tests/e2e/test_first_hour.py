"""A user's first hour: the help that is read first, mistakes that are told before anything is loaded, a reward that
cannot be right, what the screen shows, and Ctrl-C."""

import json
import re

import pytest
from programs import DATA, ROOT, run

# ---- help ------------------------------------------------------------------------------------------------------------


def options_in(text):
    return re.findall(r"^  --([\w-]+)", text, re.M)


def readme_command():
    """The words of README's command on the reader's own data, as pairs of option and value."""
    text = (ROOT / "README.md").read_text()
    block = next(b for b in re.findall(r"```sh\n(.*?)```", text, re.S) if "clime-train rl" in b)
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


def test_reward_of_readme():
    """A label is what the data set has there, a whole solution; a right answer counts however it is put."""
    answers = ["So it is \\boxed{72}.", "She sold 72 clips. The answer is 72.", "48 + 24 = 72\n#### 72", "\\boxed{24}"]
    assert grade(readme_command()["rm-type"], answers, GSM8K) == [1, 1, 1, 0]
