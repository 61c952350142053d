"""HTTPS: whole replies, streams, many at once, and clients that do not speak it."""

import concurrent.futures
import contextlib
import json
import shutil
import socket
import ssl
import subprocess

import httpx
import pytest
from mocks import workers
from programs import LIMIT, STORIES, program, router_to, run, server

BODY = {"input_ids": [1, 403], "return_logprob": True, "sampling_params": {"max_new_tokens": 60, "sampling_seed": 3}}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """One PEM file with certificate and key, as --tls-certificate wants it."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is absent: it makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, cert, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
                    "-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                   check=True, capture_output=True, timeout=LIMIT)  # fmt: skip
    both.write_text(cert.read_text() + key.read_text())
    return both


def test_replies_and_streams(certificate):
    with server("--tls-certificate", certificate, "--api-key", "user") as s:
        trust = ssl.create_default_context(cafile=certificate)
        head = {"Authorization": "Bearer user"}
        with httpx.Client(base_url=f"https://127.0.0.1:{s.port}", verify=trust, timeout=LIMIT, headers=head) as client:
            assert client.get("/health").status_code == 200
            whole = client.post("/generate", json=BODY).json()
            assert whole["meta_info"]["completion_tokens"] == 60

            def stream(_):
                with client.stream("POST", "/generate", json=BODY | {"stream": True}) as reply:
                    return [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]

            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                for *events, done in pool.map(stream, range(32)):
                    assert done == "[DONE]" and json.loads(events[-1])["output_ids"] == whole["output_ids"]
            large = client.post("/generate", json=BODY | {"top_logprobs_num": 200, "return_text_in_logprobs": True})
            assert len(large.content) > 200_000 and large.json()["output_ids"] == whole["output_ids"]
            assert client.post("/generate", json=BODY, headers={"Authorization": "Bearer no"}).status_code == 401
            with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
                httpx.get(f"https://127.0.0.1:{s.port}/health", timeout=LIMIT)
            for said in (b"GET /health HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01\x02\x00\x01"):  # no TLS; nothing; half a greeting
                with socket.create_connection(("127.0.0.1", s.port), timeout=LIMIT) as c:
                    with contextlib.suppress(OSError):  # the server may have hung up already
                        c.sendall(said)
                        c.shutdown(socket.SHUT_WR)
                        while got := c.recv(4096):
                            assert b"200 OK" not in got
            assert client.post("/generate", json=BODY).json()["output_ids"] == whole["output_ids"]


def test_a_router(certificate):
    with server() as s, program("clime-router", "--tls-certificate", certificate, "--worker-urls", s.url) as r:
        with httpx.Client(base_url=f"https://127.0.0.1:{r.port}", verify=ssl.create_default_context(cafile=certificate), timeout=LIMIT) as client:
            assert client.post("/generate", json=BODY).json()["output_ids"] == s.json("/generate", BODY)["output_ids"]


def test_a_new_connection_goes_on_with_the_last_ones_session(certificate):
    """A worker that ends each connection is greeted in full once. A handle of libcurl's for each call began anew each time."""
    went_on = []

    def answer(handler, body):
        if handler.path == "/generate":
            went_on.append(handler.connection.session_reused)
            handler.close_connection = True
        return False

    speaks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaks.load_cert_chain(certificate)
    with workers(1, answer) as (worker,):
        worker.listener.socket = speaks.wrap_socket(worker.listener.socket, server_side=True)
        with router_to([worker.url.replace("http:", "https:")], "--ca-certificate", certificate) as router:
            for _ in range(5):
                assert router.post("/generate", {}).status_code == 200
    assert went_on == [False, True, True, True, True]


def test_a_certificate_that_is_none(certificate, tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate\n")
    for path, says in [(bad, "cannot listen"), (tmp_path / "absent.pem", "cannot read the TLS certificate")]:
        status, _, err = run("clime-server", "--model-path", STORIES, "--port", 0, "--tls-certificate", path)
        assert status == 1 and says in err, err
