"""Asks an OpenAI-compatible server, patiently while it is busy."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from megatron_corew.data.rephrase.prompt import model_name

API_KEY = "COREW_REPHRASE_API_KEY"
"""Environment variable with the key of a server that wants one."""
FIRST_PAUSE_S = 0.5
"""Pause after the first failure; it doubles with each further one."""
_BUSY = frozenset({408, 429, 500, 502, 503, 504})
_REFUSED = frozenset({400, 413, 422})


class RequestRefused(Exception):
    """The server will never answer this one request, for example because it is too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One answer."""

    text: str
    is_whole: bool
    """False: it was cut off at the longest length."""


class ChatClient:
    """One server.

    Args:
        url: ``http://host:port``, with or without ``/v1``.
        timeout_s: seconds a request may take.
        tries: how often a request is sent before the server counts as gone.
        connections: most requests at the same time.
        post_mortem: what there is to say of the server when it is gone.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        tries: int,
        connections: int,
        post_mortem: Callable[[], str] = lambda: "",
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._tries = tries
        self._post_mortem = post_mortem
        key = os.environ.get(API_KEY)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=timeout_s,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # No connection is used twice: a server closes idle ones, and a request that meets
            # one in that moment would fail for no reason.
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
            verify=self.url.startswith("https"),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def served_model(self, wanted: str) -> str:
        """The name under which the server has a model.

        Args:
            wanted: path, hub id or name; the last part decides.

        Returns:
            The server's own name of it.

        Raises:
            ValueError: the server has other models.
            RuntimeError: the server cannot be reached.
        """
        answer = await self._request("GET", "/v1/models", {})
        with self._understanding("/v1/models", answer):
            names = [str(model["id"]) for model in answer["data"]]
        for name in names:
            if model_name(name) == model_name(wanted):
                return name
        raise ValueError(
            f"--url {self.url}: need a server with the model {wanted!r}, got {', '.join(names)}. "
            "Set model= to one of them."
        )

    async def complete(
        self, prompt: str | Sequence[Mapping[str, str]], sampling: Mapping[str, object]
    ) -> list[Completion]:
        """Ask for answers to one prompt.

        Args:
            prompt: messages, or a plain text to continue.
            sampling: ``model``, ``n``, ``temperature``, ``max_tokens``, ``seed`` and so on.

        Returns:
            ``n`` answers.

        Raises:
            RequestRefused: the server will not answer this prompt.
            RuntimeError: the server is gone, or wants a key.
        """
        chat = not isinstance(prompt, str)
        path = "/v1/chat/completions" if chat else "/v1/completions"
        asked = {"messages": list(prompt)} if chat else {"prompt": prompt}
        answer = await self._request("POST", path, {**asked, **sampling})
        with self._understanding(path, answer):
            return [
                Completion(
                    # Content is null when a model only thought.
                    text=(choice["message"]["content"] or "") if chat else choice["text"],
                    is_whole=choice["finish_reason"] != "length",
                )
                for choice in answer["choices"]
            ]

    @contextmanager
    def _understanding(self, path: str, answer: Mapping[str, object]) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError) as error:
            raise RuntimeError(
                f"server {self.url}{path}: need an answer in OpenAI's form, got {answer!r:.200}. "
                "Set --url to an OpenAI-compatible server."
            ) from error

    async def _request(self, verb: str, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        trouble = ""
        for number in range(self._tries):
            if number:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (number - 1))
            try:
                response = await self._http.request(verb, path, json=dict(body) if body else None)
            except httpx.HTTPError as error:
                trouble = f"{type(error).__name__}: {error}"
                continue
            if response.status_code == 200:
                return self._read(path, response)
            trouble = f"status {response.status_code}: {response.text[:500]}"
            if response.status_code in _REFUSED:
                raise RequestRefused(trouble)
            if response.status_code not in _BUSY:
                break
        raise RuntimeError(
            f"server {self.url}{path}: need an answer, got {trouble}. {self._post_mortem()} What "
            "is done is kept: the same command goes on. See --url, servers.request_timeout_s and "
            f"the environment variable {API_KEY}."
        )

    def _read(self, path: str, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = response.text
        if not isinstance(answer, dict):
            raise RuntimeError(
                f"server {self.url}{path}: need a JSON object, got {answer!r:.200}. Set --url to "
                "an OpenAI-compatible server."
            )
        return answer
