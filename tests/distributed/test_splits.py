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


@pytest.mark.parametrize("layout", [name for some in LAYOUTS.values() for name in some])
def test_no_layout_split_or_order_changes_a_result(found, layout):
    cases = found[layout]
    assert {case.split()[0] for case in cases} == batches().keys()
    expected = {*FEW_SPLITS} if layout in LAYOUTS[4] else SPLITS.keys()
    if layout == "pp2_interleaved":
        expected = {"packed_25", "packed_all"}
    assert {case.split()[1] for case in cases} == expected
    for case, distances in cases.items():
        assert distances.keys() == KINDS
        for kind, distance in distances.items():
            assert distance <= 1e-5, f"{case}: {kind}\n{json.dumps(cases, indent=1)}"


def test_scores_of_packed_sequences_are_those_of_single_rows(found):
    packed = [case for case in found["alone"] if "packed" in case]
    assert packed
    for case in packed:
        # Relative to self-certainty, the largest score: about 1e-6 in nats.
        assert found["alone"][case]["scores"] <= 3e-7, case
