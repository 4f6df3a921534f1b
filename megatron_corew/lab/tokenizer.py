r"""The lab's tokenizer: one token per character, and one for ``\boxed{``.

The end of a response is a special token of its own, so decoded text keeps its closing brace.
There is no begin token and no chat template.
"""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, BOX = "<pad>", "<eos>", "\\boxed{"
TOKENS = (PAD, EOS, BOX, "}", *string.digits, *"+=;,:? ", *string.ascii_lowercase)
"""The vocabulary; a token's id is its place."""


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """Build the tokenizer; ``save_pretrained`` writes its files.

    Args:
        max_length: Longest sequence of the model, in tokens.

    Returns:
        A tokenizer whose decoded text equals the encoded text. Encoding a character outside
        the vocabulary raises.
    """
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<none>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
