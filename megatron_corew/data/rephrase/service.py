"""Runs a rephrasing job against one server, from a caller that is not asynchronous."""

import asyncio
from collections.abc import Callable, Sequence

from megatron_corew.data.prepare.schema import PreparedRow
from megatron_corew.data.rephrase.client import ChatClient
from megatron_corew.data.rephrase.job import Rephrased, Rephraser
from megatron_corew.data.rephrase.journal import Journal
from megatron_corew.data.rephrase.preservation import Judge, Solver
from megatron_corew.data.rephrase.settings import RephraseConfig


def rephrase_all(
    config: RephraseConfig,
    rows: Sequence[PreparedRow],
    journal: Journal,
    judge: Judge,
    *,
    address: str,
    post_mortem: Callable[[], str],
    on_done: Callable[[bool], None],
) -> Rephrased:
    """Rephrase questions by the server at an address.

    Args:
        config: prompt, sampling, checks.
        rows: the questions.
        journal: what was done before; it grows.
        judge: compares the solver's answers, when ``preserve.samples`` asks for it.
        address: of the server.
        post_mortem: what there is to say of the server when it is gone.
        on_done: called once per question, with whether a rephrasing was accepted.

    Returns:
        The outcome for all rows.

    Raises:
        ValueError: the server has another model.
        RuntimeError: the server is gone; the journal has all that was done.
    """

    async def work() -> Rephrased:
        client = ChatClient(
            address,
            timeout_s=config.servers.request_timeout_s,
            tries=config.tries,
            connections=config.concurrency,
            post_mortem=post_mortem,
        )
        try:
            model = await client.served_model(config.model)
            solver = None
            if config.preserve.samples:
                chat = config.prompt.chat
                solver = Solver(client, model, config.preserve, judge, chat=chat)
            return await Rephraser(config, client, model, solver).run(rows, journal, on_done)
        finally:
            await client.close()

    return asyncio.run(work())
