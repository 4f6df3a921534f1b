"""Finds questions whose prompt is too long for the policy."""

from megatron_corew.data.prepare.schema import PreparedRow
from megatron_corew.data.rendering import PromptRenderer


def prompt_tokens(row: PreparedRow, renderer: PromptRenderer) -> int:
    """Length of the longer view, rendered as a run renders it.

    Args:
        row: the question; a pair stays or leaves together.
        renderer: system prompt, chat template and tokenizer of the run.

    Returns:
        Tokens.

    Raises:
        ValueError: the template or the tokenizer refuses the question.
    """
    views = [renderer.prompt(row.messages, "original", row.id)]
    if row.rephrased_messages is not None:
        views.append(renderer.prompt(row.rephrased_messages, "rephrased", row.id))
    return max(len(view.token_ids) for view in views)
