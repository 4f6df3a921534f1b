"""Rephrases questions: ask, check, ask again, give up; all at once and from where it stopped."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from megatron_corew.data.prepare.quarantine import Quarantined
from megatron_corew.data.prepare.rephrasings import lost_numbers, rephrasing_faults
from megatron_corew.data.prepare.schema import PreparedRow
from megatron_corew.data.rephrase.client import ChatClient, RequestRefused
from megatron_corew.data.rephrase.journal import Attempt, Journal, Key
from megatron_corew.data.rephrase.preservation import Solver
from megatron_corew.data.rephrase.prompt import prompt_version, read_answer, request_text
from megatron_corew.data.rephrase.settings import RephraseConfig

NO_RESULT = "no result between the markers"
CUT_OFF = "cut off at the longest length"
REFUSED = "refused by the server"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rephrased:
    """All questions of a job after their last attempt."""

    rows: tuple[PreparedRow, ...]
    """Questions with their new rephrasing, in the order of the data."""
    quarantined: tuple[Quarantined, ...]
    """Questions of which no attempt was accepted."""
    faults: Mapping[str, int]
    """Fault -> attempts of this data and prompt that had it, earlier runs included."""
    asked: int
    """Attempts made now; the others were in the journal."""


class Rephraser:
    """A model, a prompt and the checks on what comes back.

    Args:
        config: prompt, sampling, checks.
        client: the server.
        model: the server's name of the model.
        solver: checks that the answer survives; None: not checked.
    """

    def __init__(
        self, config: RephraseConfig, client: ChatClient, model: str, solver: Solver | None
    ) -> None:
        self._config = config
        self._client = client
        self._model = model
        self._solver = solver
        self._version = prompt_version(config)

    async def run(
        self,
        rows: Sequence[PreparedRow],
        journal: Journal,
        on_done: Callable[[bool], None],
    ) -> Rephrased:
        """Rephrase all questions that the journal does not have yet.

        Args:
            rows: any rephrasing they have is replaced.
            journal: grows by every attempt.
            on_done: called once per question, with whether a rephrasing was accepted.

        Returns:
            The outcome for all rows.

        Raises:
            RuntimeError: the server is gone; the journal has all that was done.
        """
        waiting = iter(rows)
        before = sum(len(journal.attempts(self._key(row))) for row in rows)
        # Workers share one iterator: a task for every question would hold them all in memory.
        workers = [
            asyncio.create_task(self._work(waiting, journal, on_done))
            for _ in range(min(self._config.concurrency, len(rows)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return self._outcome(rows, journal, before)

    async def _work(
        self, waiting: Iterator[PreparedRow], journal: Journal, on_done: Callable[[bool], None]
    ) -> None:
        for row in waiting:
            attempts = list(journal.attempts(self._key(row)))
            while not _is_over(attempts, self._config.check.attempts):
                attempts.append(await self._attempt(row, len(attempts)))
                journal.append(attempts[-1])
            on_done(_accepted(attempts) is not None)

    async def _attempt(self, row: PreparedRow, number: int) -> Attempt:
        seed = _seed(self._config.sampling.seed, row.id, number)
        try:
            rephrased, fault, detail = await self._ask(row.question, seed)
        except RequestRefused as error:
            rephrased, fault, detail = None, REFUSED, str(error)
        item, version, digest = self._key(row)
        return Attempt(
            id=item,
            version=version,
            digest=digest,
            number=number,
            seed=seed,
            fault=fault,
            detail=detail,
            rephrased=rephrased,
        )

    async def _ask(self, question: str, seed: int) -> tuple[str | None, str | None, str]:
        """One rephrasing, its fault or None, and the detail."""
        text = request_text(self._config, question)
        prompt = [{"role": "user", "content": text}] if self._config.prompt.chat else text
        (answer,) = await self._client.complete(prompt, self._sampling(seed))
        rephrased = read_answer(self._config, answer.text)
        if rephrased is None or not answer.is_whole:
            return None, (NO_RESULT if answer.is_whole else CUT_OFF), answer.text[-200:]
        check = self._config.check
        found = rephrasing_faults(question, rephrased, check.limits)
        fault = next((one for one in found if one in check.refuse), None)
        if fault == "numbers lost":
            return rephrased, fault, f"lost: {', '.join(lost_numbers(question, rephrased))}"
        if fault is not None or self._solver is None:
            return rephrased, fault, ""
        verdict, detail = await self._solver.verdict(question, rephrased, seed)
        return rephrased, verdict, detail

    def _sampling(self, seed: int) -> dict[str, object]:
        sampling = self._config.sampling
        body: dict[str, object] = {
            "model": self._model,
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": seed,
        }
        if self._config.prompt.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self._config.prompt.thinking}
        return body

    def _key(self, row: PreparedRow) -> Key:
        return (row.id, self._version, hashlib.sha256(row.question.encode()).hexdigest()[:12])

    def _outcome(self, rows: Sequence[PreparedRow], journal: Journal, before: int) -> Rephrased:
        kept: list[PreparedRow] = []
        quarantined: list[Quarantined] = []
        faults: Counter[str] = Counter()
        total = 0
        for row in rows:
            attempts = journal.attempts(self._key(row))
            total += len(attempts)
            faults.update(one.fault for one in attempts if one.fault is not None)
            accepted = _accepted(attempts)
            if accepted is not None:
                kept.append(_with_rephrasing(row, accepted))
            else:
                last = attempts[-1]
                detail = f"{len(attempts)} attempts, the last: {last.detail or last.rephrased}"
                quarantined.append(
                    Quarantined.of(row, reason=f"rephrasing {last.fault}", detail=detail)
                )
        return Rephrased(
            rows=tuple(kept),
            quarantined=tuple(quarantined),
            faults=dict(faults.most_common()),
            asked=total - before,
        )


def _is_over(attempts: Sequence[Attempt], limit: int) -> bool:
    return _accepted(attempts) is not None or len(attempts) >= limit


def _accepted(attempts: Sequence[Attempt]) -> str | None:
    return next((one.rephrased for one in attempts if one.fault is None), None)


def _with_rephrasing(row: PreparedRow, text: str) -> PreparedRow:
    """The row with the last message in new words; those before it stay."""
    last = {**row.messages[-1], "content": text}
    return replace(row, rephrased_messages=(*row.messages[:-1], last))


def _seed(seed: int, row_id: str, number: int) -> int:
    """A seed of 31 bits that depends on nothing but question and attempt."""
    digest = hashlib.sha256(f"{seed}/{row_id}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
