"""Every layout computes the same: logits against Hugging Face, ten steps against one process."""

from pathlib import Path

import pytest

from tests.distributed.launch import run_worker
from tests.models import FAMILIES, save

# tensor, pipeline, data, sequence parallel, distributed optimizer
LAYOUTS = {
    "tp2": (2, 1, 1, 0, 0),
    "pp2": (1, 2, 1, 0, 0),
    "tp2_pp2_sp": (2, 2, 1, 1, 0),
    "dp2_distributed": (1, 1, 2, 0, 1),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        save(family, root / family)
    return root


def measure(folders: Path, layout: tuple[int, ...]) -> dict:
    out = folders / ("_".join(map(str, layout)) + ".json")
    processes = layout[0] * layout[1] * layout[2]
    arguments = [*map(str, layout), str(folders)]
    return run_worker("layout_worker", *arguments, processes=processes, out=out)


@pytest.fixture(scope="module")
def one_process(folders: Path) -> dict:
    return measure(folders, (1, 1, 1, 0, 0))


@pytest.fixture(scope="module", params=LAYOUTS, ids=list(LAYOUTS))
def measured(request: pytest.FixtureRequest, folders: Path) -> dict:
    return measure(folders, LAYOUTS[request.param])


def test_one_process_gives_hugging_face_logits(one_process):
    for family in FAMILIES:
        assert one_process[family]["logits"] <= 5e-6, family
        assert one_process[family]["scores"] <= 5e-6, family


def test_logits_and_scores_are_hugging_face_ones(measured):
    for family in FAMILIES:
        assert measured[family]["logits"] <= 5e-6, family
        assert measured[family]["scores"] <= 5e-6, family


def test_the_exported_weights_are_the_loaded_ones_to_the_bit(measured, one_process):
    for family in FAMILIES:
        assert measured[family]["exported"], family
        assert one_process[family]["exported"], family


@pytest.mark.parametrize("what", ["losses", "kl"])
def test_ten_training_steps_agree_with_one_process(measured, one_process, what):
    for family in FAMILIES:
        expected = one_process[family][what]
        assert measured[family][what] == pytest.approx(expected, abs=1e-5, rel=1e-5), family


def test_the_weights_after_ten_steps_agree_with_one_process(measured, one_process):
    for family in FAMILIES:
        expected = one_process[family]["weight_sums"]
        # Adam turns gradients that are zero but for rounding (key biases) into whole steps.
        assert measured[family]["weight_sums"] == pytest.approx(expected, rel=1e-4), family


def test_gradient_norms_agree_with_one_process(measured, one_process):
    for family in FAMILIES:
        expected = one_process[family]["grad_norms"]
        assert measured[family]["grad_norms"] == pytest.approx(expected, rel=1e-5), family
