"""Renders questions to the text and the token ids that the policy sees.

Which begin-of-text token a prompt gets: with a chat template, the one the template writes;
without it, the one the tokenizer puts before a text of its own accord. Nothing else is added,
so a prompt never has two and never ends with an end token.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from megatron_corew.config import DataConfig
from megatron_corew.data.views import Messages
from megatron_corew.types import Prompt, View

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptRenderer:
    """The rendering of one run: system prompt, chat template, tokenizer.

    Raises:
        ValueError: the knobs contradict each other, the tokenizer, or name no readable file.
    """

    def __init__(self, config: DataConfig, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._template = _template(config, tokenizer)
        if config.system_prompt is not None and not config.chat_template:
            raise ValueError(
                "data.system_prompt: needs data.chat_template=true, got false. Put the text into "
                "the questions or set data.system_prompt=null."
            )
        self._config = config
        self._tokenizer = tokenizer
        first = tokenizer("")["input_ids"][:1]
        has_bos = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
        self._prefix = first if has_bos and not config.chat_template else []

    def prompt(self, question: str | Messages, view: View, question_id: str) -> Prompt:
        """Render and tokenise one view.

        Args:
            question: plain text, or messages.
            view: which view it is.
            question_id: for the prompt and for messages.

        Returns:
            The prompt, begin token included.

        Raises:
            ValueError: the template or the tokenizer refuses the question.
        """
        if self._config.chat_template:
            text = self._with_template(question, question_id)
        else:
            text = self._without_template(question, question_id)
        try:
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        except Exception as error:
            # The tokenizers library raises bare exceptions: there is no narrower type to name.
            raise ValueError(
                f"data: the policy's tokenizer cannot read the {view} question {question_id} "
                f"({text[:60]!r}): {error}. Choose data or a model.path that fit each other."
            ) from error
        return Prompt(
            question_id=question_id, view=view, text=text, token_ids=(*self._prefix, *ids)
        )

    def _without_template(self, question: str | Messages, question_id: str) -> str:
        if isinstance(question, str):
            return question
        # One user message is a question like any other; who said what would be lost in more.
        if [message["role"] for message in question] == ["user"]:
            return question[0]["content"]
        raise ValueError(
            "data.chat_template: need true for questions that are several messages, got false "
            f"(question {question_id}). Set data.chat_template=true."
        )

    def _with_template(self, question: str | Messages, question_id: str) -> str:
        system = self._config.system_prompt
        messages = (
            [{"role": "user", "content": question}]
            if isinstance(question, str)
            else [dict(message) for message in question]
        )
        if system is not None and any(message["role"] == "system" for message in messages):
            raise ValueError(
                "data.system_prompt: need questions without a system message of their own, got "
                f"one with it (question {question_id}). Set data.system_prompt=null, or take the "
                "messages out with `corew prepare`."
            )
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                chat_template=self._template,
                add_generation_prompt=True,
                tokenize=False,
            )
        except TemplateError as error:
            raise ValueError(
                f"data.chat_template: the template refuses question {question_id}: "
                f"{error}. Change the messages or set data.chat_template=false."
            ) from error
        return str(text)


def _template(config: DataConfig, tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """The template to use; None: there is none, or the tokenizer's own."""
    if config.chat_template_file is not None:
        if not config.chat_template:
            raise ValueError(
                "data.chat_template_file: needs data.chat_template=true, got false. Set one of "
                "the two."
            )
        try:
            return Path(config.chat_template_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(
                f"data.chat_template_file: need a readable Jinja file: {error}."
            ) from error
    if config.chat_template and not tokenizer.chat_template:
        raise ValueError(
            "data.chat_template: need a tokenizer with a chat template, got one without. Set "
            "data.chat_template_file (configs/templates has some) or data.chat_template=false."
        )
    return None
