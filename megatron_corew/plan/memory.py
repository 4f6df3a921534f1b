"""Adds up the memory of a trainer's GPU, cause by cause."""

from dataclasses import dataclass, fields

from checkpoint_tools.weight_map.architecture import Architecture
from megatron_corew.config import Config, ParallelConfig
from megatron_corew.plan.activations import layer_bytes, layers_in_flight
from megatron_corew.plan.assumptions import FRAGMENT_SHARE, PROCESS_BYTES
from megatron_corew.plan.parameters import Parameters, stage_parameters

_ELEMENT = {"float32": 4, "bfloat16": 2}
_VOCABULARY_BLOCK = 1 << 14
"""Rows of the vocabulary whose logits exist at the same time; as in ``mcore.logprobs``."""
_SCORE_COPIES = 6
"""float32 tensors of a block of logits that the backward pass of the scores holds at its peak:
logits, log-probs, probabilities, gradient and two temporaries."""
_TEACHER_SCRATCH = 3 * (1 << 24)
"""float32 elements of the teacher's working memory; as in ``mcore.teacher``."""
_PIECE = 3 * (1 << 24)
"""float32 elements that are brought from the host at a time: two moments and the main parameters,
or the teacher, its residual and the main parameters; as in ``mcore.offload``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes on one GPU."""

    weights: float
    """The model's parameters in their own type."""
    gradients: float
    """The float32 buffer that gradients are summed and reduced in."""
    optimizer: float
    """Adam's two moments, and float32 main parameters under bfloat16."""
    teacher: float
    """float32 teacher, its rounding residual and its working memory."""
    fp8_copies: float
    """FP8 weights, and their transposes, beside the parameters."""
    activations: float
    """What the forward pass keeps for the backward pass, and one layer computed again."""
    scores: float
    """Hidden states, blocks of logits, and the gradient of the output layer."""
    push: float
    """Whole tensors and the bucket of a weight push; at another time than the two before."""
    pieces: float
    """Of optimizer state or teacher on their way from the host and back; at another time too."""
    fragments: float
    """Lost between tensors that come and go."""
    process: float
    """CUDA context and libraries."""
    server: float
    """The vLLM server on the same GPU; 0 until one is placed there."""

    @property
    def static(self) -> float:
        """What is there at any time."""
        return self.weights + self.gradients + self.optimizer + self.teacher

    @property
    def total(self) -> float:
        """The peak."""
        passing = max(self.activations + self.scores, self.push, self.pieces)
        rest = self.fp8_copies + self.fragments + self.process + self.server
        return self.static + passing + rest

    def causes(self) -> dict[str, float]:
        """Bytes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def element_bytes(config: Config) -> int:
    """Bytes of a parameter."""
    return _ELEMENT[config.model.dtype]


def fp8_share(config: Config, architecture: Architecture) -> float:
    """Share of the layers whose linears compute in FP8."""
    precision = config.precision
    if not precision.transformer_engine:
        return 0.0
    kept = precision.bf16_first_layers + precision.bf16_last_layers
    return max(0.0, 1 - kept / architecture.num_layers)


def micro_batch_tokens(config: Config) -> tuple[int, int]:
    """Tokens of the largest micro-batch on a rank, and the width of its rows."""
    parallel = config.parallel
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    if parallel.tokens_per_micro_batch:
        width = -(-parallel.tokens_per_micro_batch // parallel.context)
        return width, width
    width = -(-longest // parallel.context)
    return parallel.micro_batch_rollouts * width, width


def micro_batches(config: Config, mean_tokens: float) -> int:
    """Micro-batches of one update on one data-parallel rank.

    Args:
        config: the run.
        mean_tokens: of a sequence.
    """
    parallel, sizes = config.parallel, config.rollout
    rows = sizes.prompts_per_step * sizes.samples_per_prompt * len(config.preset.views)
    rows = -(-rows // (config.loss.updates_per_step * parallel.data))
    if not parallel.tokens_per_micro_batch:
        return -(-rows // parallel.micro_batch_rollouts)
    count = max(1, round(rows * mean_tokens / parallel.tokens_per_micro_batch + 0.5))
    # The interleaved schedule takes whole rounds of the stages.
    rounds = parallel.pipeline if parallel.virtual_pipeline > 1 else 1
    return -(-count // rounds) * rounds


def optimizer_shard(parameters: Parameters, parallel: ParallelConfig) -> float:
    """Parameters whose optimizer state this rank holds."""
    if not parallel.distributed_optimizer:
        return float(parameters.total)
    replicas = parallel.data * parallel.context
    expert_ranks = parallel.expert * parallel.expert_tensor
    expert_replicas = max(1, parallel.tensor * replicas // expert_ranks)
    return parameters.dense / replicas + parameters.experts / expert_replicas


def static_bytes(
    config: Config, architecture: Architecture, stage: int
) -> tuple[float, float, float, float]:
    """Bytes of weights, gradients, optimizer and teacher of a rank, wherever they are kept."""
    parameters = stage_parameters(architecture, config.parallel, stage)
    shard, element = optimizer_shard(parameters, config.parallel), element_bytes(config)
    main = 4 if element < 4 else 0
    moves = config.preset.needs_teacher and config.preset.teacher_moves
    residual = _ELEMENT[config.teacher.residual] if moves else 0
    teacher = shard * (4 + residual) if config.keeps_teacher else 0.0
    return parameters.total * element, parameters.total * 4, shard * (8 + main), teacher


def offloaded_bytes(config: Config, architecture: Architecture, stage: int) -> tuple[float, float]:
    """Bytes of optimizer and teacher that a rank keeps in host memory."""
    _, _, optimizer, teacher = static_bytes(config, architecture, stage)
    return (
        optimizer if config.optimizer.offload else 0.0,
        teacher if config.teacher.offload else 0.0,
    )


def host_bytes(config: Config, architecture: Architecture) -> float:
    """Host memory for one GPU of the fullest stage."""
    stages = range(config.parallel.pipeline)
    return max(sum(offloaded_bytes(config, architecture, stage)) for stage in stages)


def stage_memory(config: Config, architecture: Architecture, stage: int) -> Memory:
    """The peak on a GPU of a pipeline stage.

    Args:
        config: the run.
        architecture: its model.
        stage: pipeline rank.
    """
    weights, gradients, optimizer, teacher = static_bytes(config, architecture, stage)
    away_optimizer, away_teacher = offloaded_bytes(config, architecture, stage)
    parameters = stage_parameters(architecture, config.parallel, stage)
    scratch = 4.0 * min(_TEACHER_SCRATCH, 3 * parameters.total)
    kept = _kept_activations(config, architecture, stage)
    last = stage == config.parallel.pipeline - 1
    scores = _score_bytes(config, architecture) if last else 0.0
    push = _push_bytes(config, architecture)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer - away_optimizer,
        teacher=teacher - away_teacher + scratch if config.keeps_teacher else 0.0,
        fp8_copies=2.0 * parameters.linear * fp8_share(config, architecture),
        activations=kept,
        scores=scores,
        push=push,
        pieces=4.0 * min(_PIECE, 3 * parameters.total) if away_optimizer + away_teacher else 0.0,
        fragments=FRAGMENT_SHARE * max(kept + scores, push),
        process=PROCESS_BYTES,
        server=0.0,
    )


def peak_memory(config: Config, architecture: Architecture) -> Memory:
    """The fullest GPU of the trainer, without a server; arguments as ``stage_memory``."""
    # The first stage has the most micro-batches in flight, the last one the scores.
    stages = {0, config.parallel.pipeline - 1}
    each = (stage_memory(config, architecture, stage) for stage in stages)
    return max(each, key=lambda memory: memory.total)


def _kept_activations(config: Config, architecture: Architecture, stage: int) -> float:
    parallel, element = config.parallel, element_bytes(config)
    tokens, width = micro_batch_tokens(config)
    layer = layer_bytes(architecture, parallel, tokens=tokens, width=width, element=element)
    in_flight = layers_in_flight(
        architecture.num_layers // parallel.pipeline,
        pipeline=parallel.pipeline,
        stage=stage,
        pieces=config.parallel.virtual_pipeline,
        micro_batches=micro_batches(config, config.data.max_prompt_tokens),
    )
    again = layer.made_again(parallel.recompute)
    final_norm = layer.inputs if stage == parallel.pipeline - 1 else 0.0
    return in_flight * layer.kept(parallel.recompute) + again + final_norm


def _score_bytes(config: Config, architecture: Architecture) -> float:
    """On the last stage: whole hidden states in and their gradient, logits, output gradient."""
    parallel, element, hidden = config.parallel, element_bytes(config), architecture.hidden_size
    tokens, _ = micro_batch_tokens(config)
    rows = -(-architecture.vocab_size // parallel.tensor)
    # float32 out of the model and gathered; picked, in the parameters' type; float32 gradient.
    states = tokens * hidden * (4 + element + 4 + element)
    block = min(parallel.logit_chunk_tokens, tokens) * min(_VOCABULARY_BLOCK, rows)
    return states + 4.0 * _SCORE_COPIES * block + rows * hidden * (4 + element)


def _push_bytes(config: Config, architecture: Architecture) -> float:
    """The largest whole tensor and its parts, and what waits in the bucket."""
    largest = max(architecture.vocab_size, 2 * architecture.ffn_size) * architecture.hidden_size
    return 2.0 * largest * element_bytes(config) + config.servers.bucket_mb * 1e6
