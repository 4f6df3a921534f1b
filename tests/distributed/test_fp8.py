"""Emulated FP8 in Megatron's parallel linears, in real processes."""

from pathlib import Path

import pytest

from tests.distributed.launch import run_worker
from tests.models import save

# tensor parallel, sequence parallel
ALONE, TENSOR, SEQUENCE = (1, 0), (2, 0), (2, 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    root: Path = tmp_path_factory.mktemp("fp8")
    save("qwen3_tied", root / "model")
    return {
        (tensor, sequence): run_worker(
            "fp8_worker",
            *(str(tensor), str(sequence), "float32"),
            *(str(root / "model"), str(root / "saved")),
            processes=tensor,
            out=root / f"{tensor}_{sequence}.json",
        )
        for tensor, sequence in (ALONE, TENSOR, SEQUENCE)
    }


def column(steps: list[dict], name: str) -> list[float]:
    return [step[name] for step in steps]


def test_layers_that_stay_in_bf16_are_not_emulated(runs):
    assert runs[ALONE]["layers"] == [True, True, True, False]


@pytest.mark.parametrize("layout", [ALONE, TENSOR, SEQUENCE], ids=["tp1", "tp2", "tp2_sp"])
def test_the_loss_curve_follows_the_exact_one(runs, layout):
    exact, rounded = (column(runs[layout][kind], "policy/loss") for kind in ("off", "emulate"))
    assert exact[-1] - exact[0] > 0.01
    assert rounded == pytest.approx(exact, abs=5e-4)
    assert rounded != exact
    # Adam's steps differ by the signs of small gradients; the first gradient is a direct look.
    norms = [runs[layout][kind][0]["policy/grad_norm"] for kind in ("off", "emulate")]
    assert norms[1] == pytest.approx(norms[0], rel=0.04)


def test_sequence_parallelism_rounds_the_same_blocks(runs):
    with_sp, without = (runs[layout]["emulate"][0] for layout in (SEQUENCE, TENSOR))
    for name in ("policy/loss", "policy/grad_norm", "gap/mean"):
        assert with_sp[name] == pytest.approx(without[name], rel=1e-5), name


@pytest.mark.parametrize("layout", [ALONE, TENSOR, SEQUENCE], ids=["tp1", "tp2", "tp2_sp"])
def test_the_gap_to_an_exact_sampler_becomes_visible(runs, layout):
    assert runs[layout]["off"][0]["gap/mean"] < 1e-6
    assert 0.005 < runs[layout]["emulate"][0]["gap/mean"] < 0.2


def test_checkpoints_pass_between_precisions_with_and_without_extra_states(runs):
    passed = runs[ALONE]["checkpoints"]
    assert passed["off_to_emulate"]
    assert passed["states"] > 0
    assert passed["changed"]
    assert passed["states_to_none"]
