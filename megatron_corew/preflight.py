"""Finds what is wrong with a run before a server or a trainer process starts."""

import math
import shutil
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_corew.config import Config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from megatron_corew.data.prompts import LoadedQuestions

SERVER_POLL_S = 1.0
LAB = Path(__file__).parent / "lab"
LAB_POLICY = LAB / "policy"
LAB_POLICIES = {
    "lab": LAB_POLICY,
    "lab-echo": LAB / "bases" / "echo",
    "lab-clean": LAB / "bases" / "clean",
    "lab-shared": LAB / "bases" / "shared",
}
"""Values of model.path that name a policy in this package."""
DEMO = LAB / "demo.yaml"


def weights_folder(config: Config) -> Path:
    """Where the policy starts from: a folder, or one of ``LAB_POLICIES``."""
    return LAB_POLICIES.get(config.model.path, Path(config.model.path))


def model_folder(config: Config) -> Path:
    """The Hugging Face folder of the policy's config and tokenizer.

    Raises:
        ValueError: there is no such folder.
    """
    from checkpoint_tools.megatron_folder import HF_FOLDER

    start = weights_folder(config)
    folder = start / HF_FOLDER if (start / HF_FOLDER).is_dir() else start
    if not (folder / "config.json").exists():
        raise ValueError(
            f"model.path: need a Hugging Face folder with a config.json, got {folder}. Download "
            "the model first, or set model.path=lab for the built-in policy."
        )
    return folder


def tokenizer(config: Config) -> "PreTrainedTokenizerFast":
    """The policy's tokenizer, from its folder only.

    Raises:
        ValueError: the folder has no tokenizer.json.
    """
    return load_tokenizer(model_folder(config), knob="model.path")


def load_tokenizer(folder: Path, *, knob: str) -> "PreTrainedTokenizerFast":
    """The tokenizer of a Hugging Face folder, nothing else of it is needed.

    Raises:
        ValueError: the folder has no tokenizer.json; the message names the knob.
    """
    # AutoTokenizer makes the same object of the same file, but imports the models: 3 s more.
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").exists():
        raise ValueError(
            f"{knob}: need a folder with a tokenizer.json, got {folder} without. Save the "
            "tokenizer there with transformers (save_pretrained)."
        )
    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def training_questions(config: Config) -> "LoadedQuestions":
    """The usable training questions, checked against the batch size."""
    from megatron_corew.data.prompts import QuestionStream, load_questions

    loaded = load_questions(
        config.data,
        tokenizer(config),
        which="train",
        needs_rephrasings=config.preset.needs_rephrasings,
        needs_answers=config.preset.labeller == "ground_truth",
    )
    QuestionStream(loaded.questions, config.rollout.prompts_per_step, config.run.seed)
    return loaded


def held_out_questions(config: Config) -> "LoadedQuestions | None":
    """The questions of the evaluation, or None without ``data.eval``."""
    from megatron_corew.data.prompts import load_questions

    if config.data.eval is None:
        return None
    return load_questions(
        config.data,
        tokenizer(config),
        which="eval",
        needs_rephrasings=False,
        needs_answers=True,
        limit=config.evaluate.questions,
    )


def check_model(config: Config) -> None:
    """Refuse an unknown architecture, a layout that does not fit, or sequences that are too long.

    Raises:
        ValueError: one line naming the knob.
    """
    from checkpoint_tools.sources import open_source
    from megatron_corew.layout_check import check_divisible

    model_folder(config)  # A missing folder is named by its knob.
    try:
        source = open_source(weights_folder(config))
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"model.path: {error}") from error
    architecture = source.architecture
    check_divisible(architecture, config)
    check_precision(config)
    if config.parallel.context > 1:
        # Loads Megatron: 5 s that other layouts need not wait here.
        from megatron_corew.mcore.modules import check_context_parallel

        check_context_parallel(config.parallel.context)
    itemsize = 4 if config.model.dtype == "float32" else 2
    largest = max(math.prod(shape) for entry in source.table for shape in entry.hf_shapes)
    check_shared_memory(config, largest * itemsize)
    longest = config.data.max_prompt_tokens + config.rollout.max_response_tokens
    if longest > architecture.max_positions:
        raise ValueError(
            f"rollout.max_response_tokens: need <= {architecture.max_positions} positions of the "
            f"model - data.max_prompt_tokens ({config.data.max_prompt_tokens}), got "
            f"{config.rollout.max_response_tokens}. Lower one of the two."
        )


