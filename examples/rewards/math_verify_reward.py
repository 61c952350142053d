#!/usr/bin/env python3
"""A reward by Hugging Face's Math-Verify:  pip install math-verify

    clime-train rl --rm-type command --rm-command "python3 examples/rewards/math_verify_reward.py" --rm-workers 4 ...

One JSON line in, one out (docs/graders.md). clime's own --rm-type math_verify needs no Python and is a thousand times as
fast; this is for the package itself, and as a beginning for a reward of your own. Importing it takes seconds: the first
answer of each of the --rm-workers processes waits for that, so keep --rm-timeout above it.
"""

import json
import sys

from math_verify import parse, verify

for line in sys.stdin:
    q = json.loads(line)
    answer = {"id": q["id"]}
    try:
        # parse finds \boxed{}, the last number, an equation, ...; its own time limits need the main thread, which this is
        truth = parse(f"\\boxed{{{q['label']}}}")
        answer["reward"] = float(bool(truth) and verify(truth, parse(q["response"])))
    except Exception as e:  # a failed sample, not a wrong answer
        answer["error"] = f"{type(e).__name__}: {e}"
    print(json.dumps(answer), flush=True)
