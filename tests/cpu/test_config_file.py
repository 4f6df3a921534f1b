"""Config files: types by the schema, layers, one-line errors, and the way back to YAML."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_corew.config import Config
from megatron_corew.config_file import differences, load_config, save_config

RUN = """\
method: co_rewarding_i
run: {name: first, steps: 3}
model: {path: lab}
data: {train: lab}
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def refusal(path, *overrides: str) -> str:
    """The error of a configuration that must be refused; always one line."""
    with pytest.raises(ValueError, match=r".") as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", "0.000001"])
def test_a_number_without_a_dot_is_a_number_in_file_and_override(tmp_path, run_file, text):
    assert load_config(run_file, [f"optimizer.lr={text}"]).optimizer.lr == 1e-6
    run_file.write_text(RUN + f"optimizer:\n  lr: {text}\n")
    assert load_config(run_file).optimizer.lr == 1e-6


@pytest.mark.parametrize("name", ["no", "on", "08", "1e6", "2024-01-01", "true", "1_000", "0x1f"])
def test_text_that_looks_like_something_else_stays_text(run_file, name):
    assert load_config(run_file, [f"run.name={name}"]).run.name == name
    run_file.write_text(RUN.replace("first", name))
    assert load_config(run_file).run.name == name


def test_only_a_bare_null_is_none(run_file):
    run_file.write_text(RUN + "loss: {kl_clamp: null, dual_clip: ~}\n")
    assert load_config(run_file).loss.kl_clamp is None
    assert load_config(run_file, ["loss.kl_coef="]).loss.kl_coef is None
    assert load_config(run_file, ["run.name='null'"]).run.name == "null"
    assert "run.name: need text, got null" in refusal(run_file, "run.name=null")


def test_override_text_is_taken_as_it_is(run_file):
    override = "data.system_prompt=Answer: in \\boxed{} # please"
    assert load_config(run_file, [override]).data.system_prompt == override.partition("=")[2]


def test_override_lists_are_yaml_and_replace_the_whole_list(run_file):
    run_file.write_text(RUN + "rollout: {stop: [a, b, c]}\n")
    assert load_config(run_file, ["rollout.stop=[x, 08]"]).rollout.stop == ("x", "08")
    assert load_config(run_file, ['rollout.stop=["\\n"]']).rollout.stop == ("\n",)
    assert load_config(run_file, ["optimizer.betas=[0.8,9e-1]"]).optimizer.betas == (0.8, 0.9)


def test_the_file_wins_over_what_it_extends_and_the_later_parent_over_the_earlier(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "base.yaml").write_text(
        RUN + "optimizer: {lr: 1, eps: 1, clip_grad: 1, weight_decay: 1}\n"
    )
    (tmp_path / "deep" / "one.yaml").write_text(
        "extends: base.yaml\noptimizer: {lr: 2, eps: 2, clip_grad: 2}\n"
    )
    (tmp_path / "two.yaml").write_text("optimizer: {lr: 3, eps: 3}\n")
    top = tmp_path / "top.yaml"
    top.write_text("extends: [deep/one.yaml, two.yaml]\noptimizer: {lr: 4}\n")
    optimizer = load_config(top).optimizer
    assert (optimizer.lr, optimizer.eps, optimizer.clip_grad) == (4, 3, 2)
    assert optimizer.weight_decay == 1
    assert load_config(top, ["optimizer.lr=5"]).optimizer.lr == 5


def test_files_that_extend_each_other_are_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    assert "a.yaml -> b.yaml -> a.yaml" in refusal(tmp_path / "a.yaml")


def test_a_reference_reaches_values_and_defaults(run_file):
    config = load_config(run_file, ["run.name=${method}-seed${run.seed}", "run.steps=${run.seed}1"])
    assert config.run.name == "co_rewarding_i-seed0"
    assert config.run.steps == 1
    assert "run.name: Interpolation key 'run.nam'" in refusal(run_file, "run.name=${run.nam}")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=abc", "optimizer.lr: need a number, got 'abc'."),
        ("run.steps=1.5", "run.steps: need a whole number, got '1.5'."),
        ("run.steps=0", "run.steps: need a number greater than or equal to 1, got '0'."),
        ("parallel.sequence=maybe", "parallel.sequence: need true or false, got 'maybe'."),
        ("model.dtype=fp16", "model.dtype: need 'float32' or 'bfloat16', got 'fp16'."),
        ("rollout.stop=a", "rollout.stop: need a list, as in [a,b], got 'a'."),
        ("servers=1", "servers: need a section with keys, got '1'."),
        ("rollout.top_p=0.9", "rollout.top_p: need 1.0, got 0.9."),
        ("run.steps", "override: need section.key=value, got 'run.steps'."),
        ("data.split=[a", "data.split: not a valid YAML value"),
        ("loss.updates_per_step=3", "rollout.prompts_per_step (128; 1024 rollouts = 128 x 8)"),
    ],
)
def test_a_bad_value_is_one_line_with_key_need_and_value(run_file, override, message):
    assert message in refusal(run_file, override)


def test_every_bad_value_is_named_at_once(run_file):
    text = refusal(run_file, "optimizer.lr=x", "run.steps=y")
    assert "optimizer.lr: need" in text
    assert "run.steps: need" in text


