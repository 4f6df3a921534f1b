"""Compares the policy's logits with a reference in float32."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_corew.mcore import platform
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.mcore.policy import Policy
from tests.gpu.models import PARITY, MadeUpSource, run_config

GOLDEN = Path(__file__).with_name("golden_logits.json")
TOKENS = torch.tensor([(7 * place * place + 3) % 128 for place in range(48)])[None]


def our_logits(dtype: str) -> Tensor:
    """[48, 128] float32 on the CPU, of the policy in ``dtype`` on this machine's device."""
    config = run_config(dtype=dtype, response_tokens=64, budget=256)
    with parallel_world(config.parallel, seed=0) as layout:
        policy = Policy(config, MadeUpSource(PARITY), layout)
        policy.module.eval()
        ids_BS = TOKENS.to(platform.device())
        positions_BS = torch.arange(TOKENS.shape[1], device=ids_BS.device)[None]
        with torch.no_grad():
            hidden_SBD = policy.ddp[0](ids_BS, positions_BS, None)
        weight_VD = policy.module.output_weight()
        logits_SV = hidden_SBD[:, 0].to(weight_VD.dtype) @ weight_VD.t()
        return logits_SV.detach().float().cpu()


def hugging_face_logits() -> Tensor:
    """The same by transformers, in float32 on the CPU."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    source = MadeUpSource(PARITY)
    keys = PARITY.keys() - {"architectures", "model_type", "rope_theta"}
    rope = {"rope_type": "default", "rope_theta": PARITY["rope_theta"]}
    config = Qwen3Config(rope_parameters=rope, **{key: PARITY[key] for key in keys})
    model = Qwen3ForCausalLM(config).float().eval()
    tensors = {k: v for entry in source.table for k, v in source.read(entry).items()}
    model.load_state_dict(tensors)
    with torch.no_grad():
        return model(TOKENS).logits[0].float()


def golden_logits() -> Tensor:
    """The same as recorded from this project's float32 policy on a CPU."""
    return torch.tensor(json.loads(GOLDEN.read_text()))


def measure(dtype: str) -> dict[str, Any]:
    """Distance of our logits to the reference, relative to the reference's spread."""
    named = find_spec("transformers") is not None
    reference, ours = (hugging_face_logits() if named else golden_logits()), our_logits(dtype)
    error, spread = (ours - reference).abs(), float(reference.std())
    return {
        "reference": "transformers float32" if named else "recorded float32",
        "dtype": dtype,
        "mean_relative_error": float(error.mean()) / spread,
        "max_relative_error": float(error.max()) / spread,
        "same_argmax": float((ours.argmax(-1) == reference.argmax(-1)).float().mean()),
    }


if __name__ == "__main__":
    rounded = [[round(value, 5) for value in row] for row in our_logits("float32").tolist()]
    GOLDEN.write_text(json.dumps(rounded, separators=(",", ":")) + "\n")
