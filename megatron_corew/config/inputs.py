"""What a run is called, which policy it starts from, and on which questions."""

from typing import Annotated, Literal

from pydantic import Field

from megatron_corew.config.sections import Count, Section


class RunConfig(Section):
    """What the run is called, how long it is, where it writes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """Name of the run: letters, digits, dots, dashes; its folder is ``<root>/<name>``."""
    root: str = "runs"
    """Folder that holds the runs."""
    steps: Count
    """Training steps. No default: the run length is always a decision."""
    seed: int = 0
    """Seed of the data order and of the sampling."""


class ModelConfig(Section):
    """The policy to start from."""

    path: str
    """Hugging Face folder, or checkpoint of corew-convert, of a Llama, Qwen2, Qwen3 or Qwen3-MoE
    model; or a built-in policy: ``lab``, ``lab-echo``, ``lab-clean``, ``lab-shared``."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the trained parameters. Optimizer and teacher are float32; with bfloat16 they start
    from the rounded weights, so a folder stored in float32 loses its last bits."""


class DataConfig(Section):
    """Where the questions come from and how they become prompts."""

    train: str
    """A parquet or jsonl file, a Hugging Face hub id, or ``lab``."""
    train_rephrased: str | None = None
    """A second file with the rephrased questions, when they are not a column of ``train``."""
    eval: str | None = None
    """Held-out questions with answers, same forms as ``train``; None: no evaluation."""
    eval_rephrased: str | None = None
    """Rephrasings of the held-out questions, as ``train_rephrased``."""
    subset: str | None = None
    """Configuration of a hub data set, as ``main`` of openai/gsm8k; None: its default."""
    split: str = "train"
    """Split to take from a hub data set for training."""
    eval_split: str = "test"
    """Split to take from a hub data set for evaluation."""
    prompt_column: str = "prompt"
    """Column of the question: text, or a list of {role, content} messages."""
    rephrased_column: str | None = None
    """Column of the rephrased question, in ``train`` itself."""
    answer_column: str | None = None
    """Column of the true answer, dotted for nested fields (``reward_model.ground_truth``)."""
    id_column: str | None = None
    """Column that joins the views, dotted for nested fields; None: the row number."""
    system_prompt: str | None = None
    """System message put before every question; None: only what the data bring along."""
    chat_template: bool = True
    """True: render with a chat template; False: the question text as it is."""
    chat_template_file: str | None = None
    """Jinja file used instead of the tokenizer's own template, as for a base model without one."""
    max_prompt_tokens: Count = 512
    """Longer prompts are dropped and counted; a pair is dropped when either side is longer."""
    max_questions: Count | None = None
    """Use the first so many questions of the training data; None: all."""
