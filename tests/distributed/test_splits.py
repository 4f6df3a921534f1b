"""The property that carries the design: no layout, split or order of a batch changes a result.

One process that takes row by row, without any padding, gives the reference; its own agreement
with Hugging Face and autograd is in test_policy. What is compared, after two steps: scores,
losses, gradient norms, every tensor of Adam's mean gradient, every weight.
"""

import json
from pathlib import Path

import pytest

from tests.distributed.cases import FEW_SPLITS, LAYOUTS, SPLITS, batches
from tests.distributed.launch import run_worker
from tests.models import save

KINDS = {
    "scores",
    "weights",
    "gradients",
    "policy/loss",
    "policy/grad_norm",
    "policy/kl",
    "policy/entropy",
    "gap/mean",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, float]]]:
    """Layout -> batch and split -> kind of value -> relative distance."""
    root: Path = tmp_path_factory.mktemp("splits")
    model, reference = save("qwen3_tied", root / "model"), root / "reference.safetensors"
    distances = {}
    for processes in LAYOUTS:
        out = root / f"{processes}.json"
        arguments = (str(model), str(reference))
        distances |= run_worker("split_worker", *arguments, processes=processes, out=out)
    return distances


def expected_splits(layout: str, batch: str) -> set[str]:
    few = layout in LAYOUTS[4] or batch != "mixed"
    splits = {*FEW_SPLITS} if few else {*SPLITS}
    # The interleaved schedule needs equally long micro-batches.
    return {s for s in splits if "packed" in s} if layout == "pp2_interleaved" else splits


@pytest.mark.parametrize("batch", batches())
@pytest.mark.parametrize("layout", [name for some in LAYOUTS.values() for name in some])
def test_no_layout_split_or_order_changes_a_result(found, layout, batch):
    cases = {
        case.split()[1]: distances
        for case, distances in found[layout].items()
        if case.split()[0] == batch
    }
    assert expected_splits(layout, batch) <= cases.keys()
    for split, distances in cases.items():
        assert distances.keys() == KINDS | {"idles"}
        for kind in KINDS:
            assert distances[kind] <= 1e-5, f"{split}: {kind}\n{json.dumps(cases, indent=1)}"


@pytest.mark.parametrize("layout", ["dp2", "dp2_distributed", "dp2_offloaded"])
def test_with_fewer_rows_than_ranks_somebody_has_an_empty_micro_batch(found, layout):
    for split in FEW_SPLITS:
        assert found[layout][f"empty_micro_batch {split}"]["idles"]
        assert not found["alone"][f"empty_micro_batch {split}"]["idles"]


def test_scores_of_packed_sequences_are_those_of_single_rows(found):
    packed = [case for case in found["alone"] if "packed" in case]
    assert packed
    for case in packed:
        # Relative to self-certainty, the largest score: about 1e-6 in nats.
        assert found["alone"][case]["scores"] <= 3e-7, case
