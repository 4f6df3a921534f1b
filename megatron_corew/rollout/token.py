"""The token that a server asks of its callers.

vLLM's own ``--api-key`` guards ``/v1`` only, not the routes that change weights. ``TokenGuard``
guards all but ``/health``; a server loads it by name (``--middleware``).
"""

import hmac
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from megatron_corew.config import ServersConfig

TOKEN_FILE_VARIABLE = "COREW_TOKEN_FILE"
OPEN_PATHS = frozenset({"/health"})
MIDDLEWARE = "megatron_corew.rollout.token.TokenGuard"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


def read_token(path: str | Path) -> str:
    """The token in a file that only its owner can read.

    Raises:
        ValueError: there is no such file, it is empty, or others can read it.
    """
    file = Path(path)
    if not file.is_file() or not (token := file.read_text(encoding="utf-8").strip()):
        raise ValueError(f"servers.token_file: need a file with a token, got {file}.")
    if mode := file.stat().st_mode & 0o077:
        raise ValueError(
            f"servers.token_file: need a file that only its owner can read, got {file} with "
            f"{mode:03o} for others. Run: chmod 600 {file}"
        )
    return token


def token_of(servers: ServersConfig) -> str | None:
    """The token of a run's servers, or None where they ask for none."""
    return None if servers.token_file is None else read_token(servers.token_file)


class TokenGuard:
    """ASGI middleware: refuses every request without the token, before vLLM sees it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = f"Bearer {read_token(os.environ[TOKEN_FILE_VARIABLE])}".encode()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = b"need the token of servers.token_file"
            await send({"type": "http.response.body", "body": body})

    def _admits(self, scope: dict[str, Any]) -> bool:
        if scope["path"] in OPEN_PATHS:
            return True
        given = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
