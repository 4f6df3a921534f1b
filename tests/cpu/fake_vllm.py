"""A small HTTP server that speaks the part of vLLM's interface that the rollout bridge uses."""

import json
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

Choice = Callable[[list[int], int, int], dict[str, Any]]
END = 9


def two_tokens_and_the_end(prompt: list[int], seed: int, sample: int) -> dict[str, Any]:
    """A response whose text would be tokenised in another way."""
    return {
        "text": "ab",
        "token_ids": [1, 2, END],
        "logprobs": {"token_logprobs": [-0.5, -1.0, -1.5]},
        "finish_reason": "stop",
    }


@dataclass
class FakeVllm:
    """State and call log of one fake server."""

    address: str = ""
    calls: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    loaded: dict[str, Tensor] = field(default_factory=dict)
    buckets: list[tuple[int, str, str]] = field(default_factory=list)
    """Bytes of the tensors, mode of the file, and mode of the folder, for every bucket."""
    paths: list[Path] = field(default_factory=list)
    version: str = "default"
    failing: set[str] = field(default_factory=set)
    choice: Choice = two_tokens_and_the_end
    aborted: threading.Event = field(default_factory=threading.Event)
    hold: bool = False
    """Hold responses back until everything is aborted, like a call that never gets complete."""
    settings: dict[str, Any] = field(default_factory=dict)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the server does for one request."""
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/abort_requests":
            self.aborted.set()
        if path == "/update_weights":
            self.load(Path(body["update_info"]["path"]))
        if path == "/finish_weight_update":
            self.version = body["weight_version"]
        return {
            "/weight_info": {"weight_version": self.version},
            "/reset_prefix_cache": {"success": True},
            "/collective_rpc": {"results": [self.settings]},
        }.get(path, {})

    def load(self, path: Path) -> None:
        """Read a bucket as a server would."""
        self.paths.append(path)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        modes = [oct(stat.S_IMODE(place.stat().st_mode)) for place in (path, path.parent)]
        self.buckets.append((sum(tensor.nbytes for tensor in tensors.values()), *modes))
        self.loaded.update(tensors)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Responses in an order of their own, as a server may give them."""
        self.bodies.append(body)
        if self.hold:
            self.aborted.wait(20)
        seeds = body["vllm_xargs"]["corew_seeds"]
        choices = [
            {"index": i * body["n"] + k, **self.choice(prompt, seeds[i], k)}
            for i, prompt in enumerate(body["prompt"])
            for k in range(body["n"])
        ]
        return {"choices": choices[::-1]}


def _handler(fake: FakeVllm) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            path = self.path.partition("?")[0]
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.calls.append(path)
            status = 500 if path in fake.failing else 200
            answer = {"error": f"the server says no to {path}"}
            if status == 200:
                answer = fake.answer(path, json.loads(raw) if raw else {})
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def running(fake: FakeVllm) -> Iterator[FakeVllm]:
    """Serve on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    server.daemon_threads = True
    fake.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
