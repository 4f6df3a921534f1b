"""A job waits for its servers; a run does not, because a wrong address never answers."""

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from megatron_corew import preflight
from megatron_corew.config import Config
from megatron_corew.rollout.server import free_port


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


def config(**servers: object) -> Config:
    return Config.model_validate(
        {
            "method": "co_rewarding_i",
            "run": {"name": "test", "steps": 1},
            "model": {"path": "lab"},
            "data": {"train": "lab"},
            "servers": servers,
        }
    )


@pytest.fixture
def late_server():
    """A port where a server answers a moment after the first look."""
    port = free_port("127.0.0.1")
    started = threading.Event()
    servers = []

    def start():
        time.sleep(0.3)
        servers.append(HTTPServer(("127.0.0.1", port), Healthy))
        started.set()
        servers[0].serve_forever()

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    assert started.wait(10)
    servers[0].shutdown()
    thread.join()
    servers[0].server_close()


def test_waiting_ends_when_every_server_answers(late_server, monkeypatch):
    monkeypatch.setattr(preflight, "SERVER_POLL_S", 0.05)
    run = config(policy=[late_server], teacher=[late_server])
    assert preflight.silent_servers(run)
    preflight.wait_for_servers(run)
    assert preflight.silent_servers(run) == []


def test_a_server_that_never_answers_is_named_with_the_knob(monkeypatch):
    monkeypatch.setattr(preflight, "SERVER_POLL_S", 0.05)
    address = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    with pytest.raises(RuntimeError, match=rf"servers\.teacher: need an answer from {address}"):
        preflight.wait_for_servers(config(teacher=[address], start_timeout_s=0.2))


def test_a_run_without_addresses_waits_for_nobody():
    preflight.wait_for_servers(config(start_timeout_s=0.01))


def test_a_bucket_folder_that_is_not_there_or_too_small_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"servers\.bucket_folder: need an existing folder"):
        preflight.check_shared_memory(config(bucket_folder=str(tmp_path / "none")), 1)
    huge = 2**60
    with pytest.raises(ValueError, match=rf"MB free in {tmp_path}"):
        preflight.check_shared_memory(config(bucket_folder=str(tmp_path)), huge)
