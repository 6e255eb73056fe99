"""Speculative decoding: where drafts come from, and how the target's own law decides over them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from lessonlib.serving.model import Decoder
from lessonlib.serving.request import Sequence, is_whole
from lessonlib.serving.runner import Runner, Work
from lessonlib.serving.sampler import draw, probabilities

# The form of `verify`: (draft, p, q, rng) -> emitted tokens, and how many drafts stay in the cache
Verify = Callable[[Seq[int], np.ndarray, np.ndarray, np.random.Generator], tuple[Seq[int], int]]
# The form of exercise 4: (p, q, rng) -> emitted tokens
SpeculativeRound = Callable[[np.ndarray, np.ndarray, np.random.Generator], Seq[int]]


def verify(draft: Seq[int], p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> tuple[list[int], int]:
    """Accept or reject drawn tokens so that every emitted token has exactly the law p.

    Token x_i is kept with probability min(1, p_i(x_i) / q_i(x_i)). The first one that is not gives way to a draw from
    max(0, p_i - q_i), normalised, and ends the round; where all are kept, one more comes from the last row of p
    (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1).

    Args:
        draft: γ proposed tokens, token i drawn from q[i].
        p: laws of the target, shape (γ + 1, V).
        q: laws of the draft, shape (γ, V).
        rng: of the request.

    Returns:
        The 1 to γ + 1 emitted tokens, and how many drafts keep their place in the cache.
    """
    for i, token in enumerate(draft):
        if rng.random() * q[i, token] >= p[i, token]:
            residual = np.maximum(p[i] - q[i], 0)
            return [*draft[:i], draw(residual if residual.any() else p[i], rng)], i
    return [*draft, draw(p[-1], rng)], len(draft)


def from_round(speculative_round: SpeculativeRound) -> Verify:
    """Make a `verify` of exercise 4's function, which draws the drafts itself.

    It is given a q that puts all its mass on the token that was proposed: then that is what it draws. A fixed
    proposal is a law like any other, so the output is exact; it is kept with probability p(x).
    """

    def verify(draft: Seq[int], p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> tuple[list[int], int]:
        emitted = [int(token) for token in speculative_round(p, one_hot(draft, p.shape[1]), rng)]
        return emitted, len(emitted) - 1

    return verify


def one_hot(tokens: Seq[int], vocab_size: int) -> np.ndarray:
    """The laws that always give these tokens, shape (n, V)."""
    q = np.zeros((len(tokens), vocab_size))
    q[np.arange(len(tokens)), list(tokens)] = 1
    return q


@dataclass(slots=True)
class Draft:
    """Proposed tokens of one sequence; `q` holds the law of each, or nothing where the tokens were not drawn."""

    tokens: list[int] = field(default_factory=list)
    q: list[np.ndarray] = field(default_factory=list)

    def laws(self, vocab_size: int) -> np.ndarray:
        return np.stack(self.q) if self.q else one_hot(self.tokens, vocab_size)


class Drafter(Protocol):
    """Proposes tokens that may follow each sequence, at most limits[i] of them for sequence i."""

    def attach(self, target: Runner) -> Runner | None:
        """Called once by the engine; returns the runner of a cache of its own, which follows the same block tables."""

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[Draft]: ...


class PromptLookup:
    """Drafts without a model: what followed the last time that the newest n tokens occurred (Saxena 2023).

    Args:
        longest: first look for so many tokens, then for fewer.

    Raises:
        ValueError: longest is below 1.
    """

    def __init__(self, longest: int = 3) -> None:
        if not is_whole(longest) or longest < 1:
            raise ValueError(f"longest must be a whole number of at least 1, got {longest!r}")
        self.longest = longest

    def attach(self, target: Runner) -> None:
        return None

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[Draft]:
        return [Draft(self._look_up(seq.tokens, n)) for seq, n in zip(sequences, limits, strict=True)]

    def _look_up(self, tokens: list[int], limit: int) -> list[int]:
        for n in range(min(self.longest, len(tokens) - 1), 0, -1):
            newest = tokens[-n:]
            for start in range(len(tokens) - n - 1, -1, -1):
                if tokens[start : start + n] == newest:
                    return tokens[start + n : start + n + limit]
        return []


class DraftModel:
    """A smaller model with the same tokenizer, which decodes ahead on a cache of its own.

    Its cache follows the target's block tables, so that it needs no allocator. It starts empty at each admission: what
    the target found in its prefix cache, the draft computes again.

    Args:
        model: the draft model.
    """

    def __init__(self, model: Decoder) -> None:
        self.model = model

    def attach(self, target: Runner) -> Runner:
        if self.model.cfg.shape.vocab_size != target.model.cfg.shape.vocab_size:
            raise ValueError(
                f"draft and target must share a vocabulary, got {self.model.cfg.shape.vocab_size} "
                f"and {target.model.cfg.shape.vocab_size} tokens"
            )
        self.runner = Runner(self.model, target.n_blocks, target.block_size, target.manager)
        return self.runner

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[Draft]:
        starts = [seq.n_draft_computed for seq in sequences]
        drafts = decode_ahead(self.runner, sequences, starts, limits)
        for seq, draft in zip(sequences, drafts, strict=True):
            if draft.tokens:
                seq.n_draft_computed = len(seq.tokens) + len(draft.tokens) - 1
        return drafts


class EarlyExit:
    """Drafts from the target's own first layers and output matrix, on the target's own cache.

    What those layers write for a draft token is what the target will write too, so there is nothing to roll back.

    Args:
        n_layers: layers to run.
    """

    def __init__(self, n_layers: int) -> None:
        self.n_layers = n_layers

    def attach(self, target: Runner) -> None:
        most = target.model.cfg.shape.n_layers
        if not is_whole(self.n_layers) or not 1 <= self.n_layers <= most:
            raise ValueError(f"n_layers must be a whole number from 1 to {most}, got {self.n_layers!r}")
        self.runner = target

    def propose(self, sequences: list[Sequence], limits: list[int]) -> list[Draft]:
        starts = [seq.n_computed for seq in sequences]
        return decode_ahead(self.runner, sequences, starts, limits, self.n_layers)


def decode_ahead(
    runner: Runner, sequences: list[Sequence], starts: list[int], limits: list[int], n_layers: int | None = None
) -> list[Draft]:
    """Let a model decode up to limits[i] tokens after each sequence, which its cache holds up to starts[i]."""
    drafts = [Draft() for _ in sequences]
    for step in range(max(limits, default=0)):
        active = [i for i, limit in enumerate(limits) if limit > step]
        work = [_next_work(sequences[i], drafts[i], starts[i]) for i in active]
        logits = runner.logits(work, [1] * len(work), n_layers)
        for i, greedy, row in zip(active, logits.argmax(-1).tolist(), logits, strict=True):
            _extend(drafts[i], greedy, row, sequences[i])
    return drafts


def _next_work(seq: Sequence, draft: Draft, start: int) -> Work:
    if not draft.tokens:
        return Work(seq.seq_id, seq.tokens[start:], start)
    return Work(seq.seq_id, draft.tokens[-1:], len(seq.tokens) + len(draft.tokens) - 1)


def _extend(draft: Draft, greedy: int, logits: Tensor, seq: Sequence) -> None:
    if seq.params.temperature == 0:
        draft.tokens.append(greedy)
        return
    q = probabilities(logits[None].double(), seq.params)[0].cpu().numpy()
    draft.tokens.append(draw(q, seq.rng))
    draft.q.append(q)
