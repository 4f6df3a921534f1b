"""System prompt and chat template of a run, also for tokenizers without one."""

from pathlib import Path

import pytest

from megatron_corew.config import DataConfig
from megatron_corew.config_file import load_config
from megatron_corew.data.prepare.sources import RECIPES
from megatron_corew.data.rendering import PromptRenderer
from tests.cpu.test_data_prompts import TEMPLATE, byte_tokenizer

CONFIGS = Path(__file__).parents[2] / "configs"
USER = [{"role": "user", "content": "1+1?"}]
OWN_SYSTEM = [{"role": "system", "content": "own"}, *USER]


def text(question, *, template: str | None = TEMPLATE, bos: bool = False, **knobs) -> str:
    renderer = PromptRenderer(
        DataConfig(train="x", **knobs), byte_tokenizer(template=template, bos=bos)
    )
    prompt = renderer.prompt(question, "original", "q")
    assert byte_tokenizer().decode(prompt.token_ids) == prompt.text
    return prompt.text


def test_the_runs_system_prompt_comes_before_messages_and_text_alike():
    expected = "<system>think<user>1+1?<assistant>"
    assert text(USER, system_prompt="think") == expected
    assert text("1+1?", system_prompt="think") == expected
    assert text(OWN_SYSTEM) == "<system>own<user>1+1?<assistant>"


def test_messages_with_a_system_prompt_of_their_own_take_no_second_one():
    with pytest.raises(ValueError, match=r"data\.system_prompt: .*\(question q\).*corew prepare"):
        text(OWN_SYSTEM, system_prompt="think")


def test_a_template_file_serves_a_tokenizer_without_one_and_wins_over_its_own(tmp_path):
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}go:")
    for template in (None, TEMPLATE):
        got = text(USER, template=template, system_prompt="s", chat_template_file=str(file))
        assert got == "[system] s [user] 1+1? go:"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "<s>think\n\n1+1?\n\n"),
        (
            "chatml",
            "<s><|im_start|>system\nthink<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
    ],
)
def test_the_shipped_templates_write_exactly_this_with_one_begin_token(name, expected):
    file = str(CONFIGS / "templates" / f"{name}.jinja")
    got = text(USER, template=None, bos=True, system_prompt="think", chat_template_file=file)
    assert got == expected


def test_one_user_message_needs_no_template_and_several_do():
    assert text(USER, template=None, chat_template=False) == "1+1?"
    with pytest.raises(ValueError, match=r"data\.chat_template: need true .*several messages"):
        text(OWN_SYSTEM, template=None, chat_template=False)


@pytest.mark.parametrize(
    ("content", "knobs", "message"),
    [
        (None, {}, r"data\.chat_template_file: need a readable Jinja file"),
        ("x", {"chat_template": False}, r"data\.chat_template_file: needs data\.chat_template"),
        ("{% if %}", {}, r"data\.chat_template: the template refuses question q"),
    ],
)
def test_a_template_file_that_cannot_serve_is_named(tmp_path, content, knobs, message):
    file = tmp_path / "own.jinja"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=message):
        text(USER, chat_template_file=str(file), **knobs)


DATA_SETS = sorted(path.stem for path in (CONFIGS / "data").glob("*.yaml"))


def run_with(tmp_path: Path, *names: str) -> DataConfig:
    """The data section of a run that extends these data sets."""
    files = ", ".join(str(CONFIGS / "data" / f"{name}.yaml") for name in names)
    run = tmp_path / "run.yaml"
    run.write_text(
        f"extends: [{files}]\nmethod: co_rewarding_iii\nrun: {{name: r, steps: 1}}\n"
        "model: {path: lab}\n"
    )
    return load_config(run).data


def test_every_data_set_that_prepare_knows_has_a_file_to_extend():
    assert RECIPES.keys() <= set(DATA_SETS)


@pytest.mark.parametrize("name", [name for name in DATA_SETS if name != "columns"])
def test_a_run_may_extend_any_data_set(tmp_path, name):
    data = run_with(tmp_path, "math", name)
    assert f"data/{name.removesuffix('-ttt')}/questions.parquet" in (data.train, data.eval)
    assert data.prompt_column == "messages"
    assert data.system_prompt == (
        "Let's think step by step and output the final answer within \\boxed{}."
    )


def test_the_later_data_set_wins_and_keeps_what_it_does_not_set(tmp_path):
    data = run_with(tmp_path, "dapo", "aime24")
    assert data.train == "data/dapo/questions.parquet"
    assert data.eval == "data/aime24/questions.parquet"
