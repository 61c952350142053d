"""Server and trainer agree on every bit at odd temperatures: those whose inverse differs when it is taken of a double.
tests/unit/trainer/test_temperature.c goes over all with two digits; here the programs run."""

import pytest
from test_rl import command, metrics, model, run_whole  # noqa: F401 (a fixture)


@pytest.mark.parametrize("temperature", ["0.55", "0.85", "1.1"])
def test_gap_is_zero_at_odd_temperatures(model, temperature):  # noqa: F811
    run = model / f"temperature-{temperature}"
    words = command(model, run, "--rollout-temperature", temperature, num_rollout=1, num_steps_per_rollout=1)
    run_whole(words, run.with_suffix(".log"))
    (step,) = [m for m in metrics(run) if m["kind"] == "train"]
    assert step["train/logprob_gap_tokens"] > 1000
    assert step["train/train_rollout_logprob_abs_diff"] == 0
