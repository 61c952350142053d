"""The verdicts of `clime-train grade --rm-type math_verify` beside those of the package Math-Verify.

    python compare_math_verify.py BUILD DATA [CACHE]

Pairs of a label and a response: every one of the graders' data in DATA (shared/data), and 2,000 variants of its answers
made from one seed: the same answer in other words (fonts, units, percent signs, ratios, words, lists) or another answer
in the same words. What a variant's verdict has to be follows from how it is made; where the two programs differ, the
pair is printed with that. Needs math-verify==0.9.0 in the Python that runs it. CACHE keeps Math-Verify's verdicts.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

N_VARIANTS = 2000
SEED = 32


# ---- pairs of the data ----


def rows(path):
    return [json.loads(line) for line in open(path, encoding="utf-8")]


def boxed(answer):
    return f"So the answer is $\\boxed{{{answer}}}$."


def data_pairs(data):
    """(source, label, response, the verdict that it should have or None)"""
    graders, answers = Path(data) / "graders", []
    for row in rows(graders / "answer_normalisation.jsonl"):
        if row["answer"] not in answers:
            answers.append(row["answer"])
    for i, answer in enumerate(answers):
        yield "answer, itself", answer, boxed(answer), True
        yield "answer, the next", answer, boxed(answers[(i + 1) % len(answers)]), None
    for row in rows(graders / "math-verify.jsonl"):
        case = row.get("case")
        if case and case.get("strict", True):
            want = case.get("expected", case.get("result"))
            yield "math-verify's tests", case["gold"], case["pred"], bool(want)
    for row in rows(graders / "responses_math_cot_100.jsonl"):
        yield "responses", row["gt"], row["response"], bool(row["qwen_score"])
    for row in rows(graders / "gsm8k_openai_model_solutions.jsonl"):
        answer = row["solution"].split("A:")[-1].strip()
        yield "gsm8k", row["ground_truth"], boxed(answer), bool(row["is_correct"])
    for row in rows(graders / "slime.jsonl"):
        args = row.get("args", [])
        if "reward" in row.get("func", "") and len(args) > 1 and all(isinstance(a, str) for a in args[:2]):
            yield "slime", args[1], args[0], None


# ---- variants ----

FONTS = ["\\text{%s}", "\\textbf{%s}", "\\textit{%s}", "\\mathrm{%s}", "\\mbox{%s}", "\\textnormal{%s}", "\\mathbf{%s}",
         "\\boldsymbol{%s}", "\\textrm{%s}", "\\textsf{%s}", "\\texttt{%s}", "\\emph{%s}", "{\\bf %s}", "\\bf %s",
         "\\text{ %s }", "\\textbf{\\text{%s}}", "\\text{\\textbf{%s}}", "\\textcolor{red}{%s}", "\\color{blue}{%s}",
         "\\underline{%s}", "\\mathbf{\\text{%s}}", "\\displaystyle %s", "~%s~", "\\,%s\\,", "%s.", "\\text{%s.}", "%s\\ "]
UNITS = ["%s\\text{ cm}", "%s \\text{ cm}^2", "%s\\text{ cm}^{3}", "%s cm", "%s\\,\\mathrm{cm}", "%s \\text{ dollars}",
         "\\$%s", "\\text{\\$%s}", "%s^\\circ", "%s^{\\circ}", "%s \\text{ units}", "%s\\text{ people}", "\\text{%s cm}",
         "\\text{%s hours}", "\\textbf{%s} \\text{ miles}", "\\textbf{%s miles}", "%s \\text{ square units}", "%s euros",
         "%s\\text{ m/s}", "%s \\text{ km/h}", "\\text{%s apples}", "%s \\text{ cubic feet}", "%s\\mbox{ inches}",
         "%s\\text{ degrees}", "\\mathrm{%s\\ cm}", "%s \\, \\text{kg}", "\\text{\u20ac}%s", "%s \\text{ years old}"]
WORDS = ["Monday", "Friday", "even", "odd", "Yes", "No", "True", "False", "triangle", "no solution", "no real solutions",
         "infinitely many", "does not exist", "undefined", "Alice", "Los Angeles", "right triangle", "parallel",
         "neither", "both", "increasing", "all real numbers", "impossible", "circle", "red", "blue", "hexagon",
         "not enough information", "The second option", "isosceles", "January", "sunny days", "a circle", "one",
         "skew lines", "hyperbola", "two-point", "Navin", "point", "square", "today", "second", "inconsistent"]
WORD_FONTS = ["%s", "\\text{%s}", "\\textbf{%s}", "\\mathrm{%s}", "\\mbox{%s}", "\\text{ %s }", "\\textit{%s}", "%s.",
              "\\text{%s.}", "\\textbf{\\text{%s}}", "\\textnormal{%s}", "\\emph{%s}", "{\\rm %s}", "\\texttt{%s}"]
CHOICES = ["%s", "(%s)", "\\text{%s}", "\\text{(%s)}", "\\textbf{(%s)}", "\\textbf{%s}", "(\\text{%s})", "\\mathrm{%s}",
           "\\mathrm{(%s)}", "\\text{ (%s) }", "\\textbf{(%s) }", "(\\mathbf{%s})", "\\text{%s.}", "%s."]
PERCENTS = ["%s\\%%", "%s%%", "%s \\%%", "\\text{%s\\%%}", "\\textbf{%s\\%%}", "%s\\text{ percent}", "%s percent",
            "%s\\text{\\%%}", "\\text{%s percent}", "%s \\text{%%}", "\\mathrm{%s\\%%}"]
RATIOS = ["%s:%s", "%s : %s", "\\text{%s:%s}", "%s\\text{ to }%s", "%s \\text{:} %s", "\\textbf{%s:%s}", "\\text{%s to %s}",
          "%s\\mathbin{:}%s", "\\frac{%s}{%s}", "%s/%s", "%s\\colon %s"]
LISTS = ["%s,%s", "%s, %s", "%s\\text{ and }%s", "%s \\text{ or } %s", "\\text{%s and %s}", "%s,\\ %s", "%s; %s",
         "\\text{%s}, \\text{%s}", "%s \\text{, } %s", "\\{%s, %s\\}", "x=%s \\text{ or } x=%s", "%s and %s", "%s \\ \\text{and} \\ %s"]


def is_number(answer):
    return bool(answer) and answer.lstrip("-").replace(".", "", 1).isdigit()


def other_number(r, answer):
    """Another number that looks alike."""
    digits = [i for i, c in enumerate(answer) if c.isdigit()]
    i = r.choice(digits)
    return answer[:i] + r.choice([d for d in "123456789" if d != answer[i]]) + answer[i + 1:]


def with_commas(answer):
    return "{,}".join([answer[-9:-6], answer[-6:-3], answer[-3:]]).lstrip("{,}")


def variant(r, answers, numbers):
    """(kind, label, answer, verdict)"""
    kind = r.choice(["font"] * 4 + ["unit"] * 4 + ["percent"] * 2 + ["ratio"] * 2 + ["word"] * 4 + ["choice"] * 2 +
                    ["list"] * 2 + ["number"] * 2)
    same = r.random() < 0.7
    a = r.choice(numbers)
    b = a if same else other_number(r, a)
    if kind == "font":
        if r.random() < 0.5:
            answer = r.choice(answers)
            return kind, answer, r.choice(FONTS) % answer, True
        label = r.choice([a, a, "\\text{%s}" % a, "\\mathbf{%s}" % a, "\\text{ %s}" % a])
        return kind, label, r.choice(FONTS) % b, same
    if kind == "unit":
        form = r.choice(UNITS)
        label = r.choice([a, a, form % a, r.choice(UNITS) % a if r.random() < 0.2 else a])
        return kind, label, form % b, same
    if kind == "percent":
        form = r.choice(PERCENTS)
        label = r.choice([a, form % a, r.choice(PERCENTS) % a])
        signs = label != a or abs(float(a)) >= 1  # 0.5 is not 0.5%
        return kind, label, form % b, same and signs
    if kind == "ratio":
        x, y = r.randint(1, 30), r.randint(1, 30)
        u, v = (x, y) if same else r.choice([(x + 1, y), (x, y + 1), (y, x)])
        return kind, r.choice(RATIOS) % (x, y), r.choice(RATIOS) % (u, v), x * v == y * u
    if kind == "word":
        x = r.choice(WORDS)
        y = x if same else r.choice([w for w in WORDS if w != x])
        return kind, r.choice(WORD_FONTS) % x, r.choice(WORD_FONTS) % y, same
    if kind == "choice":
        x = r.choice("ABCDE")
        y = x if same else r.choice([c for c in "ABCDE" if c != x])
        return kind, r.choice(CHOICES) % x, r.choice(CHOICES) % y, same
    if kind == "list":
        x, y = str(r.randint(1, 30)), str(r.randint(31, 60))
        u, v = (x, y) if r.random() < 0.5 else (y, x)
        if not same:
            u = other_number(r, u)
        return kind, r.choice(LISTS) % (x, y), r.choice(LISTS) % (u, v), sorted([u, v]) == sorted([x, y])
    n = str(r.randint(1000, 99999999))
    m = n if same else other_number(r, n)
    form = r.choice(["\\text{%s}", "\\textbf{%s}", "%s", "\\mathrm{%s}", "%s.00", "\\text{%s dollars}", "\\$%s", "+%s"])
    return kind, r.choice([n, with_commas(n), f"{int(n):,}"]), form % r.choice([m, with_commas(m), f"{int(m):,}"]), same


def variants(data):
    r = random.Random(SEED)
    answers = sorted({row["answer"] for row in rows(Path(data) / "graders/answer_normalisation.jsonl")})
    answers = [a for a in answers if "text" not in a and "mbox" not in a and a.count("{") == a.count("}") and "$" not in a]
    numbers = [a for a in answers if is_number(a) and len(a) < 8] + [str(n) for n in range(2, 40)] + ["0.5", "12.5", "-3"]
    for _ in range(N_VARIANTS):
        kind, label, answer, want = variant(r, answers, numbers)
        yield "variant, " + kind, label, boxed(answer), want


# ---- the two programs ----


def clime_verdicts(build, pairs):
    lines = "".join(json.dumps({"response": p[2], "label": p[1]}) + "\n" for p in pairs)
    command = [f"{build}/clime-train", "grade", "--rm-type", "math_verify"]
    out = subprocess.run(command, input=lines, capture_output=True, check=True, text=True).stdout
    return [json.loads(line).get("reward") for line in out.splitlines()]


def package_verdict(label, response):
    from math_verify import parse, verify

    marked = any(mark in label for mark in ("$", "\\boxed", "\\(", "\\["))
    gold = parse(label if marked else f"${label}$")
    return int(bool(verify(gold, parse(response))))


def package_verdicts(pairs, cache):
    known = json.load(open(cache)) if cache and Path(cache).exists() else {}
    missing = [p for p in pairs if json.dumps(p[1:3]) not in known]
    for p in missing:
        known[json.dumps(p[1:3])] = package_verdict(p[1], p[2])
    if cache and missing:
        json.dump(known, open(cache, "w"))
    return [known[json.dumps(p[1:3])] for p in pairs]


def main():
    build, data, cache = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
    pairs = [*data_pairs(data), *variants(data)]
    ours, theirs = clime_verdicts(build, pairs), package_verdicts(pairs, cache)
    assert len(ours) == len(theirs) == len(pairs)
    counts = {}
    for (source, label, response, want), a, b in zip(pairs, ours, theirs):
        count = counts.setdefault(source, [0, 0, 0, 0])
        wrong_a, wrong_b = (want is not None and int(want) != v for v in (a, b))
        for i, add in enumerate((1, a != b, wrong_a, wrong_b)):
            count[i] += add
        if a != b or wrong_a:
            row = {"source": source, "label": label, "response": response[-200:], "clime": a, "math_verify": b, "right": want}
            print(json.dumps(row, ensure_ascii=False))
    print(f"{'':22} {'pairs':>6} {'differ':>6} {'clime wrong':>12} {'Math-Verify wrong':>18}")
    for source, count in counts.items():
        print("{:22} {:6} {:6} {:12} {:18}".format(source, *count))


main()
