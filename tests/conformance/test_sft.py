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
from programs import DATA, need
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


def render(template, messages, prompt, tools=None, **more):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals["raise_exception"] = lambda text: (_ for _ in ()).throw(jinja2.TemplateError(text))
    env.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False, indent=kw.get("indent"))
    return env.from_string(template).render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **more)


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
        ({"messages": [{"role": "user", "content": "x"}, {"content": "y"}]}, "messages[1]: role is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "text"}, "array"),
        ({"other": 1}, '"messages" (--messages-key)'),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "step_loss_mask": 2}]}, "messages[1]"),
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


TEMPLATES = ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "GLM-4.6", "meta-llama-Llama-3.1-8B-Instruct"]
LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}
AS_PEOPLE_WRITE = [
    {"role": "developer", "content": "be good"},
    {"content": [{"type": "text", "text": "hi"}], "role": "user"},
    {"role": "assistant", "content": None, "reasoning": "I think", "reasoning_content": None, "name": None,
     "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "5"}, {"type": "text", "text": "6"}]},
    {"role": "assistant", "content": "done", "tool_calls": [], "weight": 1},
]  # fmt: skip
AS_TEMPLATES_WANT = [
    {"role": "system", "content": "be good"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "", "reasoning_content": "I think",
     "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"x": 1}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "5\n6"},
    {"role": "assistant", "content": "done"},
]  # fmt: skip


def published(name):
    path = DATA / "templates" / f"{name}.jinja"
    need(path)
    return path.read_text()


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory):
    """A random model with a tokenizer of bytes, for what depends on no vocabulary."""
    to = tmp_path_factory.mktemp("bytes") / "model"
    sizes = {"hidden-size": 8, "intermediate-size": 8, "num-hidden-layers": 1, "num-attention-heads": 1,
             "num-key-value-heads": 1, "head-dim": 8, "max-position-embeddings": 8192}  # fmt: skip
    subprocess.run([f"{BUILD}/clime-train", "init", to, *(str(w) for k, v in sizes.items() for w in (f"--{k}", v))],
                   check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    return to


def folder_of(model, to, template, specials=(), eos=("<|endoftext|>",), **said):
    """The model with that template, these special tokens from id 256 on, and their ids as eos_token_id in that order."""
    to = shutil.copytree(model, to)
    if template is not None:
        (to / "chat_template.jinja").write_text(template)
    names = list(specials) or ["<|endoftext|>"]
    tok, config = (json.loads((to / f).read_text()) for f in ("tokenizer.json", "config.json"))
    tok["added_tokens"] = [{**tok["added_tokens"][0], "id": 256 + i, "content": t} for i, t in enumerate(names)]
    config |= {"eos_token_id": [256 + names.index(t) for t in eos], "pad_token_id": None}
    tokenizer_config = {"tokenizer_class": "PreTrainedTokenizerFast", **said}
    for name, value in (("tokenizer.json", tok), ("config.json", config), ("tokenizer_config.json", tokenizer_config)):
        (to / name).write_text(json.dumps(value))
    return to


def train(command, folder, rows, *options):
    """(samples that the command makes of the rows, what it says)"""
    data = folder.parent / "rows.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    p = subprocess.run([f"{BUILD}/clime-train", command, "--hf-checkpoint", folder, "--prompt-data", data, "--print-samples",
                        "1000", *options], capture_output=True, text=True)  # fmt: skip
    assert p.returncode in (0, 1), p.stderr
    return [json.loads(x) for x in p.stdout.splitlines()], p.stderr


