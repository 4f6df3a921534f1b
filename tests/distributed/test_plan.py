"""The planner's bytes against what real processes allocate."""

from pathlib import Path

import pytest
import torch

from checkpoint_tools.sources import open_source
from megatron_corew.mcore.logprobs import VOCABULARY_BLOCK
from megatron_corew.mcore.offload import PIECE
from megatron_corew.mcore.parallel import parallel_world
from megatron_corew.plan import memory
from megatron_corew.plan.activations import layer_bytes
from tests.distributed.launch import run_worker
from tests.distributed.parts import config_for, policy_for
from tests.distributed.plan_worker import CASES
from tests.models import VOCAB_SIZE, save

FAMILIES = sorted({family for cases in CASES.values() for family, _ in cases.values()})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plan")
    for family in FAMILIES:
        save(family, root / family)
    return root


@pytest.mark.parametrize("processes", CASES)
def test_static_bytes_are_those_that_real_processes_allocate(folders, processes):
    out = folders / f"{processes}.json"
    found = run_worker("plan_worker", str(folders), str(processes), processes=processes, out=out)
    assert found.keys() == CASES[processes].keys()
    for case, ranks in found.items():
        for rank, bytes_of in enumerate(ranks):
            for cause, measured in bytes_of["measured"].items():
                # A rank's share of a distributed optimizer differs: buckets are cut evenly, padded.
                planned = bytes_of["planned"][cause]
                assert planned == pytest.approx(measured, rel=0.05), (case, rank, cause)


def saved_bytes(policy, *, rows: int, width: int) -> int:
    """Memory that a forward pass keeps for its backward pass, parameters not counted."""
    fixed = [*policy.module.parameters(), *policy.module.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in fixed}
    # The tensors are held, so that no memory is used twice under the same address.
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in known:
            kept.setdefault(address, tensor)
        return tensor

    ids_BS = torch.randint(0, VOCAB_SIZE, (rows, width))
    positions_BS = torch.arange(width)[None].expand(rows, width).contiguous()
    policy.module.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden_SBD = policy.ddp[0](ids_BS, positions_BS, None)
    assert hidden_SBD.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("family", ["qwen3_untied", "qwen2_untied", "qwen3_moe_untied"])
def test_activation_bytes_are_those_that_a_real_forward_pass_keeps(
    folders, family, recompute, dtype
):
    config = config_for(str(folders / family), recompute=recompute, dtype=dtype)
    rows, width, element = 4, 192, 4 if dtype == "float32" else 2
    with parallel_world(config.parallel, seed=0) as layout:
        policy = policy_for(config, layout)
        architecture = open_source(folders / family).architecture
        measured = saved_bytes(policy, rows=rows, width=width)
    layer = layer_bytes(
        architecture,
        config.parallel,
        tokens=rows * width,
        width=width,
        element=element,
        fused_norms=False,
    )
    # The final norm is a float32 copy of its input and one of its result.
    final_norm = rows * width * architecture.hidden_size * 8
    planned = architecture.num_layers * layer.kept(recompute) + final_norm
    assert planned == pytest.approx(measured, rel=0.15)


def test_the_planner_knows_the_block_of_logits():
    assert memory._VOCABULARY_BLOCK == VOCABULARY_BLOCK


def test_the_planner_knows_the_pieces_that_come_from_the_host():
    assert memory._PIECE == 3 * PIECE
