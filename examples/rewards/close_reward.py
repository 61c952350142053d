#!/usr/bin/env python3
"""Partial credit for a number, for --rm-type command: 1 for the label's, less the further the answer is from it.

    clime-train rl ... --rm-type command --rm-command 'python3 examples/rewards/close_reward.py'

A policy that answers hardly a question rightly yet gets rewards that are all alike from right or wrong; from this it learns
what a likely answer is. The label may be a number, or a solution that ends in "#### 72"; of the response the last number counts.
"""

import json
import math
import re
import sys


def number(text):
    found = re.findall(r"-?\d+(?:\.\d+)?", str(text).replace(",", ""))
    return float(found[-1]) if found else None


for line in sys.stdin:
    question = json.loads(line)
    label, answer = number(question["label"]), number(question["response"])
    reward = 0.0
    if answer is not None:
        size = lambda x: math.copysign(math.log2(1 + abs(x)), x)
        reward = 1.0 if answer == label else 0.5 * 0.5 ** abs(size(answer) - size(label))
    print(json.dumps({"id": question["id"], "reward": reward}), flush=True)
