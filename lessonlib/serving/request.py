"""What users send and get, and the state of a sequence in between."""

from __future__ import annotations

import time
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal, TypeGuard

import numpy as np

FinishReason = Literal["length", "stop", "error"]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, of Python or numpy; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    Args:
        max_tokens: most tokens to generate.
        temperature: logits are divided by it; 0 takes the most likely token (greedy).
        top_k: choose among the k most likely tokens, and those as likely as the last of them; None for all.
        top_p: choose among the most likely tokens that together have at least this probability (nucleus sampling,
            Holtzman et al. 2020, arXiv 1904.09751).
        seed: of the request's own generator; None draws one. Results do not depend on what else is in the batch.
        n: sequences to sample from the same prompt; sequence i has seed + i.
        stop_ids: tokens that end a sequence, besides those of the model. The stop token is part of the output.
        ignore_eos: go on after the model's own end tokens.

    Raises:
        ValueError: a value is out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    n: int = 1
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("n", 1), ("top_k", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name in ("top_k", "seed"):
                continue
            if not is_whole(value) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not isinstance(self.temperature, Real) or not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a number of at least 0, got {self.temperature!r}")
        if not isinstance(self.top_p, Real) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be a number above 0 and at most 1, got {self.top_p!r}")
        if not isinstance(self.stop_ids, Collection) or isinstance(self.stop_ids, str | bytes):
            raise ValueError(f"stop_ids must be a tuple of token ids, got {self.stop_ids!r}")


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence in the engine: its tokens, and how far its cache is computed.

    Args:
        seq_id: (request, index among the request's n sequences): its name in the block tables.
        prompt: token ids of the prompt.
        params: how to sample.
        tokens: prompt and generated tokens. The newest one is not in the cache yet.
        n_computed: leading tokens whose keys and values are cached.
        n_draft_computed: likewise, in the cache of a draft model.
        forks_to_make: samples of the same prompt that start when its prefill is done.
    """

    seq_id: tuple[int, int]
    prompt: list[int]
    params: SamplingParams
    rng: np.random.Generator
    tokens: list[int]
    n_computed: int = 0
    n_draft_computed: int = 0
    forks_to_make: int = 0
    finish_reason: FinishReason | None = None
    arrived: float = field(default_factory=time.perf_counter)
    token_times: list[float] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        """The generated tokens."""
        return self.tokens[len(self.prompt) :]

    @property
    def n_left(self) -> int:
        """Tokens that it may still generate."""
        return len(self.prompt) + self.params.max_tokens - len(self.tokens)

    @property
    def n_uncomputed(self) -> int:
        return len(self.tokens) - self.n_computed


@dataclass(slots=True)
class RequestOutput:
    """What a request has given so far, or why it failed.

    Args:
        request_id: as `add_request` returned it.
        index: which of the request's n sequences this is.
        token_ids: all generated tokens so far.
        new_token_ids: those of this step (streaming).
        text: decoded token_ids; "" where the engine has no tokenizer.
        finish_reason: None while it runs; "length", "stop" or "error".
        error: what was wrong, and what to do.
        ttft: seconds from arrival to the first token; None before it.
        tpot: mean seconds per token after the first; None before the second.
    """

    request_id: int
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    new_token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    ttft: float | None = None
    tpot: float | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @classmethod
    def of(cls, seq: Sequence, n_new: int, text: str) -> RequestOutput:
        output, times = seq.output, seq.token_times
        return cls(
            *seq.seq_id,
            token_ids=output,
            new_token_ids=output[len(output) - n_new :],
            text=text,
            finish_reason=seq.finish_reason,
            ttft=times[0] - seq.arrived if times else None,
            tpot=(times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        )


def as_token_ids(prompt: object, vocab_size: int) -> list[int]:
    """Check a prompt that is given as token ids.

    Raises:
        ValueError: it is empty, holds something else than whole numbers, or numbers outside the vocabulary.
    """
    prompt = prompt.tolist() if hasattr(prompt, "tolist") else prompt  # tensors and arrays
    if not isinstance(prompt, Seq) or len(prompt) == 0:
        raise ValueError(f"a prompt is a text or a list of at least one token id, got {prompt!r}")
    for token in prompt:
        if not is_whole(token):
            raise ValueError(f"token ids are whole numbers, got {token!r} of type {type(token).__name__}")
        if not 0 <= token < vocab_size:
            raise ValueError(f"token ids are from 0 to {vocab_size - 1}, got {token}")
    return [int(token) for token in prompt]
