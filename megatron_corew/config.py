"""Every knob and every default, once. Needs pydantic only: no torch, no megatron, no vllm.

A field is documented where it stands, with its unit. A rule across fields is a method whose
name says the rule; rules refuse and never change a value. ``config_file`` reads YAML into this.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from megatron_corew.methods import METHODS, Method

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0.0)]
NotNegative = Annotated[float, Field(ge=0.0)]


class Section(BaseModel):
    """A group of knobs: frozen, and closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


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


class RolloutConfig(Section):
    """How responses are sampled."""

    prompts_per_step: Count = 128
    """Questions per step. Paper: 128."""
    samples_per_prompt: Annotated[int, Field(ge=2)] = 8
    """Policy responses per prompt, the group of GRPO. Paper: 8."""
    teacher_samples: Count = 8
    """Teacher responses per prompt, for the vote. Paper: 8."""
    max_response_tokens: Count = 3072
    """Longest response, in tokens. Paper: 3,072."""
    temperature: Positive = 1.0
    """Sampling temperature of policy and teacher; the trainer's log-probs use it too."""
    top_p: Share = 1.0
    """Must be 1: a truncated distribution would bias the log-prob ratios."""
    stop: Annotated[tuple[str, ...], Field(max_length=4)] = ()
    """At most 4 strings that end a response, besides the model's own end tokens."""

    @model_validator(mode="after")
    def sampling_is_not_truncated(self) -> Self:
        """The sampler's log-probs must be those of the full distribution."""
        if self.top_p != 1.0:
            raise ValueError(
                f"rollout.top_p: need 1.0, got {self.top_p}. The trainer's log-probs are those of "
                "the full distribution; lower rollout.temperature instead."
            )
        return self


class ServersConfig(Section):
    """The vLLM servers: started by the run, or addressed where they stand."""

    policy: tuple[str, ...] = ()
    """Addresses (http://host:port) of running servers; empty: the run starts one itself."""
    teacher: tuple[str, ...] = ()
    """Addresses of servers for the teacher; empty: policy and teacher take turns."""
    tensor_parallel: Count = 1
    """Tensor-parallel size of a server that the run starts."""
    host: str = "127.0.0.1"
    """Interface that a started server binds to."""
    bucket_mb: Count = 64
    """Largest piece of a weight push, in MB."""
    bucket_folder: str = "/dev/shm"
    """Folder through which weights reach the servers: shared memory of this host, or a folder that
    the servers' hosts share."""
    token_file: str | None = None
    """File (mode 600) with the token that the servers ask for; None: none. Needed by a server
    that listens on more than loopback."""
    start_timeout_s: Positive = 300.0
    """Seconds a server may take until it is healthy."""
    request_timeout_s: Positive = 600.0
    """Seconds a sampling or weight request may take."""
    max_sequences: Count = 256
    """Sequences a server works on at the same time."""
    threads: Count = 1
    """CPU threads of a started server."""
    kv_cache_gb: Positive = 1.0
    """Memory of the key/value cache of a started CPU server, in GB."""
    gpu_memory_share: Share = 0.6
    """Share of GPU memory a started server takes. Paper: 0.6 to 0.8."""


class AnswersConfig(Section):
    """What counts as the same answer, and when a vote gives a label."""

    equivalence: Literal["math", "raw"] = "math"
    """``math``: canonical keys and math-verify. ``raw``: equal strings, as the official code."""
    extractors: Annotated[
        tuple[Literal["boxed", "hashes", "phrase", "choice", "last_number"], ...],
        Field(min_length=1),
    ] = ("boxed",)
    """Where an answer is looked for, in this order, until one is found: the last complete box, the
    line behind ####, "answer is ...", a choice letter, the last number. A matter of the data."""
    tie: Literal["abstain", "first", "shortest"] = "abstain"
    """Label of a tied vote: none, the answer seen first (official), or the shortest key."""
    min_share: Share = 0.0
    """Smallest share of the responses that makes a label; below it there is none."""
    unlabelled: Literal["drop", "keep"] = "drop"
    """Groups without a label: out of the loss, or in it with advantage 0 (official: KL acts)."""
    verify_timeout_s: Positive = 5.0
    """Seconds that slow math-verify comparisons may cost a step in all; a single one is ended
    after a fifth. What is ended or no longer made counts as unequal, and is counted."""
    verify_workers: Count = 1
    """Processes for math-verify."""
    verify_memory_mb: Annotated[int, Field(ge=512)] = 2048
    """Address space of a math-verify process, in MB."""

    @model_validator(mode="after")
    def official_answers_stand_in_boxes(self) -> Self:
        """The released code knows boxes only."""
        if self.equivalence == "raw" and self.extractors != ("boxed",):
            raise ValueError(
                f"answers.extractors: need [boxed] with answers.equivalence=raw, got "
                f"{list(self.extractors)}. Set answers.equivalence=math."
            )
        return self


