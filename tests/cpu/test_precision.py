"""FP8 settings, what refuses them, histories, and the report of fast paths, without a GPU."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from megatron_corew.config import Config, PrecisionConfig
from megatron_corew.layout_check import check_divisible
from megatron_corew.mcore import ema, fast_paths, fp8_checks, fp8_state, modules, platform
from megatron_corew.mcore.fp8_emulation import (
    ColumnParallelLinear,
    RoundedColumnParallelLinear,
    RoundedRowParallelLinear,
    RowParallelLinear,
)
from megatron_corew.mcore.model import transformer_config
from tests.cpu.test_layout_check import DENSE, SPARSE


def architecture(**sizes):
    return dataclasses.replace(DENSE, **sizes)


def run_config(**sections):
    return Config.model_validate(
        {
            "method": "co_rewarding_i",
            "run": {"name": "test", "steps": 1},
            "model": {"path": "somewhere"} | sections.pop("model", {}),
            "data": {"train": "lab"},
        }
        | sections
    )


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Pretend to be another machine: its packages, GPU, CUDA and Transformer Engine."""

    def pretend(*packages, engine=None, gpu=None, cuda="12.9", version="2.9.0"):
        root = tmp_path / "transformer_engine"
        root.mkdir(exist_ok=True)
        for old in root.glob("*.so"):
            old.unlink()
        if engine == "complete":
            (root / "transformer_engine_torch.cpython-311.so").touch()
        found = set(packages) | ({"transformer_engine"} if engine else set())

        def find_spec(name):
            place = [str(tmp_path / name)]
            return SimpleNamespace(submodule_search_locations=place) if name in found else None

        monkeypatch.setattr(fast_paths, "find_spec", find_spec)
        monkeypatch.setattr(platform, "has_cuda", lambda: gpu is not None)
        monkeypatch.setattr(fp8_checks, "version", lambda name: version)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: gpu)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return pretend


def test_fp8_is_off_by_default_and_changes_nothing():
    config = transformer_config(architecture(), run_config())
    assert config.fp8 is None
    assert not config.fp8_param


@pytest.mark.parametrize(
    ("recipe", "format", "history"),
    [("blockwise", "e4m3", 1), ("tensorwise", "hybrid", 1), ("delayed", "hybrid", 1024)],
)
def test_a_recipe_becomes_megatron_s_settings(recipe, format, history):
    kept = {} if recipe == "delayed" else {"bf16_first_layers": 2, "bf16_last_layers": 1}
    config = transformer_config(
        architecture(),
        run_config(model={"dtype": "bfloat16"}, precision={"fp8": recipe} | kept),
    )
    assert (config.fp8, config.fp8_recipe, config.fp8_param) == (format, recipe, False)
    assert config.fp8_amax_history_len == history
    assert config.first_last_layers_bf16 == bool(kept)
    if kept:
        assert config.num_layers_at_start_in_bf16 == 2
        assert config.num_layers_at_end_in_bf16 == 1


