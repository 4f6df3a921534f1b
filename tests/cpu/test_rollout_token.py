"""A server that others can reach asks for a token on every route that does something."""

import asyncio

import pytest

from megatron_corew.config import Config, ServersConfig
from megatron_corew.rollout.client import ServerClient
from megatron_corew.rollout.serve import checked_command
from megatron_corew.rollout.server import server_environment
from megatron_corew.rollout.token import TOKEN_FILE_VARIABLE, TokenGuard, read_token, token_of


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text("secret\n")
    return file


def answer(guard: TokenGuard, path: str, *headers: tuple[bytes, bytes], kind: str = "http") -> int:
    """Status that a request gets; 200 when it reaches the application behind the guard."""
    statuses: list[int] = []

    async def send(message):
        statuses.append(message.get("status", message.get("code", 0)))

    scope = {"type": kind, "path": path, "headers": list(headers)}
    asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    return statuses[0]


@pytest.fixture
def guard(token_file, monkeypatch):
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(token_file))

    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    return TokenGuard(application)


@pytest.mark.parametrize(
    "path", ["/v1/completions", "/update_weights", "/collective_rpc", "/pause", "/", "//health"]
)
def test_every_route_but_health_needs_the_token(guard, path):
    assert answer(guard, path) == 401
    assert answer(guard, path, (b"authorization", b"Bearer wrong")) == 401
    assert answer(guard, path, (b"Authorization", b"Bearer secret")) == 200
    two = [(b"authorization", b"Bearer secret"), (b"authorization", b"Bearer other")]
    assert answer(guard, path, *two) == 401


def test_health_is_open_and_a_websocket_without_the_token_is_closed(guard):
    assert answer(guard, "/health") == 200
    assert answer(guard, "/ws", kind="websocket") == 1008


def test_a_client_sends_the_token_of_the_run(token_file):
    servers = ServersConfig(token_file=str(token_file))
    client = ServerClient("http://127.0.0.1:1", timeout_s=1, token=token_of(servers))
    assert client._http.headers["Authorization"] == "Bearer secret"
    bare = ServerClient("http://127.0.0.1:1", timeout_s=1, token=token_of(ServersConfig()))
    assert "Authorization" not in bare._http.headers


def test_a_token_that_is_missing_empty_or_readable_by_others_is_refused(token_file, tmp_path):
    assert read_token(token_file) == "secret"
    with pytest.raises(ValueError, match=r"servers\.token_file: need a file with a token"):
        read_token(tmp_path / "none")
    token_file.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_token(token_file)
    token_file.chmod(0o600)
    token_file.write_text("\n")
    with pytest.raises(ValueError, match="need a file with a token"):
        read_token(token_file)


def command(**servers: object) -> list[str]:
    config = Config.model_validate(
        {
            "method": "co_rewarding_i",
            "run": {"name": "test", "steps": 1},
            "model": {"path": "lab", "dtype": "float32"},
            "data": {"train": "lab", "max_prompt_tokens": 32},
            "rollout": {"max_response_tokens": 24},
            "servers": servers,
        }
    )
    return list(checked_command(config, model="folder", port=7000, on_gpu=False))


def test_a_served_model_has_the_runs_flags():
    flags = command()
    got = dict(zip(flags, [*flags[1:], ""], strict=True))
    assert (got["--model"], got["--port"], got["--host"]) == ("folder", "7000", "127.0.0.1")
    assert (got["--dtype"], got["--max-model-len"]) == ("float32", "56")
    assert "--middleware" not in flags


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.5", "node7", "::"])
def test_a_server_is_open_to_the_network_only_with_a_token(host, token_file):
    with pytest.raises(ValueError, match=r"servers\.token_file: need a token to listen"):
        command(host=host)
    flags = command(host=host, token_file=str(token_file))
    assert flags[flags.index("--middleware") + 1] == "megatron_corew.rollout.token.TokenGuard"
    servers = ServersConfig(host=host, token_file=str(token_file))
    environment = server_environment(servers, {}, on_gpu=False)
    assert environment[TOKEN_FILE_VARIABLE] == str(token_file)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_needs_no_token(host):
    assert "--middleware" not in command(host=host)
