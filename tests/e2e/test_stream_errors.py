"""A server's error in the middle of a stream: tokens have come, then the model fails. Every protocol has a way to say it, and
none may end as if the output were whole."""

import json
import shutil
import struct
import threading

import httpx
import pytest
from programs import LIMIT, server, tiny_model

LONG = 60000
CHAT = {"messages": [{"role": "user", "content": "a"}], "stream": True, "ignore_eos": True}
ASKS = {
    "/generate": {"input_ids": [1], "stream": True, "sampling_params": {"max_new_tokens": LONG, "ignore_eos": True}},
    "/v1/completions": {"prompt": "a", "stream": True, "max_tokens": LONG, "ignore_eos": True},
    "/v1/chat/completions": CHAT | {"max_tokens": LONG},
    "/v1/responses": {"input": "a", "stream": True, "max_output_tokens": LONG, "ignore_eos": True},
    "/v1/messages": CHAT | {"max_tokens": LONG},
}
SAYS = "no finite logits"


def broken_copy(source, folder):
    """Finite weights of which no logit is: 3.4e38 in the last norm."""
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    begin, end = (8 + n + at for at in json.loads(data[8 : 8 + n])["model.norm.weight"]["data_offsets"])
    data[begin:end] = b"\x7f\x7f" * ((end - begin) // 2)
    path.write_bytes(data)
    return folder


class Stream(threading.Thread):
    """Reads the events of one stream: (event's name or None, data)."""

    def __init__(self, url, path):
        super().__init__()
        self.url, self.path, self.events, self.flows = url, path, [], threading.Event()
        self.start()

    def run(self):
        rest = b""
        with httpx.stream("POST", self.url + self.path, json=ASKS[self.path], timeout=LIMIT) as reply:
            for piece in reply.iter_bytes():  # not iter_lines: a random model also writes U+0085
                *blocks, rest = (rest + piece).split(b"\n\n")
                for block in blocks:
                    fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
                    name, data = fields.get(b"event"), fields[b"data"]
                    self.events.append((name and name.decode(), "[DONE]" if data == b"[DONE]" else json.loads(data)))
                if len(self.events) > 20:
                    self.flows.set()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """One stream of each protocol, all cut by the same failure."""
    folder = tmp_path_factory.mktemp("errors")
    model = tiny_model(folder / "model", **{"max-position-embeddings": 2 * LONG})
    with server("--max-total-tokens", "400000", model=model) as s:
        streams = {path: Stream(s.url, path) for path in ASKS}
        for stream in streams.values():
            assert stream.flows.wait(LIMIT), (stream.path, stream.events)
        assert s.post("/pause_generation", {"mode": "in_place"}).status_code == 200
        s.json("/update_weights_from_disk", {"model_path": str(broken_copy(model, folder / "broken"))})
        s.post("/continue_generation")
        for stream in streams.values():
            stream.join(LIMIT)
            assert not stream.is_alive(), stream.path
        s.json("/update_weights_from_disk", {"model_path": str(model)})  # the server itself goes on
        s.json("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 4}})
    return {path: stream.events for path, stream in streams.items()}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    with server(model=broken_copy(tiny_model(folder / "model"), folder / "broken")) as s:
        yield s


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
def test_an_error_event_and_done(ended, path):
    *before, (_, last), done = ended[path]
    assert set(last) == {"error"} and last["error"]["code"] == 500 and SAYS in last["error"]["message"]
    assert done == (None, "[DONE]")
    assert not any("error" in data for _, data in before)
    if path != "/generate":
        assert all(c["finish_reason"] is None for _, data in before for c in data["choices"])


def test_responses(ended):
    *before, (name, last) = ended["/v1/responses"]
    assert name == last["type"] == "response.failed" and last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error" and SAYS in last["response"]["error"]["message"]
    assert "response.completed" not in [name for name, _ in before]


def test_messages(ended):
    *before, (name, last) = ended["/v1/messages"]
    assert name == last["type"] == "error"
    assert last["error"]["type"] == "api_error" and SAYS in last["error"]["message"]
    assert "message_stop" not in [name for name, _ in before]


def test_responses_that_fail_before_they_begin(tmp_path):
    """The events that say that it began know nothing of the end, though it is the end that writes them."""
    with server("--max-queue-seconds", "1", model=tiny_model(tmp_path / "model")) as s:
        s.post("/pause_generation", {"mode": "retract"})
        stream = Stream(s.url, "/v1/responses")
        stream.join(LIMIT)
        s.post("/continue_generation")
    shown = [(name, data["response"]["status"], data["response"]["error"] and data["response"]["error"]["code"])
             for name, data in stream.events]  # fmt: skip
    assert shown == [("response.created", "in_progress", None), ("response.in_progress", "in_progress", None),
                     ("response.failed", "failed", "server_error")]  # fmt: skip


SCORE = {"return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}}


@pytest.mark.parametrize(
    "path, body",
    [
        ("/generate", SCORE),
        ("/generate", SCORE | {"logprob_start_len": 1, "top_logprobs_num": 2, "stream": True}),
        ("/v1/completions", {"max_tokens": 0, "prompt_logprobs": 2}),
    ],
)
def test_a_prompt_without_numbers_is_an_error(broken, path, body):
    """Not a reply with null where a log-probability should be, and what lists them the first ids as the best ones."""
    prompt = {"input_ids" if path == "/generate" else "prompt": [5, 6, 7]}
    reply = broken.post(path, prompt | body)
    assert reply.status_code == (200 if "stream" in body else 500) and SAYS in reply.text, reply.text
    assert "token_logprobs" not in reply.text, reply.text