class ShapingConfig(Section):
    """What is added to the reward of 1 or 0; all off. The paper and its code add nothing."""

    soft_votes: bool = False
    """True: the reward is the share of the labelling votes that gave the same answer, instead of 1
    for the label only. Groups without a label stay without reward."""
    format_reward: NotNegative = 0.0
    """Reward for stating any answer where answers.extractors look for it; 0: off."""
    overlong_buffer_tokens: Count | None = None
    """Tokens before rollout.max_response_tokens in which a penalty grows from 0 to its full size;
    None: off. DAPO: 4,096 of 20,480."""
    overlong_penalty: Positive = 1.0
    """Full size of that penalty, subtracted from the reward. DAPO: 1."""
    drop_equal_rewards: bool = False
    """True: groups whose rewards are all equal leave the loss and its divisor, as in DAPO's dynamic
    sampling."""
    refill_rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds of ``rollout.prompts_per_step`` further questions that a step may ask to replace the
    groups that left; 0: they are not replaced."""

    @model_validator(mode="after")
    def refill_replaces_dropped_groups(self) -> Self:
        """Without dropped groups there is nothing to replace."""
        if self.refill_rounds and not self.drop_equal_rewards:
            raise ValueError(
                f"shaping.refill_rounds: needs shaping.drop_equal_rewards=true, got false with "
                f"{self.refill_rounds} rounds. Set shaping.refill_rounds=0."
            )
        return self


class LossConfig(Section):
    """The surrogate, its KL term, and how token losses are averaged."""

    clip_low: Share = 0.2
    """Ratios below 1 - clip_low are clipped. Paper: 0.2."""
    clip_high: NotNegative = 0.2
    """Ratios above 1 + clip_high are clipped. Paper: 0.2."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Upper bound of the ratio for negative advantages; None: off. Official: 3."""
    kl_coef: NotNegative | None = None
    """Weight of the KL term; None: the method's own (see methods.py)."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Per-token estimator of the KL to the reference. Paper: k3."""
    kl_clamp: Positive | None = 10.0
    """The estimate is clamped to +-kl_clamp; None: off. Official: 10."""
    aggregation: Literal["token_mean", "seq_mean", "micro_batch_token_mean", "dr_grpo"] = (
        "token_mean"
    )
    """Global token mean; mean of sequence means (paper eq. 4); token mean inside each official
    micro-batch; or sum over tokens by (sequences x rollout.max_response_tokens)."""
    official_micro_batch: Count = 8
    """Rollouts per view in a micro-batch of ``micro_batch_token_mean``. Official: 8 (III: 4)."""
    divide_by_std: bool = True
    """Advantages divided by the group's standard deviation; False: Dr.GRPO."""
    updates_per_step: Count = 1
    """Optimizer updates on the rollouts of one step. Paper: 1."""
    tis_cap: Positive | None = None
    """Truncated importance sampling: cap on the trainer/sampler ratio; None: off."""


class OptimizerConfig(Section):
    """AdamW and its learning rate."""

    lr: Positive = 3e-6
    """Peak learning rate. Paper: 3e-6."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Adam's decay rates. Paper: 0.9, 0.999."""
    eps: Positive = 1e-8
    """Adam's epsilon. Paper: 1e-8."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay. Official code: 0.01."""
    clip_grad: Positive = 1.0
    """Largest gradient norm. Official code: 1."""
    warmup_share: Share = 0.1
    """Share of the updates with a rising learning rate. Paper: 0.1."""
    min_lr_share: Share = 0.0
    """Learning rate at the end, as a share of the peak. Official code: 0."""
    warmup_from_zero: bool = False
    """True: the first update has learning rate 0, as in the official code."""
    max_skipped_updates: Count = 3
    """Updates with a non-finite loss or gradient that may be skipped before the run stops."""


