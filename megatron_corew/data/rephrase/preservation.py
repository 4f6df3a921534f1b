"""Asks a solver whether a question and its rephrasing have the same answer."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from megatron_corew.data.rephrase.client import ChatClient
from megatron_corew.data.rephrase.settings import PreserveConfig
from megatron_corew.types import Vote

ANSWER_CHANGED = "answer changed"
ANSWER_UNDECIDED = "answer undecided"


class Judge(Protocol):
    """What is needed of ``answers.AnswerJudge``."""

    def votes(self, groups: Sequence[Sequence[str]]) -> list[Vote]: ...

    def agreement(
        self, groups: Sequence[Sequence[str]], labels: Sequence[str | None]
    ) -> list[list[float]]: ...


class Solver:
    """A model that answers questions, several times each, and the vote over its answers."""

    def __init__(
        self,
        client: ChatClient,
        model: str,
        config: PreserveConfig,
        judge: Judge,
        *,
        chat: bool,
    ) -> None:
        self._client = client
        self._model = model
        self._config = config
        self._judge = judge
        self._chat = chat

    async def verdict(self, original: str, rephrased: str, seed: int) -> tuple[str | None, str]:
        """Compare the majority answers to both versions.

        Args:
            original: the question.
            rephrased: its rephrasing.
            seed: of the solver's samples.

        Returns:
            None, or why the rephrasing is not accepted; and both answers in words.

        Raises:
            RequestRefused: the solver's server will not answer.
            RuntimeError: the server is gone.
        """
        both = await asyncio.gather(self._solve(original, seed), self._solve(rephrased, seed))
        # The judge may wait for a math-verify process: the other requests go on meanwhile.
        first, second = await asyncio.to_thread(self._judge.votes, both)
        detail = f"answers: {first.label} ({first.share:.2f}), {second.label} ({second.share:.2f})"
        if first.label is None or second.label is None:
            refused = self._config.undecided == "refuse"
            return (ANSWER_UNDECIDED if refused else None), f"undecided; {detail}"
        boxed = [[rf"\boxed{{{second.label}}}"]]
        ((agrees,),) = await asyncio.to_thread(self._judge.agreement, boxed, [first.label])
        return (None if agrees else ANSWER_CHANGED), detail

    async def _solve(self, question: str, seed: int) -> list[str]:
        sampling: Mapping[str, object] = {
            "model": self._model,
            "n": self._config.samples,
            "temperature": self._config.temperature,
            "max_tokens": self._config.max_tokens,
            "seed": seed,
        }
        prompt: str | list[dict[str, str]] = question
        if self._chat:
            prompt = [
                {"role": "system", "content": self._config.instruction},
                {"role": "user", "content": question},
            ]
        return [one.text for one in await self._client.complete(prompt, sampling)]
