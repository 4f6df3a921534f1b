"""A small HTTP server that speaks the part of OpenAI's interface that rephrasing uses."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], list[str] | int]


@dataclass
class FakeOpenAI:
    """What the server answers, and what it was asked."""

    answer: Answer
    """Request body -> one text per sample, or a status code."""
    models: list[str] = field(default_factory=lambda: ["/somewhere/rewriter"])
    address: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    finish_reason: str = "stop"

    def respond(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and content for one request."""
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in self.models]}
        self.bodies.append(body)
        texts = self.answer(body)
        if isinstance(texts, int):
            return texts, {"error": f"the server says {texts}"}
        chat = path == "/v1/chat/completions"
        choices = [
            {
                **({"message": {"content": text}} if chat else {"text": text}),
                "finish_reason": self.finish_reason,
            }
            for text in texts
        ]
        return 200, {"choices": choices}


def asked(body: dict[str, Any]) -> str:
    """The last message, or the plain prompt."""
    return body["messages"][-1]["content"] if "messages" in body else body["prompt"]


def _handler(fake: FakeOpenAI) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            fake.headers.append(dict(self.headers))
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = fake.respond(self.path, json.loads(raw) if raw else {})
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def serving(answer: Answer, **fields: Any) -> Iterator[FakeOpenAI]:
    """Serve on a free port of this machine."""
    fake = FakeOpenAI(answer, **fields)
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
