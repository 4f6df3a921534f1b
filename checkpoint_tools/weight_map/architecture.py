"""Reads the shape of a model from a Hugging Face config, refusing what would change results.

Deliberate difference: a key that the trainer cannot honour is an error, never ignored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Llama 3's stretching of the rotary wavelengths."""

    factor: float
    """Long wavelengths are multiplied by it."""
    low_freq_factor: float
    """Wavelengths above original_max_positions / low_freq_factor are stretched in full."""
    high_freq_factor: float
    """Wavelengths below original_max_positions / high_freq_factor are left alone."""
    original_max_positions: int
    """Longest sequence of the first pretraining phase, in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixture:
    """The routed experts that stand in the place of every layer's feed-forward."""

    num_experts: int
    experts_per_token: int
    """Experts whose outputs are summed for a token, at most num_experts."""
    expert_ffn_size: int
    """Of one expert's gate (and of its up) projection."""
    normalise_topk: bool
    """The chosen experts' probabilities are divided by their sum."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """All that the weights and the forward pass of a decoder depend on."""

    family: Family
    num_layers: int
    hidden_size: int
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key/value heads (query groups); divides num_heads."""
    head_size: int
    """Of one head; num_heads * head_size need not be hidden_size."""
    ffn_size: int
    """Of the gate (and of the up) projection; without effect where there is a mixture."""
    vocab_size: int
    """True size, without padding."""
    tied: bool
    """The output layer is the embedding."""
    qkv_bias: bool
    qk_norm: bool
    """RMSNorm over each query and key head before the rotation."""
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_positions: int
    """Longest sequence, in tokens."""
    mixture: Mixture | None = None
    """None: a dense model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Traits:
    """What a family fixes in its modelling code and not in its config."""

    family: Family
    qkv_bias: bool
    qk_norm: bool
    head_size: int | None
    """Head size of a config without head_dim; None: hidden_size / num_attention_heads."""
    mixture: bool = False


_FAMILIES: dict[str, _Traits] = {
    "LlamaForCausalLM": _Traits(family="llama", qkv_bias=False, qk_norm=False, head_size=None),
    "Qwen2ForCausalLM": _Traits(family="qwen2", qkv_bias=True, qk_norm=False, head_size=None),
    "Qwen3ForCausalLM": _Traits(family="qwen3", qkv_bias=False, qk_norm=True, head_size=128),
    "Qwen3MoeForCausalLM": _Traits(
        family="qwen3_moe", qkv_bias=False, qk_norm=True, head_size=None, mixture=True
    ),
}

# Keys of other models, or options of these, with the one value that means "not in use".
_NEUTRAL: dict[str, Any] = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "attention_bias": False,
    "partial_rotary_factor": 1.0,
    "attention_multiplier": None,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": None,
    "quantization_config": None,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 0,
    "n_shared_experts": 0,
}

_ROPE_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
}
_DEFAULT_THETA = 10_000.0
"""transformers' value for a config that names none."""


