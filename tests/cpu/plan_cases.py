"""Runs that plans are made for in several tests."""

from megatron_corew.config import Config
from megatron_corew.plan.generation import Servers
from megatron_corew.plan.gpus import GPUS

H100 = GPUS["h100-80gb"]
# Co-rewarding-III as in the paper: 128 questions, 8 responses, 512 and 3,072 tokens.
PAPER = {"prompts_per_step": 128, "samples_per_prompt": 8, "max_response_tokens": 3072}


SECTIONS = ("precision", "optimizer", "teacher", "loss")


def config_for(model: str, method: str = "co_rewarding_iii", **knobs: object) -> Config:
    """A run; knobs of ``parallel``, other sections by their names."""
    sections = {name: knobs.pop(name) for name in SECTIONS if name in knobs}
    return Config.model_validate(
        sections
        | {
            "method": method,
            "run": {"name": "test", "steps": 10},
            "model": {"path": f"no/such/folder/{model}"},
            "data": {"train": "lab", "max_prompt_tokens": 512},
            "rollout": PAPER,
            "parallel": knobs,
        }
    )


def qwen3_8b(**parallel: object) -> Config:
    return config_for("Qwen3-8B-Base", **parallel)


def servers_of(gpus: int, tensor: int) -> Servers:
    return Servers(gpus=gpus, tensor=tensor, memory=70e9, max_sequences=256)
