"""Whether a model can be cut the way the layout says; needs no Megatron."""

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config


def check_divisible(architecture: Architecture, config: Config) -> None:
    """Refuse a layout that cannot hold the model, naming the knob.

    Raises:
        ValueError: what does not divide, and by which part of the layout.
    """
    tensor, pipeline = config.parallel.tensor, config.parallel.pipeline
    needs = {
        "attention heads": (architecture.num_heads, tensor, "parallel.tensor"),
        "key/value heads": (architecture.num_kv_heads, tensor, "parallel.tensor"),
        "inner size": (architecture.ffn_size, tensor, "parallel.tensor"),
        "layers": (architecture.num_layers, pipeline, "parallel.pipeline"),
        "layers of a pipeline rank": (
            architecture.num_layers // pipeline,
            config.parallel.virtual_pipeline,
            "parallel.virtual_pipeline",
        ),
    }
    for what, (count, parts, knob) in needs.items():
        if count % parts:
            raise ValueError(
                f"{knob}: need a divisor of the model's {count} {what}, got {parts}. "
                f"Choose another {knob} or another model."
            )
