"""Bad input through the real command: one line that names the knob, exit code 1, no server."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatron_corew import launch
from megatron_corew.cli import app
from megatron_corew.mcore.modules import uses_transformer_engine
from megatron_corew.preflight import LAB_POLICY

DEMO = str(Path(__file__).parents[2] / "configs" / "runs" / "demo.yaml")


@pytest.fixture(autouse=True)
def _no_process_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("the trainer's processes were started")

    monkeypatch.setattr(launch, "start_processes", refuse)
    monkeypatch.delenv("RANK", raising=False)


def refusal(tmp_path: Path, *overrides: str) -> str:
    """The one line that ``corew train`` says; fails when it does anything else."""
    result = CliRunner().invoke(app, ["train", DEMO, f"run.root={tmp_path}", *overrides])
    assert result.exit_code == 1, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.output
    assert not (tmp_path / "demo" / "config.yaml").exists()
    return lines[0]


def jsonl(path: Path, *rows: dict) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def changed_model(tmp_path: Path, **changes: object) -> str:
    folder = tmp_path / "model"
    shutil.copytree(LAB_POLICY, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return f"model.path={folder}"


def test_a_missing_model_folder(tmp_path):
    assert "model.path" in refusal(tmp_path, "model.path=/does/not/exist")


def test_a_model_folder_without_a_tokenizer(tmp_path):
    changed = changed_model(tmp_path)
    (tmp_path / "model" / "tokenizer.json").unlink()
    assert "tokenizer.json" in refusal(tmp_path, changed)


def test_an_unsupported_architecture(tmp_path):
    line = refusal(tmp_path, changed_model(tmp_path, architectures=["MambaForCausalLM"]))
    assert "MambaForCausalLM" in line
    assert "Qwen3ForCausalLM" in line


def test_heads_that_do_not_divide_by_the_tensor_parallel_size(tmp_path):
    assert "parallel.tensor" in refusal(tmp_path, "parallel.tensor=3")


def test_layers_that_do_not_divide_by_the_pipeline_parallel_size(tmp_path):
    assert "parallel.pipeline" in refusal(tmp_path, "parallel.pipeline=2")


def test_layers_that_do_not_divide_by_the_pieces_of_a_pipeline(tmp_path):
    knobs = ("pipeline=3", "virtual_pipeline=2", "tokens_per_micro_batch=5000")
    line = refusal(tmp_path, *(f"parallel.{knob}" for knob in knobs))
    assert "parallel.virtual_pipeline: need a divisor of the model's 1 layers of a pipeline" in line


def test_context_parallelism_without_transformer_engine(tmp_path):
    if uses_transformer_engine():
        pytest.skip("Transformer Engine is here")
    line = refusal(tmp_path, "parallel.context=2")
    assert "parallel.context: need a GPU with Transformer Engine" in line


def test_empty_data(tmp_path):
    assert "data.train" in refusal(
        tmp_path, f"data.train={jsonl(tmp_path / 'empty.jsonl')}", "data.rephrased_column=rephrased"
    )


def test_only_prompts_beyond_the_limit(tmp_path):
    assert "data.max_prompt_tokens" in refusal(tmp_path, "data.max_prompt_tokens=2")


def test_a_rephrased_file_of_another_length(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", *({"prompt": f"{n}+1="} for n in range(3)))
    second = jsonl(tmp_path / "b.jsonl", *({"prompt": f"1+{n}="} for n in range(2)))
    line = refusal(tmp_path, f"data.train={first}", f"data.train_rephrased={second}")
    assert "3" in line
    assert "2" in line
    assert "data.id_column" in line


def test_an_unknown_preset(tmp_path):
    line = refusal(tmp_path, "method=co_rewarding_iv")
    assert "method" in line
    assert "co_rewarding_iii" in line


def test_an_unknown_key_gets_the_nearest_known_one(tmp_path):
    assert "optimizer.lr" in refusal(tmp_path, "optimizer.lrr=1e-3")


def test_sequences_longer_than_the_models_positions(tmp_path):
    line = refusal(tmp_path, "rollout.max_response_tokens=100000")
    assert "rollout.max_response_tokens" in line


def test_more_prompts_per_step_than_questions(tmp_path):
    assert "rollout.prompts_per_step" in refusal(tmp_path, "rollout.prompts_per_step=5000")


def test_several_greedy_samples(tmp_path):
    line = refusal(tmp_path, "evaluate.temperature=0", "evaluate.samples_per_prompt=2")
    assert "evaluate.samples_per_prompt" in line


def test_more_stop_strings_than_a_server_takes(tmp_path):
    assert "rollout.stop" in refusal(tmp_path, "rollout.stop=[a,b,c,d,e]")


def test_wandb_without_its_package(tmp_path):
    if find_spec("wandb") is not None:
        pytest.skip("wandb is installed here")
    assert "observe.wandb_project" in refusal(tmp_path, "observe.wandb_project=sums")


def test_questions_that_the_tokenizer_cannot_read(tmp_path):
    words = jsonl(tmp_path / "words.jsonl", {"prompt": "What is 3 plus 2?", "other": "3+2="})
    line = refusal(tmp_path, f"data.train={words}", "data.rephrased_column=other", "data.eval=null")
    assert "What is 3 plus 2?" in line
    assert "model.path" in line


def test_a_server_address_where_nobody_answers(tmp_path):
    assert "servers.policy" in refusal(tmp_path, "servers.policy=[http://127.0.0.1:9]")
