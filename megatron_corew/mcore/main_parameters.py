"""The optimizer's float32 main parameters: where they are, and how ranks make them whole.

| optimizer | main parameter |
|---|---|
| float32 model, plain | the model parameter itself (aliased) |
| bfloat16 model, plain | a float32 tensor of the parameter's shape |
| float32 model, distributed | this data-parallel rank's flat view of the parameter (aliased) |
| bfloat16 model, distributed | this data-parallel rank's flat float32 part |

Whatever lives beside the mains (Adam moments, the teacher) has their shape, so it is gathered
and cut with the functions of this module too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_corew.mcore import platform

platform.redirect_torch()

from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from megatron.core.optimizer.optimizer import (  # noqa: E402
    ChainedOptimizer,
    Float16OptimizerWithFloat16Params,
    FP32Optimizer,
)

Parameters = dict[torch.nn.Parameter, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class MainParameter:
    """One parameter's float32 main part on this rank."""

    owner: Any
    """The Megatron optimizer that steps it."""
    parameter: torch.nn.Parameter
    """The model's parameter."""
    main: Tensor
    """float32: of the parameter's shape, or flat with the distributed optimizer."""
    aliased: bool
    """``main`` is the model parameter's own memory."""
    span: slice | None
    """The flat part of the parameter that ``main`` covers; None: all of it."""

    def part_of(self, whole: Tensor) -> Tensor:
        """This rank's part of a tensor of the parameter's shape, shaped as ``main``."""
        part = whole if self.span is None else whole.flatten()[self.span]
        return part.view_as(self.main)


def leaf_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers inside Megatron's chains, without empty ones.

    Raises:
        ValueError: an optimizer whose main parameters are not plain float32 tensors.
    """
    if isinstance(optimizer, ChainedOptimizer):
        return [leaf for part in optimizer.chained_optimizers for leaf in leaf_optimizers(part)]
    if getattr(optimizer, "is_stub_optimizer", False):
        return []
    known = (DistributedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer)
    if type(optimizer) not in known:
        raise ValueError(
            f"teacher: need an optimizer with plain float32 main parameters, got "
            f"{type(optimizer).__name__}. Choose another optimizer."
        )
    return [optimizer]


def _pairs(optimizer: Any) -> Iterator[tuple[torch.nn.Parameter, Tensor, bool]]:
    if isinstance(optimizer, DistributedOptimizer):
        kinds = [
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups, False),
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups, True),
        ]
    elif isinstance(optimizer, Float16OptimizerWithFloat16Params):
        kinds = [
            (optimizer.float16_groups, optimizer.fp32_from_float16_groups, False),
            (optimizer.fp32_from_fp32_groups, optimizer.fp32_from_fp32_groups, True),
        ]
    else:
        own = [group["params"] for group in optimizer.optimizer.param_groups]
        kinds = [(own, own, True)]
    for model_groups, main_groups, aliased in kinds:
        for parameters, mains in zip(model_groups, main_groups, strict=True):
            for parameter, main in zip(parameters, mains, strict=True):
                yield parameter, main, aliased


def main_parameters(optimizer: Any) -> list[MainParameter]:
    """All main parameters on this rank, in the optimizer's order.

    Raises:
        ValueError: a main parameter is not float32, or the optimizer keeps none.
    """
    return [
        _main_parameter(leaf, parameter, main, aliased)
        for leaf in leaf_optimizers(optimizer)
        for parameter, main, aliased in _pairs(leaf)
    ]


def _main_parameter(
    owner: Any, parameter: torch.nn.Parameter, main: Tensor, aliased: bool
) -> MainParameter:
    if main.dtype != torch.float32:
        raise ValueError(
            f"optimizer: need float32 main parameters, got {main.dtype} for a parameter of shape "
            f"{list(parameter.shape)}. Precision-aware optimizers are not supported."
        )
    span = None
    if isinstance(owner, DistributedOptimizer):
        where = owner._get_model_param_range_map(parameter)["param"]
        span = slice(where.start, where.end)
    return MainParameter(owner, parameter, main, aliased, span)


def check_coverage(model: torch.nn.Module, mains: Iterable[MainParameter]) -> None:
    """Refuse a trained parameter that no main parameter stands for.

    Raises:
        ValueError: names the first such parameter.
    """
    mains = list(mains)
    covered = {id(main.parameter) for main in mains}
    for leaf in {id(main.owner): main.owner for main in mains}.values():
        if isinstance(leaf, DistributedOptimizer):
            # A parameter may lie wholly on other data-parallel ranks.
            covered |= {id(parameter) for buffer in leaf.buffers for parameter in buffer.params}
    missing = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in covered
    ]
    if missing:
        raise ValueError(
            f"teacher: {len(missing)} trained parameters have no main parameter in the optimizer, "
            f"first {missing[0]}. They would stay at the base model for ever."
        )


def check_mains_match(mains: Iterable[MainParameter]) -> None:
    """Refuse model weights that were changed without telling the optimizer.

    They would be lost the next time the optimizer writes its main parameters into the model.

    Raises:
        RuntimeError: how many parameters differ.
    """
    differ = [
        main
        for main in mains
        if not torch.equal(
            main.part_of(main.parameter.detach()),
            main.main.detach().to(main.parameter.device, main.parameter.dtype),
        )
    ]
    if differ:
        raise RuntimeError(
            f"optimizer: need main parameters equal to the model's, got {len(differ)} that differ, "
            f"first of shape {list(differ[0].parameter.shape)}. Call reload_model_params() after "
            "changing weights."
        )


@torch.no_grad()
def whole_parameters(
    optimizer: Any, local: Callable[[MainParameter], Tensor], dtype: torch.dtype
) -> Parameters:
    """Gather something that is cut like the main parameters over the data-parallel ranks.

    Collective over the data-parallel group.

    Args:
        optimizer: whose main parameters.
        local: this rank's part, shaped as ``main``.
        dtype: of the parts.

    Returns:
        Model parameter -> tensor of its (tensor- and pipeline-parallel) shape, the same
        parameters in the same order on every data-parallel rank.
    """
    whole: Parameters = {}
    for leaf in leaf_optimizers(optimizer):
        mains = {id(main.parameter): main for main in main_parameters(leaf)}
        if isinstance(leaf, DistributedOptimizer):
            parts = {key: local(main) for key, main in mains.items()}
            whole |= _gather_buckets(leaf, parts, dtype)
        else:
            whole |= {main.parameter: local(main).detach() for main in mains.values()}
    return whole


def _gather_buckets(
    leaf: DistributedOptimizer, parts: Mapping[int, Tensor], dtype: torch.dtype
) -> Parameters:
    whole: Parameters = {}
    group = leaf.data_parallel_group
    for buffer, ranges in zip(leaf.buffers, leaf.gbuf_ranges, strict=True):
        (per_bucket,) = ranges.values()
        for bucket, found in zip(buffer.buckets, per_bucket, strict=True):
            full = torch.zeros(bucket.grad_data.numel(), dtype=dtype, device=platform.device())
            mine = full.new_zeros(len(full) // group.size())
            for parameter, where in found["param_map"].items():
                span = where["gbuf_local"]
                mine[span.start : span.end] = parts[id(parameter)]
            dist.all_gather_into_tensor(full, mine, group=group)
            # Whole tensors wait for the disk in host memory: on the device they would not fit.
            full = full.cpu()
            for parameter in bucket.params_list:
                start, end, _ = buffer.param_index_map[parameter]
                part = full[start - bucket.offset : end - bucket.offset]
                whole[parameter] = part.view(parameter.shape)
    return whole
