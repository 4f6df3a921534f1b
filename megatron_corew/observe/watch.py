"""Serves the report of runs while they train, to a browser on this machine."""

import threading
import time
from collections.abc import Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from megatron_corew.observe.metrics import METRICS_FILE
from megatron_corew.observe.report import render_report

_REST = 4.0
"""A page is made again at the earliest after so many times the seconds that it took."""


class ReportServer(ThreadingHTTPServer):
    """Answers ``/`` with the page and ``/version`` with a text that changes with it, nothing else.

    Reads the run folders only. A request for another host's name is refused, so that a web page
    elsewhere cannot read the report through the reader's own browser.

    Args:
        run_folders: as for ``write_report``.
        host: interface to bind to.
        port: 0 takes a free one; ``address`` says which.

    Raises:
        OSError: the port cannot be had.
    """

    daemon_threads = True

    def __init__(self, run_folders: Sequence[Path], *, host: str, port: int) -> None:
        self._folders = tuple(run_folders)
        self._lock = threading.Lock()
        self._page, self._made_of = b"", ""
        self._version, self._fresh_until = "", 0.0
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def is_local_only(self) -> bool:
        """Whether only this machine can reach the server."""
        return str(self.server_address[0]).startswith("127.")

    def version(self) -> str:
        """A text that is another one when the records have grown."""
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._version = _stamp(self._folders)
            return self._version

    def page(self) -> bytes:
        """The page of the newest version; made anew only when the records have grown.

        Raises:
            ValueError: as ``render_report``.
        """
        version = self.version()
        with self._lock:
            if self._made_of != version:
                began = time.monotonic()
                self._page = render_report(self._folders, live=True).encode()
                self._made_of = version
                self._fresh_until = time.monotonic() + _REST * (time.monotonic() - began)
            return self._page


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "corew"
    sys_version = ""

    def do_GET(self) -> None:
        if self.server.is_local_only() and not self._names_this_machine():
            self._send(403, "text/plain", b"This report is served to this machine only.")
        elif self.path == "/version":
            self._send(200, "text/plain", self.server.version().encode())
        elif self.path == "/":
            self._send_page()
        else:
            self._send(404, "text/plain", b"Not here.")

    def _send_page(self) -> None:
        try:
            page = self.server.page()
        except ValueError as error:
            # A run that has just begun has no record yet; the browser comes back by itself.
            text = f"<!doctype html><meta http-equiv=refresh content=2><p>{escape(str(error))}</p>"
            self._send(503, "text/html; charset=utf-8", text.encode())
            return
        self._send(200, "text/html; charset=utf-8", page)

    def _names_this_machine(self) -> bool:
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        return host in ("localhost", str(self.server.server_address[0]))

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(
            "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal belongs to the user."""


def _stamp(folders: Sequence[Path]) -> str:
    sizes = []
    for folder in folders:
        path = folder / METRICS_FILE
        sizes.append(str(path.stat().st_size) if path.exists() else "-")
    return " ".join(sizes)
