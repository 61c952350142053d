"""Gradings a second through `clime-train grade`: reading and writing JSON included. Needs no data from elsewhere.

    bench_grade.py BUILD [N]
"""

import json
import subprocess
import sys
import tempfile
import time

THOUGHT = "We rewrite the sum term by term, so that $x_{%d} = \\frac{%d}{7}$ and the rest cancels. " * 12
CASES = {
    "math": ("\\boxed{%d}", "%d"),
    "math_verify, a number": ("The final answer is $\\boxed{%d}$.", "%d"),
    "math_verify, algebra": ("So $\\boxed{\\frac{x+%d}{7}}$.", "\\frac{x}{7}+\\frac{%d}{7}"),
    "math_verify, a set": ("So $\\boxed{\\{1,\\sqrt{2},%d\\}}$.", "\\{%d,1,2^{1/2}\\}"),
}


def main():
    build, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20000
    for name, (response, label) in CASES.items():
        with tempfile.TemporaryFile("w+") as f:
            for i in range(n):
                k = i % 97 + 3
                line = {"response": THOUGHT % ((k, i) * 12) + response % k, "label": label % k}
                f.write(json.dumps(line) + "\n")
            f.seek(0)
            t0 = time.monotonic()
            command = [f"{build}/clime-train", "grade", "--rm-type", name.split(",")[0], "--num-workers", "2"]
            out = subprocess.run(command, stdin=f, capture_output=True, check=True).stdout
            seconds = time.monotonic() - t0
        assert out.count(b'{"reward":1') == n, out[:200]
        print(f"grade  {name:24} {n / seconds:9.0f} a second ({n} responses of 1.1 KB, {seconds:.2f} s)")


main()