def linears(layer):
    """The classes of a layer's four linears; of its experts' where it has some."""
    attention, feed_forward = layer.submodules.self_attention.submodules, layer.submodules.mlp
    inner = feed_forward.submodules
    inner = inner.experts.submodules if hasattr(inner, "experts") else inner
    return attention.linear_qkv, attention.linear_proj, inner.linear_fc1, inner.linear_fc2


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("shape", [DENSE, SPARSE], ids=["dense", "experts"])
def test_emulation_replaces_the_linears_of_all_layers_but_those_kept_out(
    shape, pieces, monkeypatch
):
    size = shape.num_layers // pieces
    monkeypatch.setattr(
        modules, "get_transformer_layer_offset", lambda config, vp_stage: size * vp_stage
    )
    monkeypatch.setattr(modules, "get_num_layers_to_build", lambda config, vp_stage: size)
    precision = {"fp8": "emulate", "bf16_first_layers": 1, "bf16_last_layers": 2}
    config = run_config(precision=precision)
    settings = transformer_config(shape, config)
    layers = [
        layer
        for chunk in range(pieces)
        for layer in modules.layer_spec(
            settings, qk_norm=True, precision=config.precision, chunk=chunk
        ).layer_specs
    ]
    column, row = RoundedColumnParallelLinear, RoundedRowParallelLinear
    plain = [ColumnParallelLinear, RowParallelLinear] * 2
    rounded = [column, row] * 2
    found = [list(linears(layer)) for layer in layers]
    assert found == [plain, rounded, rounded, rounded, plain, plain]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"precision": {"bf16_first_layers": 1}}, "precision.bf16_first_layers"),
        ({"precision": {"fp8": "delayed", "bf16_last_layers": 1}}, "precision.bf16_first_layers"),
        ({"precision": {"fp8": "blockwise"}, "model": {"dtype": "float32"}}, "precision.fp8"),
        ({"precision": {"fp8": "emulate"}, "parallel": {"context": 2}}, "parallel.context"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(sections, message):
    with pytest.raises(ValidationError, match=message):
        run_config(**sections)


@pytest.mark.parametrize(
    ("recipe", "tensor", "change", "message"),
    [
        ("blockwise", 1, {"hidden_size": 192}, "192 .hidden size"),
        ("blockwise", 2, {"ffn_size": 384}, "192 .inner size"),
        ("blockwise", 2, {"num_kv_heads": 2, "head_size": 32}, "queries, keys"),
        ("tensorwise", 1, {"hidden_size": 520}, "multiple of 16 .* 520"),
    ],
)
def test_widths_that_do_not_divide_by_the_recipe_s_blocks_are_refused(
    recipe, tensor, change, message
):
    config = run_config(
        model={"dtype": "bfloat16"}, precision={"fp8": recipe}, parallel={"tensor": tensor}
    )
    good = {"hidden_size": 512, "ffn_size": 1024, "num_heads": 8, "num_kv_heads": 4}
    good |= {"head_size": 64}
    check_divisible(architecture(**good), config)
    with pytest.raises(ValueError, match=f"precision.fp8: need a.*{message}"):
        check_divisible(architecture(**(good | change)), config)
    emulated = config.model_copy(update={"precision": PrecisionConfig(fp8="emulate")})
    check_divisible(architecture(**(good | change)), emulated)


@pytest.mark.parametrize(
    ("recipe", "world", "message"),
    [
        ("blockwise", {}, "need Transformer Engine for blockwise, got none. Install"),
        ("blockwise", {"engine": "half"}, "got the core only"),
        ("blockwise", {"engine": "complete"}, "need a GPU"),
        ("blockwise", {"engine": "complete", "gpu": (8, 9)}, "compute capability 9.0 .* 8.9"),
        ("blockwise", {"engine": "complete", "gpu": (9, 0), "cuda": "12.8"}, "CUDA 12.9 .* 12.8"),
        ("blockwise", {"engine": "complete", "gpu": (9, 0), "version": "2.2"}, "Engine 2.3"),
        ("tensorwise", {"engine": "complete", "gpu": (8, 0)}, "compute capability 8.9 .* 8.0"),
        ("delayed", {"engine": "complete", "gpu": (8, 0)}, "compute capability 8.9 .* 8.0"),
    ],
)
def test_a_machine_that_cannot_do_the_recipe_is_told_what_is_missing(
    machine, recipe, world, message
):
    machine(**world)
    with pytest.raises(ValueError, match=message):
        fp8_checks.check_recipe(PrecisionConfig(fp8=recipe))
    fp8_checks.check_recipe(PrecisionConfig(fp8="emulate"))
    machine(engine="complete", gpu=(9, 0))
    fp8_checks.check_recipe(PrecisionConfig(fp8=recipe))


class Delayed(torch.nn.Linear):
    """A layer that notes every pass, as delayed scaling does."""

    def __init__(self):
        super().__init__(2, 2)
        self.history = [0]

    def get_extra_state(self):
        return list(self.history)

    def set_extra_state(self, state):
        self.history = list(state)

    def forward(self, x):
        self.history.append(1)
        return super().forward(x)


def model():
    return torch.nn.Sequential(Delayed(), torch.nn.Linear(2, 2))


def test_passes_without_gradients_leave_no_trace_in_the_histories():
    layers = model()
    layers(torch.ones(1, 2))
    with fp8_state.kept_histories(layers, PrecisionConfig(fp8="delayed")):
        layers(torch.ones(1, 2))
        layers(torch.ones(1, 2))
    assert layers[0].history == [0, 1]


@pytest.mark.parametrize("recipe", ["off", "blockwise", "tensorwise"])
def test_recipes_without_histories_are_not_asked_for_them(recipe):
    layers = model()
    with fp8_state.kept_histories(layers, PrecisionConfig(fp8=recipe)):
        layers(torch.ones(1, 2))
    assert layers[0].history == [0, 1]


def test_only_histories_are_written_and_only_stored_ones_are_read():
    names = ("0.weight", "0._extra_state", "2._extra_state")
    state = {name: SimpleNamespace(unique_key=f"{name}/shard_0_1") for name in names}

    def kept(recipe, stored=None):
        return list(fp8_state.without_empty_states(state, PrecisionConfig(fp8=recipe), stored))

    assert kept("delayed") == list(names)
    assert kept("blockwise") == ["0.weight"]
    assert kept("delayed", ["0._extra_state/shard_0_1"]) == ["0.weight", "0._extra_state"]


def test_weights_load_without_extra_states_but_not_without_weights():
    layers = model()
    state = {name: value for name, value in layers.state_dict().items() if "_extra" not in name}
    fp8_state.load_weights(layers, state | {"1._extra_state": None})
    with pytest.raises(RuntimeError, match=r"first 1\.bias"):
        fp8_state.load_weights(layers, {n: v for n, v in state.items() if n != "1.bias"})
    with pytest.raises(RuntimeError, match=r"first 9\.weight"):
        fp8_state.load_weights(layers, state | {"9.weight": torch.ones(1)})


APEX = ("apex", "amp_C", "fused_weight_gradient_mlp_cuda")


@pytest.mark.parametrize(
    ("packages", "world", "engine", "weight_gradients", "adam"),
    [
        ((), {}, "off: absent, no GPU", "off", "off"),
        (APEX, {"engine": "complete"}, "off: complete, no GPU", "off", "off"),
        ((), {"gpu": (9, 0)}, "off: absent", "off", "off"),
        # The package of that name on PyPI has no extensions.
        (("apex",), {"gpu": (9, 0)}, "off: absent", "off", "off"),
        (APEX, {"gpu": (9, 0)}, "off: absent", "on", "on: apex"),
        ((), {"gpu": (9, 0), "engine": "complete"}, "on", "off", "on: Transformer Engine"),
        (APEX, {"gpu": (9, 0), "engine": "complete"}, "on", "on", "on: Transformer Engine"),
        (APEX, {"gpu": (9, 0), "engine": "half"}, "off: half", "on", "on: apex"),
    ],
)
def test_the_report_says_what_is_used_and_what_is_missing(
    machine, packages, world, engine, weight_gradients, adam
):
    machine(*packages, **world)
    report = fast_paths.report(teacher_elements=0)
    assert report["transformer_engine"] == engine
    assert report["fused_weight_gradients"].split(":")[0] == weight_gradients
    assert report["fused_adam"].startswith(adam)
    assert report["compiled_teacher_update"] == "off: no teacher"


def test_the_report_says_why_the_teacher_s_update_is_not_compiled(machine, monkeypatch):
    machine()
    assert fast_paths.report(1000)["compiled_teacher_update"] == "off: small model"
    monkeypatch.setattr(ema.shutil, "which", lambda name: None)
    many = ema._WORTH_COMPILING
    assert "no C++ compiler" in fast_paths.report(many)["compiled_teacher_update"]
    monkeypatch.setattr(ema.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert fast_paths.report(many)["compiled_teacher_update"] == "on"
