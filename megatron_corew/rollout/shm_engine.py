"""Weight transfer loaded inside a vLLM server: reads safetensors files from shared memory.

``--worker-extension-cls megatron_corew.rollout.shm_engine.WorkerExtension`` imports this file in
every worker, which registers the engine ``corew_shm`` for ``--weight-transfer-config``. With
tensor parallelism every worker maps the same file and takes its own shard. Written for
vLLM 0.32; the interface has changed before, so the tests in tests/vllm hold it in place.
"""

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

BACKEND = "corew_shm"


@dataclass
class ShmInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing to agree on: the file says it all."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """One bucket of weights."""

    path: str
    """Safetensors file with whole tensors under Hugging Face names."""


class ShmEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):  # type: ignore[misc]
    """Loads whole weight sets bucket by bucket through vLLM's layerwise reload."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo
    supports_draft_weight_update = False
    _is_open = False

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Put the model into its loading form; an update left half open is closed first."""
        if self._is_open:
            finalize_layerwise_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)
        self._is_open = True

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        """Load one file; vLLM keeps views of it until a layer is complete, then copies."""
        with safe_open(update_info.path, framework="pt") as file:
            names = file.keys()
            self.model.load_weights((name, file.get_tensor(name)) for name in names)

    def finish_weight_update(self) -> None:
        """Bring the model back into its running form.

        Raises:
            RuntimeError: some layer did not get all of its weights.
        """
        missing = incomplete_layers(self.model)
        finalize_layerwise_reload(self.model, self.model_config)
        self._is_open = False
        repack_tied_heads(self.model)
        repack_experts(self.model)
        if missing:
            raise RuntimeError(
                f"weight update: need all weights of every layer, got none or a part for "
                f"{', '.join(missing[:8])} ({len(missing)} layers). Push the whole model."
            )

    def shutdown(self) -> None:
        """Nothing to release."""


def is_tied(head: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Whether an output head has the weight of another module."""
    return any(
        module is not head and getattr(module, "weight", None) is head.weight
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding)
    )


def incomplete_layers(model: torch.nn.Module) -> list[str]:
    """Names of the layers that wait for weights, while an update is open."""
    missing = []
    tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if not info.can_load() or not list(layer.parameters(recurse=False)):
            continue
        if is_deferred_attention_layer(layer) or (tied and isinstance(layer, ParallelLMHead)):
            continue
        # The rows that pad the vocabulary are never loaded, so a part is all there is to get.
        is_padded = isinstance(layer, VocabParallelEmbedding)
        if info.load_numel < (1 if is_padded else info.load_numel_total or 0):
            missing.append(name)
    return missing


def repack_tied_heads(model: torch.nn.Module) -> None:
    """Pack tied output heads again.

    On CPU a head computes with a packed copy of its weight, and a reload packs only the layers
    that it loads: a tied head would silently go on with the old embedding.
    """
    for head in model.modules():
        if isinstance(head, ParallelLMHead) and is_tied(head, model):
            head.quant_method.process_weights_after_loading(head)


def repack_experts(model: torch.nn.Module) -> None:
    """Pack the experts of a mixture again.

    On CPU experts compute with packed weights too. vLLM 0.32 packs them when it first loads them;
    a reload would leave the new weights as they came, to be read as if they were packed.
    """
    for layer in model.modules():
        if isinstance(layer, RoutedExperts):
            experts = layer.quant_method.moe_kernel.fused_experts
            if isinstance(experts, CPUUnquantizedExperts):
                experts.process_weights_after_loading(layer)


class WorkerExtension:
    """Methods that every worker of the server gets, called through ``/collective_rpc``."""

    vllm_config: Any
    _weight_update_active: bool

    def corew_abandon_weight_update(self) -> None:
        """Forget a weight update that was begun and never finished; harmless without one."""
        self._weight_update_active = False

    def corew_settings(self) -> dict[str, object]:
        """The settings on which a trainer relies, as they are in force in this worker."""
        config = self.vllm_config
        transfer = config.weight_transfer_config
        return {
            "scheduler": str(config.scheduler_config.scheduler_cls),
            "logprobs": str(config.model_config.logprobs_mode),
            "generation_config": str(config.model_config.generation_config),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "max_model_len": config.model_config.max_model_len,
            "transfer": None if transfer is None else transfer.backend,
        }


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, ShmEngine)