class TeacherConfig(Section):
    """The EMA teacher's schedule and storage."""

    schedule: Literal["cosine", "constant"] = "cosine"
    """Course of the policy's weight: cosine from weight_start to weight_end, or weight_start."""
    weight_start: Share = 0.01
    """Policy weight mixed into the teacher at the first update (decay 0.99). Paper: 0.01."""
    weight_end: Share = 1e-4
    """Policy weight at the last update. Paper: 1e-4 (decay 0.9999); official script: 1e-5."""
    update_every: Count = 1
    """Steps between two teacher updates."""
    residual: Literal["float32", "bfloat16"] = "float32"
    """Type of the rounding residual beside the float32 teacher."""


class ParallelConfig(Section):
    """The layout of the trainer."""

    tensor: Count = 1
    """Tensor-parallel size."""
    pipeline: Count = 1
    """Pipeline-parallel size."""
    virtual_pipeline: Count = 1
    """Pieces of the model per pipeline rank (interleaved schedule): smaller bubbles, more messages.
    Every rank then takes a multiple of ``pipeline`` micro-batches, packed to one width."""
    data: Count = 1
    """Data-parallel size; processes = tensor x pipeline x context x data."""
    context: Count = 1
    """Context-parallel size: ranks that share each sequence. Needs Transformer Engine on a GPU."""
    sequence: bool = False
    """Sequence parallelism inside the tensor-parallel group."""
    expert: Count = 1
    """Expert-parallel size; divides tensor x data, takes no processes of its own."""
    distributed_optimizer: bool = False
    """Shard optimizer and teacher over the data-parallel group."""
    micro_batch_rollouts: Count = 8
    """Rollouts per forward pass and rank, padded to the longest of them. The result does not
    depend on it."""
    tokens_per_micro_batch: Annotated[int, Field(ge=0)] = 0
    """Tokens per forward pass and rank, sequences packed one behind the other without padding;
    0: padded batches of ``micro_batch_rollouts``. The result does not depend on it."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations computed again in the backward pass: none; those of the feed-forward parts,
    which are most of them; or whole layers, of which only the input is kept."""
    logit_chunk_tokens: Count = 4096
    """Response tokens whose float32 logits exist at the same time."""
    threads: Count = 1
    """CPU threads of a trainer process (without a GPU)."""
    timeout_s: Positive = 1800.0
    """Seconds a collective operation may wait before the run is ended."""

    @property
    def processes(self) -> int:
        """Number of trainer processes."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def expert_tensor(self) -> int:
        """Ranks that share one expert."""
        # Megatron-Core sums whole experts' gradients over the tensor-parallel ranks only under EP.
        return self.tensor if self.expert == 1 else 1

    @model_validator(mode="after")
    def expert_groups_fill_a_pipeline_stage(self) -> Self:
        """No rank is left over."""
        if (ranks := self.tensor * self.data) % self.expert:
            raise ValueError(
                f"parallel.expert: need a divisor of parallel.tensor x parallel.data ({ranks}), "
                f"got {self.expert}."
            )
        return self

    @model_validator(mode="after")
    def sequence_parallel_needs_tensor_parallel(self) -> Self:
        """A setting without effect is an error."""
        if self.sequence and self.tensor == 1:
            raise ValueError(
                "parallel.sequence: needs parallel.tensor > 1, got 1. Set parallel.sequence=false."
            )
        return self

    @model_validator(mode="after")
    def interleaving_needs_a_pipeline_and_packing(self) -> Self:
        """Without a pipeline it has no effect; without packing its one width is mostly padding."""
        if self.virtual_pipeline > 1 and self.pipeline == 1:
            raise ValueError(
                f"parallel.virtual_pipeline: needs parallel.pipeline > 1, got 1 with "
                f"{self.virtual_pipeline} pieces per rank. Set parallel.virtual_pipeline=1."
            )
        if self.virtual_pipeline > 1 and self.tokens_per_micro_batch == 0:
            raise ValueError(
                "parallel.tokens_per_micro_batch: need a budget with parallel.virtual_pipeline "
                f"{self.virtual_pipeline}, got 0. Set it, or parallel.virtual_pipeline=1."
            )
        return self


class PrecisionConfig(Section):
    """Matrix products in FP8."""

    fp8: Literal["off", "blockwise", "tensorwise", "delayed", "emulate"] = "off"
    """Transformer Engine's recipe for the linear layers: ``blockwise`` (the choice for an H100:
    scales per 1 x 128 and 128 x 128 block), ``tensorwise`` or ``delayed`` (one scale per tensor,
    of now or of the steps before). ``emulate``: numbers rounded as by ``blockwise``, in plain
    torch on any device, to study its effect. Weights, optimizer and teacher stay as they are;
    embedding, output layer, router, norms and attention are never FP8."""
    bf16_first_layers: Annotated[int, Field(ge=0)] = 0
    """Transformer layers at the start of the model that are kept out of FP8."""
    bf16_last_layers: Annotated[int, Field(ge=0)] = 0
    """The same at its end."""

    @property
    def transformer_engine(self) -> bool:
        """Whether FP8 is left to Transformer Engine."""
        return self.fp8 not in ("off", "emulate")

    @property
    def keeps_histories(self) -> bool:
        """Whether the recipe looks at the steps before."""
        return self.fp8 == "delayed"

    @property
    def token_multiple(self) -> int:
        """Tokens of a forward pass come in multiples of this; emulation pads by itself."""
        return {"blockwise": 128, "tensorwise": 16, "delayed": 16}.get(self.fp8, 1)

    @model_validator(mode="after")
    def layers_are_kept_out_of_something(self) -> Self:
        """A setting without effect is an error, and so is one that the recipe cannot have."""
        kept = self.bf16_first_layers + self.bf16_last_layers
        if kept and self.fp8 in ("off", "delayed"):
            # Delayed scaling reduces the histories of all layers at once.
            raise ValueError(
                f"precision.bf16_first_layers, bf16_last_layers: need 0 with precision.fp8="
                f"{self.fp8}, got {self.bf16_first_layers} and {self.bf16_last_layers}. Set both "
                "to 0, or choose precision.fp8=blockwise."
            )
        return self


class CheckpointConfig(Section):
    """When the whole state of the run is saved."""

    every: Annotated[int, Field(ge=0)] = 30
    """Steps between checkpoints; 0: only at the end. Official: 10 (I), 30 (II, III)."""
    keep: Count = 2
    """Newest checkpoints to keep."""


class EvaluateConfig(Section):
    """Held-out accuracy during the run."""

    every: Annotated[int, Field(ge=0)] = 10
    """Steps between evaluations; 0: only before and after. Official: 10."""
    questions: Count = 256
    """Held-out questions to use, the first of the file."""
    samples_per_prompt: Count = 1
    """Responses per held-out prompt; accuracy is their mean (pass@1)."""
    temperature: NotNegative = 0.0
    """Sampling temperature; 0 is greedy. Official validation: greedy."""

    @model_validator(mode="after")
    def greedy_responses_are_all_the_same(self) -> Self:
        """Several samples need a temperature."""
        if self.temperature == 0.0 and self.samples_per_prompt > 1:
            raise ValueError(
                f"evaluate.samples_per_prompt: need 1 at temperature 0, got "
                f"{self.samples_per_prompt}. Raise evaluate.temperature."
            )
        return self


class ObserveConfig(Section):
    """Where metrics and rollouts are written besides metrics.jsonl."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    wandb_project: str | None = None
    """Weights & Biases project; None: off. Needs the ``wandb`` extra."""
    rollout_groups: Annotated[int, Field(ge=0)] = 8
    """Rollout groups per step, view and round of questions written to rollouts.jsonl."""


