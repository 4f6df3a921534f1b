"""Whether a model can be cut the way the layout says; needs no Megatron."""

from checkpoint_tools.weight_map.architecture import Architecture, Mixture
from megatron_corew.config import Config, ParallelConfig


def check_divisible(architecture: Architecture, config: Config) -> None:
    """Refuse a layout that cannot hold the model, naming the knob.

    Raises:
        ValueError: what does not divide, and by which part of the layout; or what the layout and
            a model with (or without) experts do not have in common.
    """
    parallel, mixture = config.parallel, architecture.mixture
    needs = {
        "attention heads": (architecture.num_heads, parallel.tensor, "parallel.tensor"),
        "key/value heads": (architecture.num_kv_heads, parallel.tensor, "parallel.tensor"),
        "layers": (architecture.num_layers, parallel.pipeline, "parallel.pipeline"),
        "layers of a pipeline rank": (
            architecture.num_layers // parallel.pipeline,
            parallel.virtual_pipeline,
            "parallel.virtual_pipeline",
        ),
    }
    if mixture is None:
        needs["inner size"] = (architecture.ffn_size, parallel.tensor, "parallel.tensor")
    else:
        needs["experts"] = (mixture.num_experts, parallel.expert, "parallel.expert")
        size = (mixture.expert_ffn_size, parallel.expert_tensor, "parallel.tensor")
        needs["expert inner size"] = size
    for what, (count, parts, knob) in needs.items():
        if count % parts:
            raise ValueError(
                f"{knob}: need a divisor of the model's {count} {what}, got {parts}. "
                f"Choose another {knob} or another model."
            )
    _check_mixture(mixture, parallel)
    _check_fp8(architecture, config)


def _check_fp8(architecture: Architecture, config: Config) -> None:
    """Both sides of every linear, as a rank holds it, come in the recipe's blocks."""
    recipe, parallel, mixture = config.precision.fp8, config.parallel, architecture.mixture
    if not config.precision.transformer_engine:
        return
    block = config.precision.token_multiple
    tensor, inner = parallel.tensor, architecture.ffn_size
    if mixture is not None:
        tensor, inner = parallel.expert_tensor, mixture.expert_ffn_size
    heads = architecture.num_heads + 2 * architecture.num_kv_heads
    widths = {
        "hidden size": architecture.hidden_size,
        "queries, keys and values": heads * architecture.head_size // parallel.tensor,
        "attention output": architecture.num_heads * architecture.head_size // parallel.tensor,
        "inner size": inner // tensor,
    }
    for what, width in widths.items():
        if width % block:
            raise ValueError(
                f"precision.fp8: need a multiple of {block} on every rank for {recipe}, got "
                f"{width} ({what}, parallel.tensor={parallel.tensor}). Lower parallel.tensor, or "
                "choose precision.fp8=tensorwise, emulate or off."
            )


def _check_mixture(mixture: Mixture | None, parallel: ParallelConfig) -> None:
    if mixture is None:
        if parallel.expert > 1:
            raise ValueError(
                f"parallel.expert: need 1 for a model without experts, got {parallel.expert}. "
                "Set parallel.expert=1."
            )
        return
    if parallel.tensor > 1 and not parallel.sequence:
        # Else every tensor-parallel rank would send the same tokens to the experts.
        raise ValueError(
            f"parallel.sequence: need true for a model with experts and parallel.tensor="
            f"{parallel.tensor}, got false. Set parallel.sequence=true."
        )
    if mixture.experts_per_token == 1 and mixture.normalise_topk:
        raise ValueError(
            "model.path: need a router that weighs its experts, got one expert per token with "
            "probabilities divided by their sum (always 1): the router cannot be trained."
        )