def spelt(folder, sample, trained=None):
    """The text of a sample's tokens; of those that are trained (True), or not (False)."""
    tok = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [i for i, m in zip(sample["ids"], sample["mask"]) if trained is None or bool(m) == trained]
    return tok.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_rows_are_prepared_as_requests_are(bytes_model, tmp_path, name):
    """Rows as people write them give what the template makes of the form that it wants: sft, dpo, rl's prompts, and what
    clime-tok shows of the server's way."""
    template = published(name)
    folder = folder_of(bytes_model, tmp_path / "model", template, bos_token="<|endoftext|>")
    want = render(template, AS_TEMPLATES_WANT, False, [TOOL], bos_token="<|endoftext|>")
    assert '"x": 1}' in want or "<arg_key>x</arg_key>" in want
    (sample,), _ = train("sft", folder, [{"m": AS_PEOPLE_WRITE, "tools": [TOOL]}], "--messages-key", "m")
    text = spelt(folder, sample)
    assert text == want + "<|endoftext|>"  # a turn without a token that ends it is open
    pair = {"prompt": AS_PEOPLE_WRITE[:4], "chosen": AS_PEOPLE_WRITE[4:], "rejected": "no", "tools": json.dumps([TOOL])}
    (chosen, rejected), _ = train("dpo", folder, [pair], "--apply-chat-template")
    assert spelt(folder, chosen) == text and spelt(folder, rejected) == "no".join(text.rsplit("done", 1))
    row = {"prompt": AS_PEOPLE_WRITE[:4], "response": "done", "tools": [TOOL]}
    (answered,), _ = train("sft", folder, [row], "--apply-chat-template")  # its prompt is rl's
    assert spelt(folder, answered, False) == render(template, AS_TEMPLATES_WANT[:4], True, [TOOL], bos_token="<|endoftext|>")
    p = subprocess.run([f"{BUILD}/clime-tok", "render", "--chat", folder], text=True, capture_output=True,
                       input=json.dumps({"messages": AS_PEOPLE_WRITE, "tools": [TOOL]}))  # fmt: skip
    assert json.loads(p.stdout)["text"] == want


@pytest.mark.parametrize("name, specials, eos, said, end", [
    ("meta-llama-Llama-3.1-8B-Instruct", LLAMA, ["<|end_of_text|>", "<|eot_id|>"], "<|eot_id|>", "<|eot_id|>"),
    ("Qwen-Qwen3-0.6B", QWEN, ["<|im_end|>", "<|endoftext|>"], "<|im_end|>", "<|im_end|>"),
    ("Qwen-Qwen3-0.6B", QWEN, ["<|endoftext|>"], "<|endoftext|>", "<|im_end|>\n<|endoftext|>"),  # a base folder
    ("GLM-4.6", ["<|endoftext|>", "<|user|>", "<|observation|>"], ["<|user|>", "<|endoftext|>"], "<|endoftext|>", "<|endoftext|>"),
])  # fmt: skip
def test_a_turn_ends_as_the_template_writes_it(bytes_model, tmp_path, name, specials, eos, said, end):
    """Whether a row is prompt and response or messages, and not by the order of the stop ids."""
    folder = folder_of(bytes_model, tmp_path / "model", published(name), specials, eos, eos_token=said)
    rows = [{"prompt": "hi", "response": "a"}, {"prompt": "hi", "response": "a" + end}]
    (row, ended), _ = train("sft", folder, rows, "--apply-chat-template")
    assert spelt(folder, row, True) == spelt(folder, ended, True) == "a" + end
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]
    (whole,), _ = train("sft", folder, [{"m": messages}], "--messages-key", "m")
    assert spelt(folder, whole, True).endswith("a" + end)


def test_without_a_template_the_tokenizers_end_follows(bytes_model, tmp_path):
    folder = folder_of(bytes_model, tmp_path / "model", None, LLAMA, ["<|end_of_text|>", "<|eot_id|>"], eos_token="<|eot_id|>")
    for command, row in (("sft", {"prompt": "hi", "response": "a"}), ("dpo", {"prompt": "hi", "chosen": "a", "rejected": "b"})):
        assert spelt(folder, train(command, folder, [row])[0][0]) == "hia<|eot_id|>"


