"""Tiny Qwen3 models in temporary folders, and real vLLM servers that hold them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from megatron_corew.config import ServersConfig
from megatron_corew.rollout.client import ServerClient
from megatron_corew.rollout.sampler import Sampler, Sampling, ServerPool
from megatron_corew.rollout.server import VllmServer

VOCAB_SIZE = 100
END = 1
SERVERS = ServersConfig(kv_cache_gb=0.2, start_timeout_s=170.0, request_timeout_s=60.0)
SAMPLING = Sampling(temperature=1.0, max_tokens=12, stop_token_ids=(END,))


def build_model(folder: Path, *, tied: bool) -> Path:
    """Write a 2-layer float32 model with random weights and a tokenizer of single characters."""
    characters = ["<pad>", "<end>", *map(chr, range(32, 127))]
    characters += [f"<{i}>" for i in range(VOCAB_SIZE - len(characters))]
    vocabulary = {text: i for i, text in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM's CPU attention takes
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        eos_token_id=END,
        pad_token_id=0,
        initializer_range=0.08,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    return folder


def hf_weights(model: Qwen3ForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under the names of a checkpoint, where a tied head is not stored twice."""
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            yield name, tensor


def perturbed(folder: Path, seed: int) -> Qwen3ForCausalLM:
    """The model of the folder with every weight moved a little."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * 0.05)
    return model


@dataclass(frozen=True)
class Stand:
    """A running server and its model."""

    folder: Path
    server: VllmServer
    client: ServerClient
    sampler: Sampler
    model: Qwen3ForCausalLM
    """Another model than the folder's, for pushing."""


def start(folder: Path, log_path: Path) -> VllmServer:
    """A started server, not yet healthy."""
    server = VllmServer(
        str(folder), SERVERS, dtype="float32", max_model_len=256, seed=0, log_path=log_path
    )
    server.start()
    return server


@pytest.fixture(scope="package", params=["tied", "untied"])
def stand(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    """One server for all tests of one kind of model."""
    root = tmp_path_factory.mktemp(request.param)
    folder = build_model(root / "model", tied=request.param == "tied")
    server = start(folder, root / "server.log")
    try:
        server.wait_until_healthy()
        client = server.client()
        client.check(dtype="float32", min_model_len=256)
        sampler = Sampler(
            ServerPool([client]),
            "policy",
            sampling=SAMPLING,
            bucket_folder=Path("/dev/shm"),
            bucket_bytes=60_000,  # several buckets, with layers cut in two
            dtype=torch.float32,
        )
        yield Stand(folder, server, client, sampler, perturbed(folder, seed=1))
    finally:
        server.stop()