def read_architecture(hf_config: Mapping[str, Any]) -> Architecture:
    """Read a Llama, Qwen2, Qwen3 or Qwen3-MoE config, as found in config.json.

    Args:
        hf_config: the parsed config, in the spelling of transformers 4 (rope_theta, rope_scaling)
            or 5 (rope_parameters).

    Returns:
        The architecture; every field is explicit.

    Raises:
        ValueError: the architecture or the rope type is unknown, a key is missing, or a feature
            is in use that this project does not compute.

    Source: transformers, models/{llama,qwen2,qwen3,qwen3_moe} and modeling_rope_utils.py.
    """
    traits = _traits(hf_config)
    _refuse_unsupported(hf_config)
    theta, scaling = _read_rope(hf_config)
    hidden, heads = _count(hf_config, "hidden_size"), _count(hf_config, "num_attention_heads")
    # transformers gives Llama as many key/value heads as query heads when the key is absent;
    # the Qwen classes have a default of 32 instead, which no real config relies on.
    lenient = traits.family == "llama" or "num_key_value_heads" in hf_config
    absent = lenient and hf_config.get("num_key_value_heads") is None
    kv_heads = heads if absent else _count(hf_config, "num_key_value_heads")
    if heads % kv_heads:
        raise ValueError(
            f"config.json: num_attention_heads must be a multiple of num_key_value_heads, got "
            f"{heads} and {kv_heads}. The config does not fit any model."
        )
    return Architecture(
        family=traits.family,
        num_layers=_count(hf_config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=_head_size(hf_config, traits, hidden, heads),
        ffn_size=_count(hf_config, "intermediate_size"),
        vocab_size=_count(hf_config, "vocab_size"),
        tied=_switch(hf_config, "tie_word_embeddings"),
        qkv_bias=traits.qkv_bias,
        qk_norm=traits.qk_norm,
        norm_eps=_number(hf_config, "rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=_count(hf_config, "max_position_embeddings"),
        mixture=_read_mixture(hf_config) if traits.mixture else None,
    )


def inv_freq(architecture: Architecture) -> Tensor:
    """Rotary frequencies, in radians per position, with the scaling of Llama 3 when configured.

    Args:
        architecture: gives head size, theta and scaling.

    Returns:
        [head_size / 2] float32, decreasing; bit-equal to transformers' rotary ``inv_freq``.

    Source: transformers, _compute_llama3_parameters; meta-llama/llama-models, apply_scaling.
    """
    size = architecture.head_size
    exponents = torch.arange(0, size, 2, dtype=torch.int64).to(torch.float32) / size
    plain = 1.0 / (architecture.rope_theta**exponents)
    scaling = architecture.rope_scaling
    if scaling is None:
        return plain
    wavelengths = 2 * math.pi / plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_share = (scaling.original_max_positions / wavelengths - low) / (high - low)
    blended = (1 - kept_share) * plain / scaling.factor + kept_share * plain
    is_long = wavelengths > scaling.original_max_positions / low
    is_short = wavelengths < scaling.original_max_positions / high
    return torch.where(is_long, plain / scaling.factor, torch.where(is_short, plain, blended))


def _traits(hf_config: Mapping[str, Any]) -> _Traits:
    names = hf_config.get("architectures")
    if isinstance(names, list) and len(names) == 1 and str(names[0]) in _FAMILIES:
        return _FAMILIES[names[0]]
    raise ValueError(
        f"config.json: architectures must be one of {', '.join(_FAMILIES)}, got {names}. "
        "Use a model of these families."
    )


def _refuse_unsupported(hf_config: Mapping[str, Any]) -> None:
    for key, neutral in _NEUTRAL.items():
        value = hf_config.get(key)
        if value is not None and value != neutral:
            raise _unsupported(key, value, f"{neutral!r} or no such key")
    layer_types = hf_config.get("layer_types") or ()
    if not isinstance(layer_types, list | tuple):
        raise _unsupported("layer_types", layer_types, "a list")
    if any(layer_type != "full_attention" for layer_type in layer_types):
        raise _unsupported("layer_types", layer_types, "full_attention in every layer")
    if _slides(hf_config):
        raise _unsupported("sliding_window", hf_config["sliding_window"], "full attention")


def _slides(hf_config: Mapping[str, Any]) -> bool:
    """Whether a window is in use: the Qwen configs carry one together with a switch."""
    if hf_config.get("sliding_window") is None or hf_config.get("layer_types"):
        return False
    layers = _count(hf_config, "num_hidden_layers")
    first_sliding_layer = hf_config.get("max_window_layers", 0)
    return bool(hf_config.get("use_sliding_window", True)) and first_sliding_layer < layers


def _unsupported(key: str, value: object, needed: str) -> ValueError:
    return ValueError(
        f"config.json: {key} must be {needed}, got {value!r}, which would change the results "
        "unnoticed. Use a model without it."
    )


def _head_size(hf_config: Mapping[str, Any], traits: _Traits, hidden: int, heads: int) -> int:
    if hf_config.get("head_dim") is not None:
        size = _count(hf_config, "head_dim")
    elif traits.head_size is not None:
        size = traits.head_size
    elif hidden % heads:
        raise ValueError(
            f"config.json: hidden_size must be a multiple of num_attention_heads when there is no "
            f"head_dim, got {hidden} and {heads}. Add head_dim."
        )
    else:
        size = hidden // heads
    if size % 2:
        raise _unsupported("head_dim", size, "even, for the rotation of pairs")
    return size


def _read_mixture(hf_config: Mapping[str, Any]) -> Mixture:
    # transformers 4 wrote the first key, transformers 5 writes the second.
    spellings = {key: hf_config.get(key) for key in ("num_experts", "num_local_experts")}
    mixture = Mixture(
        num_experts=_count({"num_experts": _one_value(spellings, None)}, "num_experts"),
        experts_per_token=_count(hf_config, "num_experts_per_tok"),
        expert_ffn_size=_count(hf_config, "moe_intermediate_size"),
        normalise_topk=bool(hf_config.get("norm_topk_prob", False)),
    )
    if mixture.experts_per_token > mixture.num_experts:
        raise ValueError(
            f"config.json: num_experts_per_tok must be at most num_experts "
            f"({mixture.num_experts}), got {mixture.experts_per_token}. Correct one of them."
        )
    return mixture


def _read_rope(hf_config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    rope = _one_value(
        {key: hf_config.get(key) or None for key in ("rope_parameters", "rope_scaling")}, {}
    )
    if not isinstance(rope, Mapping):
        raise ValueError(f"config.json: rope_parameters must be an object, got {rope!r}.")
    rope_type = _one_value({key: rope.get(key) for key in ("rope_type", "type")}, "default")
    if str(rope_type) not in _ROPE_KEYS:
        raise ValueError(
            f"config.json: rope_type must be one of {', '.join(_ROPE_KEYS)}, got {rope_type!r}. "
            "Use a model with one of these."
        )
    thetas = {
        "rope_theta": hf_config.get("rope_theta"),
        "rope_parameters.rope_theta": rope.get("rope_theta"),
    }
    theta = _number({"rope_theta": _one_value(thetas, _DEFAULT_THETA)}, "rope_theta")
    if rope.get("partial_rotary_factor") not in (None, 1.0):
        raise _unsupported("partial_rotary_factor", rope["partial_rotary_factor"], "1.0")
    known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"} | _ROPE_KEYS[rope_type]
    for key in rope.keys() - known:
        raise _unsupported(key, rope[key], f"absent with rope_type {rope_type}")
    return theta, _read_scaling(rope) if rope_type == "llama3" else None


def _read_scaling(rope: Mapping[str, Any]) -> RopeScaling:
    scaling = RopeScaling(
        factor=_number(rope, "factor"),
        low_freq_factor=_number(rope, "low_freq_factor"),
        high_freq_factor=_number(rope, "high_freq_factor"),
        original_max_positions=_count(rope, "original_max_position_embeddings"),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ValueError(
            f"config.json: high_freq_factor must be above low_freq_factor, got "
            f"{scaling.high_freq_factor} and {scaling.low_freq_factor}. Correct the rope section."
        )
    return scaling


def _one_value(spellings: Mapping[str, Any], default: Any) -> Any:
    """The value that all given spellings agree on."""
    given = {key: value for key, value in spellings.items() if value is not None}
    values = list(given.values())
    if any(value != values[0] for value in values):
        raise ValueError(
            f"config.json: {' and '.join(given)} must agree, got {' and '.join(map(str, values))}. "
            "Remove one of them."
        )
    return values[0] if values else default


def _switch(section: Mapping[str, Any], key: str) -> bool:
    value = section.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ValueError(f"config.json: {key} must be true or false, got {value!r}. Correct it.")


def _count(section: Mapping[str, Any], key: str) -> int:
    value = section.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ValueError(
        f"config.json: {key} must be a whole number above 0, got {value!r}. "
        "Use a complete Hugging Face folder."
    )


def _number(section: Mapping[str, Any], key: str) -> float:
    value = section.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise ValueError(
        f"config.json: {key} must be a number above 0, got {value!r}. "
        "Use a complete Hugging Face folder."
    )
