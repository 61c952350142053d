"""Loss masks of conversations: transformers' assistant masks where the template marks what is generated
(tests/golden/make_sft_goldens.py), and an independent incremental rendering where it does not."""

import json
import os
import pathlib
import shutil
import subprocess

import jinja2.sandbox
import pytest
import tokenizers
from tokenizer_data import NAMES, unpack_tokenizers

BUILD = os.path.abspath(os.environ.get("CLIME_BUILD", "build"))
GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "sft_masks.jsonl"
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 155000, "hidden_size": 64,
          "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "head_dim": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "tie_word_embeddings": True, "torch_dtype": "bfloat16"}  # fmt: skip


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    to = unpack_tokenizers(tmp_path_factory.mktemp("sft"))
    for name in NAMES:
        said = json.load(open(to / name / "config.json")) if (to / name / "config.json").exists() else {}
        eos = {"eos_token_id": said["eos_token_id"]} if "eos_token_id" in said else {}
        (to / name / "config.json").write_text(json.dumps({**CONFIG, **eos}))
    return to


def samples(folder, template, lines, tmp_path):
    """What clime makes of the lines: [(ids, mask)]."""
    model = tmp_path / "model"
    if not model.exists():
        shutil.copytree(folder, model)
    (model / "chat_template.jinja").write_text(template)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(x) + "\n" for x in lines))
    p = subprocess.run([f"{BUILD}/clime-train", "sft", "--hf-checkpoint", model, "--prompt-data", data, "--messages-key",
                        "messages", "--print-samples", "1000"], capture_output=True, text=True)  # fmt: skip
    if p.returncode:
        return p.stderr
    return [(x["ids"], x["mask"]) for x in map(json.loads, p.stdout.splitlines())]


def cut(ids, mask):
    """clime leaves out what follows the last trained token: nothing is learnt from it."""
    last = max(i for i, m in enumerate(mask) if m) + 1
    return ids[:last], mask[:last]


def test_masks_are_those_of_transformers(folders, tmp_path):
    groups = {}
    for line in map(json.loads, GOLDEN.read_text().splitlines()):
        groups.setdefault((line["tokenizer"], line["template"]), []).append(line)
    assert len(groups) == 6
    for n, ((name, template), lines) in enumerate(groups.items()):
        (tmp_path / str(n)).mkdir()
        ours = samples(folders / name, template, lines, tmp_path / str(n))
        expected = [cut(x["ids"], x["mask"]) for x in lines if any(x["mask"])]
        assert isinstance(ours, list), ours
        assert ours == expected, (name, template)


def test_a_character_of_several_tokens_is_trained_whole(folders, tmp_path):
    template = '{% for m in messages %}{{ m.role + "\n" }}{% generation %}{{ m.content }}{% endgeneration %}.{% endfor %}'
    ((ids, mask),) = samples(folders / "qwen3", template, [{"messages": [{"role": "assistant", "content": "hi \U0001f44b"}]}],
                             tmp_path)  # fmt: skip
    tok = tokenizers.Tokenizer.from_file(str(folders / "qwen3" / "tokenizer.json"))
    n = len(tok.encode("hi \U0001f44b", add_special_tokens=False).ids)
    assert n == 3 and sum(mask) == n and tok.decode(ids)[-1:] == "\U0001f44b"


def render(template, messages, prompt):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(jinja2.TemplateError(text))
    env.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False)
    return env.from_string(template).render(messages=messages, tools=None, documents=None, add_generation_prompt=prompt)


def incremental(tok, template, messages, eos):
    """The rule of trainer/data/conversation.h for templates without {% generation %}, written again."""
    made, ids, mask, seen = [], [], [], ""
    for i, m in enumerate(messages):
        if m["role"] != "assistant":
            continue
        before, after = render(template, messages[:i], True), render(template, messages[: i + 1], False)
        assert after.startswith(before)
        if not before.startswith(seen) or not seen:
            made.append((ids, mask))
            ids, mask, seen = [], [], ""
        glue = tok.encode(before[len(seen):], add_special_tokens=False).ids
        answer = tok.encode(after[len(before):], add_special_tokens=False).ids
        end = max((k + 1 for k, t in enumerate(answer) if t in eos), default=0)
        ids, mask = ids + glue + answer, mask + [0] * len(glue) + [1] * end + [0] * (len(answer) - end)
        if m.get("step_loss_mask", 1) == 0:
            mask[-len(answer):] = [0] * len(answer)
        seen = after
    made.append((ids, mask))
    return [cut(*x) for x in made if any(x[1])]


CONVERSATIONS = [
    [("user", "a"), ("assistant", "b")],
    [("system", "s"), ("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")],
    [("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nfirst"), ("user", "r"), ("assistant", "<think>\nwell\n</think>\n\nsecond")],
    [("user", "q"), ("assistant", "seen", 0), ("user", "r"), ("assistant", "trained")],
    [("user", "only"), ("assistant", "never", 0)],
    [("user", "no answer")],
]  # fmt: skip


def messages_of(turns):
    return [{"role": t[0], "content": t[1], **({"step_loss_mask": t[2]} if len(t) > 2 else {})} for t in turns]


def test_templates_without_marks(folders, tmp_path):
    """Qwen3's own template drops the thinking of earlier turns: those conversations become several samples."""
    template = json.load(open(folders / "qwen3" / "tokenizer_config.json"))["chat_template"]
    tok = tokenizers.Tokenizer.from_file(str(folders / "qwen3" / "tokenizer.json"))
    lines = [messages_of(c) for c in CONVERSATIONS]
    expected = [x for m in lines for x in incremental(tok, template, m, {151645, 151643})]
    assert len(expected) == 6 and sum(len(incremental(tok, template, m, {151645, 151643})) == 2 for m in lines) >= 1
    assert samples(folders / "qwen3", template, [{"messages": m} for m in lines], tmp_path) == expected


@pytest.mark.parametrize(
    "line, says",
    [
        ({"messages": [{"role": "user", "content": "x"}, {"content": "y"}]}, 'message 1: no "role"'),
        ({"messages": []}, "no message"),
        ({"messages": "text"}, "array"),
        ({"other": 1}, '"messages" (--messages-key)'),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "step_loss_mask": 2}]}, "message 1"),
    ],
)  # fmt: skip
def test_bad_lines_are_named(folders, tmp_path, line, says):
    template = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
    good = {"messages": messages_of(CONVERSATIONS[0])}
    err = samples(folders / "qwen3", template, [good, line], tmp_path)
    assert isinstance(err, str) and says in err and "line 2" in err, err


def test_a_prompt_that_the_answer_rewrites_is_refused(folders, tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[think]{% endif %}"
    err = samples(folders / "qwen3", template, [{"messages": messages_of(CONVERSATIONS[0])}], tmp_path)
    assert isinstance(err, str) and "renders the prompt otherwise" in err, err
