"""One trainer process: builds the parts of a run, hands them to the loop, tears them down."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from checkpoint_tools.sources import open_source
from megatron_corew import loop, preflight
from megatron_corew.answers.judge import AnswerJudge
from megatron_corew.config import Config
from megatron_corew.config_file import load_config
from megatron_corew.data.prompts import LoadedQuestions, QuestionStream
from megatron_corew.gathering import Gatherer
from megatron_corew.judges import judge_of
from megatron_corew.labelling import label_views
from megatron_corew.observer import Observer
from megatron_corew.ranks import is_driver, on_driver
from megatron_corew.rollout.client import ServerClient
from megatron_corew.rollout.end_tokens import end_token_ids
from megatron_corew.rollout.sampler import Sampler, Sampling, ServerPool
from megatron_corew.rollout.server import VllmServer
from megatron_corew.rollout.token import token_of
from megatron_corew.runs import RunFolder
from megatron_corew.types import Prompt, Question, RolloutGroup, View, ViewLabels

if TYPE_CHECKING:
    from megatron_corew.mcore.policy import Policy
    from megatron_corew.mcore.teacher import Teacher


def run(config: Config) -> None:
    """Train one run from its last checkpoint, or from the start, to its end.

    Called by every trainer process; rank 0 also starts and stops the server. The configuration
    has passed ``preflight.check``.

    Raises:
        ValueError, RuntimeError: on every rank, what stopped the run.
    """
    from megatron_corew.mcore import fast_paths
    from megatron_corew.mcore.checkpoint import Checkpoints
    from megatron_corew.mcore.parallel import parallel_world
    from megatron_corew.mcore.policy import Policy

    folder = RunFolder.of(config)
    with ExitStack() as stack:
        layout = stack.enter_context(parallel_world(config.parallel, seed=config.run.seed))
        on_driver(lambda: folder.prepare(config))
        # The server loads while the trainer's own data and weights do.
        server = stack.enter_context(_own_server(config, folder)) if is_driver() else None
        train_set = on_driver(lambda: preflight.training_questions(config))
        held_out = on_driver(lambda: preflight.held_out_questions(config))
        policy = Policy(config, open_source(preflight.weights_folder(config)), layout)
        teacher = _teacher_of(policy, config)
        found = json.dumps(fast_paths.report(teacher.elements if teacher else 0), indent=1)
        on_driver(lambda: folder.fast_paths_file.write_text(found))
        checkpoints = Checkpoints(folder.checkpoints, config, policy, teacher)
        last_step = on_driver(folder.latest_step) or 0
        if last_step:
            checkpoints.load(last_step)
        judge = stack.enter_context(closing(judge_of(config.answers)))
        sampler, teacher_sampler = _samplers(config, server)
        observer = stack.enter_context(
            Observer(
                config,
                folder,
                training_sampler=sampler,
                evaluation_sampler=EvaluationSampler(sampler, evaluation_sampling(config)),
                judge=judge,
                held_out=held_out.questions if held_out else (),
                save=checkpoints.save,
                first_step=last_step + 1,
            )
        )
        gatherer = Gatherer(
            config=config,
            questions=_stream(config, train_set),
            policy=policy,
            teacher=teacher,
            sampler=sampler,
            teacher_sampler=teacher_sampler,
            label=partial(_label_on_driver, judge, config),
            observer=observer,
        )
        train = partial(loop.train, gatherer)
        train(first_step=last_step + 1, lr_scale=observer.verdict.lr_scale)
        while (verdict := observer.verdict).action == "rollback":
            checkpoints.load(verdict.to_step)
            train(first_step=verdict.to_step + 1, lr_scale=verdict.lr_scale)


def _teacher_of(policy: "Policy", config: Config) -> "Teacher | None":
    """The second set of weights, where the method or its KL term needs one."""
    from megatron_corew.mcore.model import DTYPES
    from megatron_corew.mcore.teacher import Teacher

    if not config.keeps_teacher:
        return None
    moves = config.preset.needs_teacher and config.preset.teacher_moves
    residual = DTYPES[config.teacher.residual] if moves else None
    offload = config.teacher.offload
    return Teacher(policy.optimizer, policy.ddp, residual=residual, offload=offload)


def _label_on_driver(
    judge: AnswerJudge,
    config: Config,
    questions: tuple[Question, ...],
    groups: list[RolloutGroup],
    teacher_groups: list[RolloutGroup],
) -> dict[View, ViewLabels]:
    method, soft_votes = config.preset, config.shaping.soft_votes
    return on_driver(
        lambda: label_views(judge, method, questions, groups, teacher_groups, soft_votes=soft_votes)
    )


def _stream(config: Config, loaded: LoadedQuestions) -> QuestionStream:
    return QuestionStream(loaded.questions, config.rollout.prompts_per_step, config.run.seed)


@contextmanager
def _own_server(config: Config, folder: RunFolder) -> Iterator[VllmServer | None]:
    """The server that this run starts and stops; None when it is given addresses."""
    if config.servers.policy:
        yield None
        return
    server = VllmServer(
        str(preflight.model_folder(config)),
        config.servers,
        dtype=config.model.dtype,
        max_model_len=_longest_sequence(config),
        seed=config.run.seed,
        log_path=folder.logs / "vllm.log",
        on_gpu=_has_gpu(),
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _longest_sequence(config: Config) -> int:
    return config.data.max_prompt_tokens + config.rollout.max_response_tokens


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _samplers(config: Config, server: VllmServer | None) -> tuple[Sampler, Sampler]:
    """The policy's and the teacher's access to the servers; they may share one."""

    def clients(addresses: tuple[str, ...]) -> list[ServerClient]:
        timeout_s = config.servers.request_timeout_s
        token = token_of(config.servers)
        return [ServerClient(a, timeout_s=timeout_s, token=token) for a in addresses]

    def connect() -> None:
        if server is not None:
            server.wait_until_healthy()
        for client in policy_clients + teacher_clients:
            client.check(dtype=config.model.dtype, min_model_len=_longest_sequence(config))

    policy_clients: list[ServerClient] = []
    teacher_clients: list[ServerClient] = []
    if is_driver():
        policy_clients = clients(config.servers.policy) or [_client_of(server)]
        teacher_clients = clients(config.servers.teacher)
    on_driver(connect)
    pool = ServerPool(policy_clients)
    teacher_pool = ServerPool(teacher_clients) if config.servers.teacher else pool
    from megatron_corew.mcore.model import DTYPES

    make = partial(
        Sampler,
        sampling=training_sampling(config),
        bucket_folder=Path(config.servers.bucket_folder),
        bucket_bytes=config.servers.bucket_mb * 2**20,
        dtype=DTYPES[config.model.dtype],
    )
    return make(pool, "policy"), make(teacher_pool, "teacher")


def _client_of(server: VllmServer | None) -> ServerClient:
    assert server is not None, "rank 0 has a server of its own where no address is given"
    return server.client()


def training_sampling(config: Config) -> Sampling:
    """How the responses that are trained on (and voted with) are drawn."""
    return Sampling(
        temperature=config.rollout.temperature,
        max_tokens=config.rollout.max_response_tokens,
        stop=config.rollout.stop,
        stop_token_ids=end_token_ids(preflight.model_folder(config)),
    )


def evaluation_sampling(config: Config) -> Sampling:
    """How held-out questions are answered."""
    return replace(training_sampling(config), temperature=config.evaluate.temperature)


@dataclass(frozen=True, slots=True)
class EvaluationSampler:
    """The policy's sampler with the evaluation's settings."""

    sampler: Sampler
    sampling: Sampling

    def sample(self, prompts: Sequence[Prompt], *, samples: int, seed: int) -> list[RolloutGroup]:
        """As ``Sampler.sample``."""
        return self.sampler.sample(prompts, samples=samples, seed=seed, sampling=self.sampling)


class Interrupt:
    """Raises KeyboardInterrupt as Python itself does, and remembers it.

    What goes wrong afterwards, such as a lost connection to a rank that has ended, is no news.
    """

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.came = True
        # Raised inside a callback of the interpreter it is shown, and lost.
        sys.unraisablehook = lambda *_: None
        raise KeyboardInterrupt


def main() -> None:
    """Run the trainer process that torchrun or srun started; the argument is the config file."""
    interrupt = Interrupt()
    config = load_config(Path(sys.argv[1]))
    try:
        run(config)
    except (KeyboardInterrupt, ValueError, RuntimeError) as error:
        if interrupt.came:
            sys.exit(128 + signal.SIGINT)
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        console.print(f"error: {error}", style="red")
        sys.exit(1)


if __name__ == "__main__":
    main()
