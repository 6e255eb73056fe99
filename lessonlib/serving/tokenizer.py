"""Text to token ids and back: byte-level BPE from a GGUF's own vocabulary, or a checkpoint's tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

CONTROL = 3  # llama.cpp's kind of a token that text never contains


class Tokenizer:
    """A trained tokenizer and its chat template.

    Args:
        bpe: from the `tokenizers` library.
        chat_template: in Jinja, as checkpoints ship it; None where the model is not for chat.
    """

    def __init__(self, bpe: tokenizers.Tokenizer, chat_template: str | None = None) -> None:
        self.bpe, self.chat_template = bpe, chat_template

    @classmethod
    def from_file(cls, path: Path, chat_template: str | None = None) -> Tokenizer:
        """Read a tokenizer.json."""
        return cls(tokenizers.Tokenizer.from_file(str(path)), chat_template)

    @classmethod
    def from_gguf(
        cls, tokens: Sequence[str], merges: Sequence[str], kinds: Sequence[int], pre: str, chat_template: str | None
    ) -> Tokenizer:
        """Build SmolLM's tokenizer: digits stand alone, the rest is split as in GPT-2.

        Args:
            tokens: the vocabulary, in the order of its ids.
            merges: pairs of tokens, most frequent first.
            kinds: llama.cpp's kind of each token.
            pre: llama.cpp's name for how text is split first.
            chat_template: in Jinja.

        Raises:
            ValueError: text is to be split in another way than SmolLM's.
        """
        if pre != "smollm":
            raise ValueError(f"only the 'smollm' splitting is known, got {pre!r}: load the model from safetensors")
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        bpe = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        bpe.decoder = decoders.ByteLevel()
        bpe.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL])
        return cls(bpe, chat_template)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens that are spelled out in it, such as <|im_end|>, count as such."""
        return self.bpe.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids."""
        return self.bpe.decode(list(token_ids), skip_special_tokens=skip_special)

    def chat(self, messages: str | Sequence[Mapping[str, str]]) -> str:
        """The prompt that asks for the assistant's answer.

        Args:
            messages: what the user says, or a list of {"role": …, "content": …}.

        Raises:
            ValueError: the model has no chat template.
        """
        if self.chat_template is None:
            raise ValueError("this model has no chat template: give the prompt as plain text")
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # a template is code that came with the weights

        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(self.chat_template)
        return template.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="")