class MonitorConfig(Section):
    """The watch over a collapse, which needs no labels; see docs/monitor.md for the thresholds."""

    on_collapse: Literal["off", "warn", "stop", "rollback"] = "warn"
    """Upon an alarm: nothing, a message, the end of the run, or back to the last checkpoint from
    before the alarm with a lower learning rate."""
    window: Annotated[int, Field(ge=1)] = 5
    """Steps whose mean is compared: the first so many with the last so many."""
    patience: Count = 3
    """Steps in a row that a signal must stand before it is an alarm."""
    probe_every: Annotated[int, Field(ge=0)] = 2
    """Steps between measurements of the agreement over the two views; 0: never. A method that
    trains one view asks the other one for it, where the data have it."""
    probe_questions: Count = 16
    """Questions of the step that such a measurement looks at."""
    agreement_gain: Share = 0.15
    """Rise of the agreement within a group, in probability, from which on the agreement over the
    two views must follow."""
    across_share: Share = 0.5
    """Smallest share of that rise that the agreement over the two views must reach."""
    agreement_loss: Share = 0.15
    """Largest fall of either agreement below its best so far."""
    max_kl: Positive = 0.15
    """Largest KL of the policy to its reference, nats per token."""
    top_share: Share = 0.3
    """Largest share of one answer among all responses ..."""
    top_growth: Annotated[float, Field(ge=1.0)] = 2.0
    """... unless it began so high: as a multiple of its start."""
    distinct_share: Share = 0.5
    """Smallest number of distinct answers, as a share of its start."""
    unreadable_gain: Share = 0.15
    """Largest rise of the share of responses that are cut, or that have no answer."""
    teacher_loss: Share = 0.25
    """Largest fall of the share of questions on which policy and teacher elect the same answer."""
    lr_factor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.3
    """``rollback``: the learning rate is multiplied by this each time."""
    max_rollbacks: Count = 3
    """``rollback``: so many; the next alarm stops the run."""


