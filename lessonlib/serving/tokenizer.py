"""Text to token ids and back: byte-level BPE from a GGUF's own vocabulary, or a checkpoint's tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers


class Tokenizer:
    """A trained tokenizer, its end tokens and its chat template.

    Args:
        bpe: from the `tokenizers` library.
    """

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        self.bpe = bpe

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self.bpe.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids."""
        return self.bpe.decode(list(token_ids), skip_special_tokens=skip_special)

    def chat(self, messages: str | Sequence[Mapping[str, str]]) -> list[int]:
        raise NotImplementedError
