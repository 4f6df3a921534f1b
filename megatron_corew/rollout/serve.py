"""Becomes a vLLM server that runs can be pointed at, in the foreground."""

import ipaddress
import os
from collections.abc import Sequence

from megatron_corew.config import Config
from megatron_corew.rollout.server import server_command, server_environment


def serve(config: Config, *, model: str, port: int, on_gpu: bool) -> None:
    """Replace this process by a server with the flags that a run of this configuration needs.

    Policy and teacher servers are the same: what is pushed to a server makes it one of the two.

    Args:
        config: the run; its section ``servers`` says where to listen.
        model: Hugging Face folder.
        port: to listen on.
        on_gpu: False for a CPU server.

    Raises:
        ValueError: the server would be open to the network without a token.
    """
    command = checked_command(config, model=model, port=port, on_gpu=on_gpu)
    environment = server_environment(config.servers, os.environ, on_gpu=on_gpu)
    os.execvpe(command[0], command, environment)


def checked_command(config: Config, *, model: str, port: int, on_gpu: bool) -> Sequence[str]:
    """The server's command line, refused where it would be open to the network.

    Raises:
        ValueError: ``servers.host`` is not loopback and there is no ``servers.token_file``.
    """
    servers = config.servers
    if not _is_loopback(servers.host) and servers.token_file is None:
        raise ValueError(
            f"servers.token_file: need a token to listen on {servers.host}, because a server lets "
            "its callers change the weights. Set servers.token_file, or servers.host=127.0.0.1."
        )
    return server_command(
        model,
        servers,
        port=port,
        dtype=config.model.dtype,
        max_model_len=config.data.max_prompt_tokens + config.rollout.max_response_tokens,
        seed=config.run.seed,
        on_gpu=on_gpu,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