class Config(Section):
    """One training run."""

    method: str
    """Preset of methods.py: co_rewarding_i, _ii, _iii, majority_vote, ground_truth, ..."""
    run: RunConfig
    model: ModelConfig
    data: DataConfig
    rollout: RolloutConfig = RolloutConfig()
    servers: ServersConfig = ServersConfig()
    answers: AnswersConfig = AnswersConfig()
    shaping: ShapingConfig = ShapingConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    teacher: TeacherConfig = TeacherConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    observe: ObserveConfig = ObserveConfig()
    monitor: MonitorConfig = MonitorConfig()

    @property
    def preset(self) -> Method:
        """The method's row."""
        return METHODS[self.method]

    @property
    def keeps_teacher(self) -> bool:
        """Whether a second set of weights is kept: a teacher, or the frozen KL reference."""
        return self.preset.needs_teacher or self.kl_coef > 0

    @property
    def kl_coef(self) -> float:
        """The KL weight in force."""
        return self.preset.kl_coef if self.loss.kl_coef is None else self.loss.kl_coef

    @model_validator(mode="after")
    def method_is_known(self) -> Self:
        """The preset exists."""
        if self.method not in METHODS:
            raise ValueError(f"method: need one of {', '.join(METHODS)}; got {self.method!r}.")
        return self

    @model_validator(mode="after")
    def method_finds_its_columns(self) -> Self:
        """The data have the view and the answers that the method needs."""
        if self.data.train == "lab" or self.method not in METHODS:
            return self
        has_rephrased = self.data.rephrased_column or self.data.train_rephrased
        if self.preset.needs_rephrasings and not has_rephrased:
            raise ValueError(
                f"data.rephrased_column: method {self.method} trains on rephrased questions, got "
                "none. Set data.rephrased_column or data.train_rephrased."
            )
        if self.preset.labeller == "ground_truth" and not self.data.answer_column:
            raise ValueError(
                f"data.answer_column: method {self.method} needs true answers, got none. "
                "Set data.answer_column."
            )
        return self

    @model_validator(mode="after")
    def soft_votes_need_votes(self) -> Self:
        """A share of votes exists only where votes make the label."""
        if self.shaping.soft_votes and self.preset.labeller not in ("policy", "teacher"):
            raise ValueError(
                f"shaping.soft_votes: method {self.method} is not labelled by votes. Set "
                "shaping.soft_votes=false."
            )
        return self

    @model_validator(mode="after")
    def overlong_buffer_fits(self) -> Self:
        """The penalty starts within the response."""
        buffer, longest = self.shaping.overlong_buffer_tokens, self.rollout.max_response_tokens
        if buffer is not None and buffer > longest:
            raise ValueError(
                f"shaping.overlong_buffer_tokens: need at most rollout.max_response_tokens "
                f"({longest}), got {buffer}."
            )
        return self

    @model_validator(mode="after")
    def updates_divide_the_prompts(self) -> Self:
        """Every update of a step gets the same number of whole groups."""
        prompts, updates = self.rollout.prompts_per_step, self.loss.updates_per_step
        if prompts % updates:
            rollouts = prompts * self.rollout.samples_per_prompt
            raise ValueError(
                f"loss.updates_per_step: need a divisor of rollout.prompts_per_step ({prompts}; "
                f"{rollouts} rollouts = {prompts} x {self.rollout.samples_per_prompt}), got "
                f"{updates}."
            )
        return self

    @model_validator(mode="after")
    def packed_micro_batch_holds_the_longest_sequence(self) -> Self:
        """A sequence is never cut over micro-batches."""
        budget = self.parallel.tokens_per_micro_batch
        prompt, response = self.data.max_prompt_tokens, self.rollout.max_response_tokens
        # Context parallelism pads every sequence to whole stripes.
        stripes = 2 * self.parallel.context if self.parallel.context > 1 else 1
        longest = -(-(prompt + response) // stripes) * stripes
        if 0 < budget < longest:
            raise ValueError(
                f"parallel.tokens_per_micro_batch: need 0 or at least {longest} for one sequence "
                f"(data.max_prompt_tokens {prompt} + rollout.max_response_tokens {response}), got "
                f"{budget}."
            )
        return self

    @model_validator(mode="after")
    def rollback_finds_a_checkpoint_from_before_the_alarm(self) -> Self:
        """The checkpoints that are kept reach back beyond the steps that an alarm looks at."""
        knobs, saved = self.monitor, self.checkpoint
        reach, needed = (saved.keep - 1) * saved.every, knobs.window + knobs.patience
        if knobs.on_collapse == "rollback" and reach < needed:
            raise ValueError(
                f"checkpoint.keep: monitor.on_collapse=rollback needs checkpoints that reach back "
                f"{needed} steps (monitor.window + monitor.patience), got (keep - 1) x every = "
                f"{reach}. Raise checkpoint.keep or checkpoint.every."
            )
        return self

    @model_validator(mode="after")
    def emulated_layers_see_whole_sequences(self) -> Self:
        """Context parallelism is Transformer Engine's attention, which emulation does not use."""
        if self.precision.fp8 == "emulate" and self.parallel.context > 1:
            raise ValueError(
                f"parallel.context: need 1 with precision.fp8=emulate, got "
                f"{self.parallel.context}. Set parallel.context=1 or another precision.fp8."
            )
        return self

    @model_validator(mode="after")
    def fp8_of_transformer_engine_trains_bfloat16(self) -> Self:
        """Its kernels take bfloat16."""
        if self.precision.transformer_engine and self.model.dtype != "bfloat16":
            raise ValueError(
                f"precision.fp8: need model.dtype=bfloat16 for {self.precision.fp8}, got "
                f"{self.model.dtype}. Set model.dtype=bfloat16 or precision.fp8=emulate."
            )
        return self

    @model_validator(mode="after")
    def official_micro_batch_divides_the_update(self) -> Self:
        """A micro-batch of the official mean never crosses an update."""
        rollouts = self.rollout.prompts_per_step * self.rollout.samples_per_prompt
        rollouts //= self.loss.updates_per_step
        official = self.loss.aggregation == "micro_batch_token_mean"
        if official and rollouts % self.loss.official_micro_batch:
            raise ValueError(
                f"loss.official_micro_batch: need a divisor of the {rollouts} rollouts of an "
                f"update, got {self.loss.official_micro_batch}."
            )
        return self