def test_special_tokens_of_an_answer_are_tokens(bytes_model, tmp_path):
    folder = folder_of(bytes_model, tmp_path / "model", published(TEMPLATES[3]), LLAMA, ["<|eot_id|>"])
    for row, options in (({"prompt": "hi", "response": "<|python_tag|>1"}, ["--apply-chat-template"]),
                         ({"m": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<|python_tag|>1"}]}, ["--messages-key", "m"])):  # fmt: skip
        (sample,), _ = train("sft", folder, [row], *options)
        assert [i for i, m in zip(sample["ids"], sample["mask"]) if m] == [261, ord("1"), 260]


def test_weight_of_a_message(bytes_model, tmp_path):
    """OpenAI's: an assistant's message with weight 0 is context."""
    folder = folder_of(bytes_model, tmp_path / "model", published(TEMPLATES[0]), QWEN, ["<|im_end|>"])
    turns = messages_of([("user", "q"), ("assistant", "seen"), ("user", "r"), ("assistant", "trained")])
    turns[1]["weight"], turns[3]["weight"] = 0, None
    (row,), _ = train("sft", folder, [{"m": turns}], "--messages-key", "m")
    assert spelt(folder, row, True) == "trained<|im_end|>"
    turns[1]["weight"] = 0.5
    assert "messages[1]" in train("sft", folder, [{"m": turns}], "--messages-key", "m")[1]


def test_what_a_template_drops_is_refused_or_told(bytes_model, tmp_path):
    folder = folder_of(bytes_model, tmp_path / "model", published(TEMPLATES[0]), QWEN, ["<|im_end|>"])
    ask, critic, answer = messages_of([("user", "q"), ("critic", "c"), ("assistant", "a")])
    samples, err = train("sft", folder, [{"m": [ask, critic, answer]}], "--messages-key", "m")
    assert not samples and 'messages of the role "critic"' in err and "line 1" in err
    thought, plain = {"m": [ask, {**answer, "reasoning_content": "t"}]}, {"m": [ask, answer]}
    samples, err = train("sft", folder, [thought, plain, thought], "--messages-key", "m")
    assert len(samples) == 3 and err.count("does not show") == 1
    assert "the chat template does not show: an assistant's reasoning: 2\n" in err
    answers = [{**answer, "content": text, "reasoning_content": "t"} for text in "ab"]
    pair = {"prompt": [ask], "chosen": [answers[0]], "rejected": [answers[1]]}
    assert "does not show: an assistant's reasoning: 1\n" in train("dpo", folder, [pair], "--apply-chat-template")[1]


def test_the_template_named_tool_use_is_for_tools(bytes_model, tmp_path):
    """As in transformers; and calls are read as that template shows them."""
    plain, with_tools = ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
                         "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}{{ tools | tojson }}<tool_call>")  # fmt: skip
    named = [{"name": "default", "template": plain}, {"name": "tool_use", "template": with_tools}]
    listed = folder_of(bytes_model, tmp_path / "listed", None, chat_template=named)
    filed = folder_of(bytes_model, tmp_path / "filed", plain)
    (filed / "additional_chat_templates").mkdir()
    (filed / "additional_chat_templates" / "tool_use.jinja").write_text(with_tools)
    for folder in (listed, filed):
        cases = (([TOOL], "(user)hi[{"), ([], "[user]hi"), (None, "[user]hi"))
        lines = "".join(json.dumps({"messages": [{"role": "user", "content": "hi"}], "tools": t}) + "\n" for t, _ in cases)
        for way in ([], ["--chat"]):
            p = subprocess.run([f"{BUILD}/clime-tok", "render", *way, folder], text=True, capture_output=True, input=lines)
            for said, (_, text) in zip(p.stdout.splitlines(), cases, strict=True):
                assert json.loads(said)["text"].startswith(text), said
        samples, _ = train("sft", folder, [{"prompt": "hi", "response": "a", "tools": t} for t, _ in cases], "--apply-chat-template")
        for sample, (_, text) in zip(samples, cases, strict=True):
            assert spelt(folder, sample).startswith(text)
        p = subprocess.run([f"{BUILD}/clime-tok", "parse", folder], text=True, capture_output=True,
                           input=json.dumps({"text": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "tools": [TOOL]}))  # fmt: skip
        assert json.loads(p.stdout)["tool_calls"][0]["name"] == "f"


def test_tools_of_a_row_are_a_list(bytes_model, tmp_path):
    folder = folder_of(bytes_model, tmp_path / "model", "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}")
    for tools in ({"a": 1}, '{"a": 1}', 5):
        for row, options in (({"prompt": "hi", "response": "a"}, ["--apply-chat-template"]), ({"prompt": "hi", "response": "a"}, []),
                             ({"m": [{"role": "user", "content": "hi"}]}, ["--messages-key", "m"])):  # fmt: skip
            samples, err = train("sft", folder, [{**row, "tools": tools}], *options)
            assert not samples and '"tools" is no list of tools' in err, err