def test_a_required_key_that_is_missing_is_named(tmp_path):
    path = tmp_path / "empty.yaml"
    path.write_text("")
    text = refusal(path)
    assert all(f"{key}: needed" in text for key in ("method", "run.steps", "model.path"))


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("rollout.temprature", "Did you mean rollout.temperature?"),
        ("lr", "Did you mean optimizer.lr?"),
        ("rollout.lr", "Did you mean optimizer.lr?"),
        ("every", "Did you mean checkpoint.every or evaluate.every?"),
        ("teacher.zzz", "Known keys here: teacher.schedule, teacher.weight_start"),
        ("zzz", "Known keys here: method, run, model"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(run_file, key, suggestion):
    assert f"{key}: unknown key. {suggestion}" in refusal(run_file, f"{key}=1")
    section, _, leaf = key.rpartition(".")
    run_file.write_text(RUN + (f"{section}: {{{leaf}: 1}}\n" if section else f"{leaf}: 1\n"))
    assert f"{key}: unknown key. {suggestion}" in refusal(run_file)


def test_an_unknown_method_lists_the_presets(run_file):
    text = refusal(run_file, "method=co_rewarding_iv")
    assert "co_rewarding_iii" in text
    assert "self_certainty" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run: [1\n", "not valid YAML"),
        ("- a\n", "need keys and values"),
        (RUN + "method: entropy\n", "key 'method' stands twice"),
        (RUN + "optimizer.lr: 1\n", "key 'optimizer.lr' has a dot"),
        (RUN + "extends: [{a: b}]\n", "extends: need a file name"),
        (RUN + "extends: nowhere.yaml\n", "nowhere.yaml: need a readable YAML file"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(run_file, text, message):
    run_file.write_text(text)
    assert message in refusal(run_file)


def test_a_missing_file_is_refused(tmp_path):
    assert "none.yaml: need a readable YAML file" in refusal(tmp_path / "none.yaml")


@settings(deadline=None, max_examples=40)
@given(
    text=st.one_of(st.text(), st.sampled_from(["${", "\\\\${x}", "a: b", "- a", "\r", "\x85"])),
    stop=st.lists(
        st.sampled_from(["", "null", "~", "08", "no", "${run.seed}", "\\${a}", "\n"]), max_size=4
    ),
    lr=st.floats(min_value=1e-30, max_value=1e30),
)
def test_a_saved_configuration_reads_back_equal(tmp_path_factory, text, stop, lr):
    path = tmp_path_factory.mktemp("saved") / "config.yaml"
    config = Config.model_validate(
        {
            "method": "entropy",
            "run": {"name": "saved", "steps": 1},
            "model": {"path": text},
            "data": {"train": "lab", "system_prompt": text},
            "rollout": {"stop": stop},
            "optimizer": {"lr": lr},
        }
    )
    save_config(config, path)
    assert differences(load_config(path), config) == []


def test_differences_are_dotted_keys_with_both_values(run_file):
    first = load_config(run_file)
    second = load_config(run_file, ["optimizer.lr=1", "run.steps=9", "servers.threads=2"])
    assert differences(first, first) == []
    assert differences(first, second, ignoring=["servers", "run.steps"]) == [
        ("optimizer.lr", 3e-6, 1.0)
    ]
    # A prefix of a name is not a section.
    assert len(differences(first, second, ignoring=["run.step", "server"])) == 3


SHIPPED = sorted((Path(__file__).parents[2] / "configs" / "runs").glob("*.yaml"))
PROFILES = sorted((Path(__file__).parents[2] / "configs" / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_run_loads(path):
    assert load_config(path).run.name


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_every_shipped_profile_can_be_extended(path, run_file):
    run_file.write_text(RUN + f"extends: {path}\n")
    assert differences(load_config(run_file), load_config(run_file, ["run.seed=0"])) == []


def test_the_official_profile_is_the_released_code(run_file):
    official = next(path for path in PROFILES if path.name == "official.yaml")
    plain = load_config(run_file)
    run_file.write_text(RUN + f"extends: {official}\n")
    changed = {key: value for key, _, value in differences(plain, load_config(run_file))}
    assert changed == {
        "answers.equivalence": "raw",
        "answers.tie": "first",
        "answers.unlabelled": "keep",
        "loss.dual_clip": 3.0,
        "loss.aggregation": "micro_batch_token_mean",
        "optimizer.warmup_from_zero": True,
        "teacher.weight_end": 1e-5,
        "evaluate.questions": 5000,
    }


def test_a_token_budget_holds_the_longest_sequence_or_is_off(run_file):
    sizes = ["data.max_prompt_tokens=100", "rollout.max_response_tokens=20"]
    knob = "parallel.tokens_per_micro_batch"
    assert load_config(run_file, [*sizes, f"{knob}=120"]).parallel.tokens_per_micro_batch == 120
    assert load_config(run_file, [*sizes, f"{knob}=0"]).parallel.tokens_per_micro_batch == 0
    text = refusal(run_file, *sizes, f"{knob}=119")
    assert f"{knob}: need 0 or at least 120" in text
    assert "got 119" in text
    # Three context-parallel ranks cut a sequence into six stripes: 120 is whole, 122 is not.
    three = [*sizes, "parallel.context=3"]
    assert load_config(run_file, [*three, f"{knob}=120"]).parallel.processes == 3
    longer = [*three, "rollout.max_response_tokens=22"]
    assert "at least 126" in refusal(run_file, *longer, f"{knob}=125")


def test_pieces_of_a_pipeline_need_a_pipeline_and_a_token_budget(run_file):
    sizes = ["data.max_prompt_tokens=100", "rollout.max_response_tokens=20"]
    pieces = [*sizes, "parallel.virtual_pipeline=2"]
    text = refusal(run_file, *pieces, "parallel.tokens_per_micro_batch=120")
    assert "parallel.virtual_pipeline: needs parallel.pipeline > 1" in text
    staged = [*pieces, "parallel.pipeline=2"]
    assert "parallel.tokens_per_micro_batch: need a budget" in refusal(run_file, *staged)
    load_config(run_file, [*staged, "parallel.tokens_per_micro_batch=120"])
