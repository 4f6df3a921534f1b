"""HTTP calls to one vLLM server; every failure is a RuntimeError with the server's own words."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx

HEALTH_TIMEOUT_S = 5.0
REQUIRED_SETTINGS = {
    "scheduler": "megatron_corew.rollout.batch_gate.BatchGate",
    "logprobs": "processed_logprobs",
    "generation_config": "vllm",
    "transfer": "corew_shm",
}
"""What a server must have been started with, wherever it runs."""


class ServerClient:
    """One server, seen through its address; safe to call from several threads."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        token: str | None = None,
        post_mortem: Callable[[], str] = lambda: "",
    ) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._post_mortem = post_mortem
        # No connection is used twice: the server closes idle ones, and a request that meets one
        # in that moment would fail for no reason.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        # Reading the certificates takes a noticeable time and serves no purpose without TLS.
        verify = address.startswith("https")
        self._http = httpx.Client(
            base_url=address,
            timeout=timeout_s,
            limits=limits,
            verify=verify,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
        )

    def is_healthy(self) -> bool:
        """Whether the server answers at all."""
        try:
            return self._http.get("/health", timeout=HEALTH_TIMEOUT_S).status_code == 200
        except httpx.HTTPError:
            return False

    def check(self, *, dtype: str, min_model_len: int) -> None:
        """Refuse a server that would give other numbers than the trainer expects.

        Args:
            dtype: type in which weights will be pushed.
            min_model_len: longest prompt and response together, in tokens.

        Raises:
            RuntimeError: a setting of the server does not fit.
        """
        got = self._call_workers("corew_settings")[0]
        need = {**REQUIRED_SETTINGS, "dtype": dtype}
        wrong = {name: value for name, value in need.items() if got.get(name) != value}
        if got["max_model_len"] < min_model_len:
            wrong["max_model_len"] = f"at least {min_model_len}"
        if wrong:
            have = {name: got.get(name) for name in wrong}
            raise RuntimeError(
                f"server {self.address}: need {wrong}, got {have}. Start it with the flags of "
                "rollout/server.py."
            )

    def complete(self, body: Mapping[str, object]) -> dict[str, Any]:
        """Sample responses: one request of the completions interface, token ids in and out."""
        return self._request("POST", "/v1/completions", json=body)

    def abort_all(self) -> None:
        """End every request that runs or waits on the server."""
        self._request("POST", "/abort_requests", json={})

    def begin_update(self) -> None:
        """Stop sampling and make the model ready for new weights.

        A failed update before this one is forgotten: the new one replaces every weight.
        """
        self._request("POST", "/pause", params={"mode": "abort"})
        self._call_workers("corew_abandon_weight_update")
        self._request("POST", "/start_weight_update")

    def send_bucket(self, path: str) -> None:
        """Load the weights of one file, which the server must be able to read."""
        self._request("POST", "/update_weights", json={"update_info": {"path": path}})

    def finish_update(self, version: str) -> None:
        """Put the new weights in force, drop what was computed with the old ones, and resume."""
        self._request("POST", "/finish_weight_update", json={"weight_version": version})
        if not self._request("POST", "/reset_prefix_cache").get("success"):
            raise RuntimeError(
                f"server {self.address}: need its prefix cache reset after a weight update, got "
                "a refusal. Is somebody else using this server?"
            )
        self._request("POST", "/resume")

    def weight_version(self) -> str:
        """The name under which the weights in force were pushed."""
        return str(self._request("GET", "/weight_info")["weight_version"])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _call_workers(self, method: str) -> list[dict[str, Any]]:
        """Call a method of the worker extension on every worker."""
        answer = self._request("POST", "/collective_rpc", json={"method": method})
        return list(answer["results"])

    def _request(self, verb: str, path: str, **content: Any) -> dict[str, Any]:
        """One request.

        Raises:
            RuntimeError: the server cannot be reached, is too slow, or refuses.
        """
        where = f"server {self.address}{path}"
        try:
            response = self._http.request(verb, path, **content)
        except httpx.TimeoutException as error:
            raise RuntimeError(
                f"{where}: need an answer within {self._timeout_s:g} s. Raise "
                f"servers.request_timeout_s. {self._post_mortem()}"
            ) from error
        except httpx.HTTPError as error:
            raise RuntimeError(
                f"{where}: need an answer, got {type(error).__name__}: {error}. "
                f"{self._post_mortem()}"
            ) from error
        if response.status_code != 200:
            raise RuntimeError(
                f"{where}: got status {response.status_code}: {response.text[:2000]} "
                f"{self._post_mortem()}"
            )
        return dict(response.json()) if response.content else {}