def check_precision(config: Config) -> None:
    """Refuse FP8 that this machine cannot do, and a Transformer Engine that is half installed.

    Raises:
        ValueError: what is missing, and what to do.
    """
    if find_spec("transformer_engine") is None and not config.precision.transformer_engine:
        return
    from megatron_corew.mcore.fast_paths import check_transformer_engine
    from megatron_corew.mcore.fp8_checks import check_recipe

    check_transformer_engine()
    check_recipe(config.precision)


def check_shared_memory(config: Config, largest_tensor_bytes: int) -> None:
    """Refuse a weight push that its folder cannot hold (a container's /dev/shm: 64 MB).

    Args:
        config: the run.
        largest_tensor_bytes: a tensor larger than a bucket is sent whole.

    Raises:
        ValueError: how much is free and what is needed.
    """
    folder = config.servers.bucket_folder
    if not Path(folder).is_dir():
        raise ValueError(
            f"servers.bucket_folder: need an existing folder, got {folder}. Create it."
        )
    free_mb = shutil.disk_usage(folder).free // 2**20
    needed_mb = 2 * max(config.servers.bucket_mb, largest_tensor_bytes // 2**20)
    if free_mb < needed_mb:
        raise ValueError(
            f"servers.bucket_mb: need {needed_mb} MB free in {folder} for two buckets, got "
            f"{free_mb} MB. Lower servers.bucket_mb or give the container more (--shm-size)."
        )


def check_servers(config: Config) -> None:
    """Refuse an address where no server answers.

    Raises:
        ValueError: names the address.
    """
    for knob, address in silent_servers(config):
        raise ValueError(
            f"servers.{knob}: need a running vLLM server, got no answer from {address}. Start it "
            "(corew serve), or leave the list empty to let the run start one."
        )


def wait_for_servers(config: Config) -> None:
    """Return when every addressed server answers.

    Raises:
        RuntimeError: one did not within ``servers.start_timeout_s``.
    """
    timeout_s = config.servers.start_timeout_s
    deadline = time.monotonic() + timeout_s
    while silent := silent_servers(config):
        if time.monotonic() > deadline:
            knob, address = silent[0]
            raise RuntimeError(
                f"servers.{knob}: need an answer from {address} within {timeout_s:g} s, got none. "
                "Look into the server's log, or raise servers.start_timeout_s."
            )
        time.sleep(SERVER_POLL_S)


def silent_servers(config: Config) -> list[tuple[str, str]]:
    """Knob and address of the addressed servers that do not answer."""
    from megatron_corew.rollout.client import ServerClient

    def answers(address: str) -> bool:
        with closing(ServerClient(address, timeout_s=5.0)) as client:
            return client.is_healthy()

    knobs = (("policy", config.servers.policy), ("teacher", config.servers.teacher))
    return [
        (knob, address)
        for knob, addresses in knobs
        for address in addresses
        if not answers(address)
    ]


def check_wandb(config: Config) -> None:
    """Refuse W&B logging where the package is missing.

    Raises:
        ValueError: with what to install.
    """
    if config.observe.wandb_project and find_spec("wandb") is None:
        raise ValueError(
            f"observe.wandb_project: need the package wandb for {config.observe.wandb_project!r}, "
            "got none. Install the extra wandb or set observe.wandb_project=null."
        )


def check(config: Config) -> list[str]:
    """Look at everything that a run needs; the cheap checks come first.

    Returns:
        What a user should know of the data, one line each.

    Raises:
        ValueError: the first problem, naming the knob.
    """
    check_wandb(config)
    check_servers(config)
    check_model(config)
    notes = [f"training data: {training_questions(config).report}"]
    held_out = held_out_questions(config)
    if held_out is not None:
        notes.append(f"held-out data: {held_out.report}")
    return notes
