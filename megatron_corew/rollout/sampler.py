"""The trainer's view of the inference engine: push weights, sample responses.

Every method of ``Sampler`` is collective: all ranks call it with the same arguments, rank 0
talks to the servers, and all ranks get the same result or the same error.
"""

import hashlib
import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from megatron_corew.ranks import is_driver, on_driver
from megatron_corew.rollout.push import UpdateClient, WeightPush
from megatron_corew.types import Prompt, Rollout, RolloutGroup

Role = Literal["policy", "teacher"]
PROMPTS_PER_REQUEST = 16
"""Each HTTP request costs some milliseconds on both sides; its answer comes when all is done."""
MAX_STOP_STRINGS = 4
"""Limit of the server's completions interface."""
LOWEST_LOGPROB = -9999.0
"""What the server writes for minus infinity and for NaN."""


class Client(UpdateClient, Protocol):
    """What a sampler needs of a server; see ``client.ServerClient``."""

    address: str

    def complete(self, body: Mapping[str, object]) -> dict[str, Any]: ...

    def abort_all(self) -> None: ...

    def weight_version(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a response is drawn and where it ends."""

    temperature: float
    """0 is greedy; the log-probs are those at temperature 1 then."""
    max_tokens: int
    """Longest response, in tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a response; its tokens keep them, its text does not."""
    stop_token_ids: tuple[int, ...] = ()
    """End tokens, see ``end_tokens.end_token_ids``."""

    def __post_init__(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(
                f"rollout.stop: need at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}. "
                "Keep those that come first."
            )


class ServerPool:
    """Servers that hold the weights of one role at a time.

    Args:
        clients: the servers, on rank 0; other ranks may have none.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = tuple(clients)
        self.holds: tuple[Role, int] | None = None
        """Role and version of the weights in force; None before a push and after a failed one."""


class Sampler:
    """One role's access to a pool; samplers of two roles may share a pool and take turns."""

    def __init__(
        self,
        pool: ServerPool,
        role: Role,
        *,
        sampling: Sampling,
        bucket_folder: Path,
        bucket_bytes: int,
        dtype: torch.dtype,
    ) -> None:
        self._pool = pool
        self._role: Role = role
        self._sampling = sampling
        self._bucket_folder = bucket_folder
        self._bucket_bytes = bucket_bytes
        self._dtype = dtype

    @property
    def version(self) -> int | None:
        """Version of this role's weights on the servers; None when they hold others or none."""
        holds = self._pool.holds
        return holds[1] if holds is not None and holds[0] == self._role else None

    def push(self, stream: Iterable[tuple[str, Tensor | None]], version: int) -> None:
        """Replace the servers' weights.

        All ranks must call and walk the same stream, which may gather tensors as it goes; it is
        walked to its end even when a server fails, so that no rank waits for another.

        Args:
            stream: Hugging Face names and whole tensors; ranks other than 0 may get None.
            version: stamp of every response made with these weights.

        Raises:
            RuntimeError: on every rank, when shared memory or a server failed. Sampling is
                refused from then on until a push succeeds.
        """
        self._pool.holds = None
        problem: OSError | RuntimeError | None = None
        weights = WeightPush(
            self._pool.clients,
            parent=self._bucket_folder,
            bucket_bytes=self._bucket_bytes,
            dtype=self._dtype,
        )
        with weights:
            if is_driver():
                problem = _problem_of(weights.begin)
            for name, tensor in stream:
                if is_driver() and problem is None:
                    problem = _problem_of(weights.add, name, tensor)

            def finish() -> None:
                if problem is not None:
                    raise RuntimeError(f"push of {self._role} weights {version}: {problem}")
                weights.finish(self._stamp(version))

            on_driver(finish)
        self._pool.holds = (self._role, version)

    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        samples: int,
        seed: int,
        sampling: Sampling | None = None,
    ) -> list[RolloutGroup]:
        """Draw responses; equal weights, prompts and seeds give equal bits.

        All ranks must call; returns when the slowest response is there.

        Args:
            prompts: any number, in any order.
            samples: responses per prompt.
            seed: number of this call; every prompt and sample gets noise of its own from it.
            sampling: instead of the sampler's own.

        Returns:
            One group per prompt, in the order of ``prompts``.

        Raises:
            RuntimeError: the servers hold other weights, or a server failed.
            ValueError: several samples at temperature 0, which would all be the same.
        """
        sampling = sampling or self._sampling
        version = self.version
        if version is None:
            holds = self._pool.holds
            raise RuntimeError(
                f"sampling as {self._role}: need a finished push of the {self._role}'s weights, "
                f"the servers hold {'none' if holds is None else f'{holds[0]} {holds[1]}'}."
            )
        if sampling.temperature == 0 and samples > 1:
            raise ValueError(
                f"evaluate.samples_per_prompt: need 1 at temperature 0, got {samples}. "
                "Raise evaluate.temperature."
            )
        return on_driver(lambda: self._ask(prompts, samples, seed, sampling, version))

    def _stamp(self, version: int) -> str:
        return f"{self._role}-{version}"

    def _ask(
        self, prompts: Sequence[Prompt], samples: int, seed: int, sampling: Sampling, version: int
    ) -> list[RolloutGroup]:
        """Ask the servers, on rank 0: prompt i goes to server i modulo their number."""
        clients = self._pool.clients
        for client in clients:
            if (stamp := client.weight_version()) != self._stamp(version):
                raise RuntimeError(
                    f"server {client.address}: need weights {self._stamp(version)}, got {stamp}. "
                    "Was it restarted, or is somebody else using it?"
                )
        seeds = prompt_seeds(prompts, seed=seed, role=self._role)
        jobs: list[tuple[Client, list[int], dict[str, object]]] = []
        for turn, client in enumerate(clients):
            mine = list(range(turn, len(prompts), len(clients)))
            bodies = request_bodies(
                [prompts[i] for i in mine], [seeds[i] for i in mine], samples, sampling
            )
            for first, body in zip(range(0, len(mine), PROMPTS_PER_REQUEST), bodies, strict=True):
                jobs.append((client, mine[first : first + PROMPTS_PER_REQUEST], body))
        groups: dict[int, RolloutGroup] = {}
        answers = _run_together([(client, body) for client, _, body in jobs])
        for (_, places, _), answer in zip(jobs, answers, strict=True):
            asked = [prompts[place] for place in places]
            read = read_answer(answer, asked, samples, sampling, version)
            groups.update(zip(places, read, strict=True))
        return [groups[place] for place in range(len(prompts))]


