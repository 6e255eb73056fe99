"""Which sequences run in the next step, and with how many tokens."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import islice

from lessonlib.records import Admission, OutOfBlocks
from lessonlib.serving.block_manager import Allocator, BlockManager, blocks_needed
from lessonlib.serving.request import Sequence

# The form of `admit`: (waiting, n_free, n_blocks, block_size, token_budget) -> one Admission per waiting request
Admit = Callable[[Seq[int], int, int, int, int], Seq[Admission]]


def admit(waiting: Seq[int], n_free: int, n_blocks: int, block_size: int, token_budget: int) -> list[Admission]:
    """Which waiting requests join now, first come, first served, and with how many tokens.

    A request joins where the free blocks hold its tokens and the next one. One that does not fit makes those behind it
    wait too; one that even the empty pool could not hold is told so, and holds up nobody.

    Args:
        waiting: tokens to prefill of each, the oldest first.
        n_free, n_blocks: free blocks, and all blocks of the pool.
        block_size: tokens per block.
        token_budget: tokens that this step may still compute; where none is left, requests wait.

    Returns:
        For each, "now", "later" or "never", and the tokens to compute in this step.
    """
    answers: list[Admission] = []
    blocked = False
    for n_tokens in waiting:
        n_needed = blocks_needed(n_tokens + 1, block_size)
        if n_needed > n_blocks:
            answers.append(Admission("never", 0))
            continue
        blocked = blocked or n_needed > n_free or token_budget == 0
        chunk = 0 if blocked else min(n_tokens, token_budget)
        if not blocked:
            n_free, token_budget = n_free - n_needed, token_budget - chunk
        answers.append(Admission("later" if blocked else "now", chunk))
    return answers


@dataclass(slots=True)
class Step:
    """What one engine step computes.

    Args:
        sequences, n_tokens: who runs, and how many of their uncomputed tokens.
        copies: blocks to copy first, (source, copy).
        n_admitted, n_cached: tokens of the sequences that started, and how many the prefix cache had.
        n_preempted: sequences that lost their blocks.
        refused: sequences that can never run.
    """

    sequences: list[Sequence] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    n_admitted: int = 0
    n_cached: int = 0
    n_preempted: int = 0
    refused: list[Sequence] = field(default_factory=list)

    def add(self, seq: Sequence, n_tokens: int) -> None:
        self.sequences.append(seq)
        self.n_tokens.append(n_tokens)


class Scheduler:
    """First come, first served, with a token budget per step.

    Running sequences come first, in the order of their arrival, whether they decode (one token) or are still in
    prefill (a chunk); waiting ones join while budget, seats and blocks last. So chunks of long prompts share a step
    with decodes (Agrawal et al. 2024, arXiv 2403.02310). Where a running sequence gets no block, the newest one is
    preempted: all of its blocks go, and it computes prompt and generated tokens again later (Kwon et al. 2023, 4.5).

    Args:
        manager: of the blocks.
        n_blocks, block_size: blocks in the pool, tokens per block.
        max_tokens: token budget of a step.
        max_sequences: most sequences that run at a time.
        chunked_prefill: whether a prompt is split over steps; if not, it runs in one piece, whatever the budget.
        continuous: False starts a new batch only when the last one has ended, and prefills it in one step, whatever the
            budget (static batching, to compare with).
        admit: decides which waiting sequences start.
    """

    def __init__(
        self,
        manager: Allocator,
        n_blocks: int,
        block_size: int,
        max_tokens: int,
        max_sequences: int,
        chunked_prefill: bool = True,
        continuous: bool = True,
        admit: Admit = admit,
    ) -> None:
        self.manager, self.n_blocks, self.block_size = manager, n_blocks, block_size
        self.max_tokens, self.max_sequences = max_tokens, max_sequences
        self.chunked_prefill, self.continuous, self.admit = chunked_prefill, continuous, admit
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.prefix_cache = manager if isinstance(manager, BlockManager) and manager.prefix_caching else None

    def schedule(self) -> Step:
        """Choose the sequences of the next step and reserve the slots that they will write."""
        step, budget = Step(), self.max_tokens if self.continuous else sys.maxsize
        may_join = self.continuous or not self.running
        i = 0
        while i < len(self.running) and budget > 0:  # the list shrinks at its end when others are preempted
            seq = self.running[i]
            n = self._chunk(seq, budget)
            if not self._reserve_or_preempt(seq, seq.n_computed + n, step):
                break
            step.add(seq, n)
            budget -= n
            i += 1
        if may_join and not step.n_preempted and budget > 0:
            self._start_waiting(step, budget)
        return step

    def reserve(self, seq: Sequence, n_tokens: int, copies: list[tuple[int, int]]) -> bool:
        """Have slots for a sequence's first n_tokens tokens; False where blocks ran out on the way.

        Slots stay reserved when drafts are rejected: the next tokens are written over them.
        """
        for _ in range(n_tokens - self.manager.lengths[seq.seq_id]):
            try:
                copied = self.manager.append(seq.seq_id)
            except OutOfBlocks:
                return False
            if copied is not None:
                copies.append(copied)
        return True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Start a sequence that shares the cache of a running one, right behind it in the order of arrival."""
        self.manager.fork(parent.seq_id, child.seq_id)
        child.n_computed = parent.n_computed
        self.running.insert(self.running.index(parent) + 1, child)

    def finish(self, seq: Sequence) -> None:
        """Give back a sequence's blocks, or take it out of the queue."""
        if seq in self.running:
            self.running.remove(seq)
            self.manager.free(seq.seq_id)
        else:
            self.waiting.remove(seq)

    def _chunk(self, seq: Sequence, budget: int) -> int:
        return min(seq.n_uncomputed, budget) if self.chunked_prefill else seq.n_uncomputed

    def _reserve_or_preempt(self, seq: Sequence, n_tokens: int, step: Step) -> bool:
        while not self.reserve(seq, n_tokens, step.copies):
            newest = self.running.pop()
            self.manager.free(newest.seq_id)
            newest.n_computed = newest.n_draft_computed = 0
            self.waiting.appendleft(newest)
            step.n_preempted += 1
            if newest is seq:
                return False
        return True

    def _start_waiting(self, step: Step, budget: int) -> None:
        candidates = list(islice(self.waiting, self._n_seated()))
        lengths = [len(seq.tokens) - self._n_shared(seq) for seq in candidates]
        allowed = budget if self.chunked_prefill else sum(lengths)
        answers = self.admit(lengths, self.manager.n_free, self.n_blocks, self.block_size, allowed)
        for seq, (answer, n_allowed) in zip(candidates, answers, strict=True):
            if answer == "later" or budget <= 0:
                break
            if answer == "never":
                step.refused.append(seq)
                continue
            try:
                cached = self.manager.allocate(seq.seq_id, seq.tokens if self.prefix_cache else len(seq.tokens))
            except OutOfBlocks:
                break
            seq.n_computed = cached if self.prefix_cache is not None and isinstance(cached, int) else 0
            step.n_admitted += len(seq.tokens)
            step.n_cached += seq.n_computed
            self.waiting.remove(seq)
            self.running.append(seq)
            n = min(n_allowed, self._chunk(seq, budget))
            step.add(seq, n)
            budget -= n

    def _n_seated(self) -> int:
        """How many of the waiting find a seat, where one prompt with n samples needs n."""
        seats = self.max_sequences - sum(1 + seq.forks_to_make for seq in self.running)
        n = 0
        for seq in self.waiting:
            seats -= 1 + seq.forks_to_make
            if seats < 0:
                break
            n += 1
        return n

    def _n_shared(self, seq: Sequence) -> int:
        """Tokens in blocks that running sequences hold already: those cost no free block."""
        return self.prefix_cache.n_held(seq.tokens) * self.block_size if self.prefix_cache else 0
