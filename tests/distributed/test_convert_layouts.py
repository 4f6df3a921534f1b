"""Converted checkpoints in real Megatron-Core, and its own ones converted, under each layout."""

import json
from pathlib import Path

import pytest

from checkpoint_tools import hf_to_megatron, megatron_to_hf
from checkpoint_tools.megatron_writer import Layout
from tests.distributed.launch import run_worker
from tests.models import FAMILIES, MIXTURES, save

# How the converter cuts, and the layout that loads: any may load what was cut for any other.
CASES = {
    "cut_for_one_loaded_by_tp2": (Layout(), {"tensor": 2, "sequence": True}, FAMILIES + MIXTURES),
    "cut_for_tp2_pp2_loaded_by_one": (Layout(tensor=2, pipeline=2), {}, FAMILIES + MIXTURES),
    "cut_for_pp4_loaded_by_tp2_pp2": (
        Layout(pipeline=4),
        {"tensor": 2, "pipeline": 2, "sequence": True},
        FAMILIES + MIXTURES,
    ),
    "cut_for_tp2_loaded_by_dp2": (Layout(tensor=2), {"data": 2}, FAMILIES),
    "cut_for_one_loaded_by_interleaved_pp2": (
        Layout(),
        {"pipeline": 2, "virtual_pipeline": 2, "tokens_per_micro_batch": 25},
        FAMILIES[:2],
    ),
    "cut_for_ep2_loaded_by_ep2": (Layout(expert=2), {"data": 2, "expert": 2}, MIXTURES),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES + MIXTURES:
        save(family, root / family)
    return root


@pytest.mark.parametrize("case", CASES)
def test_converted_weights_are_loaded_to_the_bit_and_converted_back(case, folders, tmp_path):
    layout, knobs, families = CASES[case]
    for family in families:
        hf_to_megatron.convert(folders / family, tmp_path / "in" / family, layout=layout)
    sizes = [knobs.get(name, 1) for name in ("tensor", "pipeline", "data")]
    measured = run_worker(
        "convert_worker",
        json.dumps(knobs),
        str(folders),
        str(tmp_path / "in"),
        json.dumps(families),
        processes=sizes[0] * sizes[1] * sizes[2],
        out=tmp_path / "out.json",
    )
    for family in families:
        assert measured[family]["equal"], family
        assert measured[family]["logits"] <= 5e-6, family
        source, back = folders / family, tmp_path / "back" / family
        megatron_to_hf.convert(tmp_path / "out" / family, back, like=source)
        for file in source.iterdir():
            assert (back / file.name).read_bytes() == file.read_bytes(), (family, file.name)