def prompt_seeds(prompts: Sequence[Prompt], *, seed: int, role: Role) -> list[int]:
    """One seed per prompt, from who samples, which view of which question, and the call.

    Sample k of a prompt uses seed + k. The place of a prompt in the batch plays no part; a
    prompt that occurs twice gets two seeds.

    Returns:
        Numbers in [0, 2^62), the same in every process and run. A CPU server uses only their
        low 32 bits, so those are mixed as well as the others.
    """
    seen: Counter[tuple[str, str]] = Counter()
    seeds = []
    for prompt in prompts:
        key = (prompt.question_id, prompt.view)
        text = f"{seed}/{role}/{prompt.view}/{seen[key]}/{prompt.question_id}"
        seen[key] += 1
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        seeds.append(int.from_bytes(digest, "big") >> 2)
    return seeds


def request_bodies(
    prompts: Sequence[Prompt], seeds: Sequence[int], samples: int, sampling: Sampling
) -> list[dict[str, object]]:
    """The completions requests of one call to one server; see ``batch_gate`` for the last key."""
    call = secrets.token_hex(8)
    bodies: list[dict[str, object]] = []
    for first in range(0, len(prompts), PROMPTS_PER_REQUEST):
        chunk = slice(first, first + PROMPTS_PER_REQUEST)
        bodies.append(
            {
                "prompt": [list(prompt.token_ids) for prompt in prompts[chunk]],
                "add_special_tokens": False,
                "n": samples,
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "stop": list(sampling.stop),
                "stop_token_ids": list(sampling.stop_token_ids),
                "seed": 0,
                "logprobs": 0,
                "return_token_ids": True,
                "request_id": f"{call}-{first}",
                "vllm_xargs": {
                    "corew_batch": call,
                    "corew_size": len(prompts) * samples,
                    "corew_first": first,
                    "corew_seeds": list(seeds[chunk]),
                },
            }
        )
    return bodies


def read_answer(
    answer: Mapping[str, Any],
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    version: int,
) -> list[RolloutGroup]:
    """Groups from the answer to one completions request.

    Raises:
        RuntimeError: the answer is not what was asked for.
    """
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    if len(choices) != len(prompts) * samples:
        raise RuntimeError(f"server: need {len(prompts) * samples} responses, got {len(choices)}.")
    rollouts = [read_choice(choice, sampling, version) for choice in choices]
    return [
        RolloutGroup(prompt=prompt, rollouts=tuple(rollouts[i * samples : (i + 1) * samples]))
        for i, prompt in enumerate(prompts)
    ]


def read_choice(choice: Mapping[str, Any], sampling: Sampling, version: int) -> Rollout:
    """One response as the server wrote it: its token ids are taken as they are.

    Raises:
        RuntimeError: it ended for another reason than an end token, a stop string or the token
            limit, or a token has no finite log-prob.
    """
    tokens, reason = tuple(choice["token_ids"]), choice["finish_reason"]
    logprobs = tuple(choice["logprobs"]["token_logprobs"])
    cut_early = reason == "length" and len(tokens) != sampling.max_tokens
    if reason not in ("stop", "length") or cut_early or not tokens:
        raise RuntimeError(
            f"server: need a response that ends by itself or after {sampling.max_tokens} tokens, "
            f"got finish reason {reason!r} after {len(tokens)}."
        )
    finite = all(p is not None and math.isfinite(p) and p > LOWEST_LOGPROB for p in logprobs)
    if len(logprobs) != len(tokens) or not finite:
        raise RuntimeError(
            f"server: need one finite log-prob for each of {len(tokens)} tokens, got {logprobs}. "
            "Are the pushed weights finite?"
        )
    return Rollout(
        token_ids=tokens,
        logprobs=logprobs,
        text=choice["text"],
        finish_reason=reason,
        weights_version=version,
    )


def _run_together(jobs: Sequence[tuple[Client, dict[str, object]]]) -> list[dict[str, Any]]:
    """Send all requests of a call at the same time and give their answers in order.

    A server starts a call when all of its requests are in, so when one fails, the others are
    aborted instead of waited for.
    """
    if not jobs:
        return []
    with ThreadPoolExecutor(max_workers=len(jobs)) as threads:
        answers = [threads.submit(client.complete, body) for client, body in jobs]
        done, waiting = wait(answers, return_when=FIRST_EXCEPTION)
        failed = [answer for answer in done if answer.exception() is not None]
        if waiting:
            for client in {id(client): client for client, _ in jobs}.values():
                _problem_of(client.abort_all)
    return [answer.result() for answer in failed[:1] or answers]


def _problem_of(action: Any, *arguments: Any) -> OSError | RuntimeError | None:
    """Run an action that talks to the world and give its error instead of raising it."""
    try:
        action(*arguments)
    except (OSError, RuntimeError) as error:
        return error
    return None
