"""Reference answers of exercise 3: a block allocator with copy-on-write, and a prefix cache on top of it."""

# mypy: disable-error-code="override"
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy as np

from lessonlib.records import OutOfBlocks


class BlockAllocator:
    """Memory manager of a paged KV cache (Kwon et al. 2023, arXiv:2309.06180, section 4).

    Args:
        n_blocks: physical blocks in the pool, at least 1; their ids are 0 to n_blocks - 1.
        block_size: tokens per block, at least 1.

    Attributes:
        block_tables: seq_id -> list of block ids; entry i holds tokens i·block_size to (i + 1)·block_size - 1.
        lengths: seq_id -> tokens of the sequence so far.
        ref_counts: block id -> how many tables hold the block.
        n_free: blocks that no table holds.

    A call that raises leaves all of this as it was.

    Raises:
        ValueError: n_blocks or block_size is below 1.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        if n_blocks < 1 or block_size < 1:
            raise ValueError(f"n_blocks and block_size must be at least 1, got {n_blocks!r} and {block_size!r}")
        self.block_size = block_size
        self.block_tables: dict[Hashable, list[int]] = {}
        self.lengths: dict[Hashable, int] = {}
        self.ref_counts = [0] * n_blocks
        self._free = OrderedDict.fromkeys(range(n_blocks))  # an ordered set: free for longest comes first

    @property
    def n_free(self) -> int:
        return len(self._free)

    def allocate(self, seq_id: Hashable, n_tokens: int) -> None:
        """Give a new sequence the blocks for its n_tokens tokens, at least 1.

        Raises:
            OutOfBlocks: fewer blocks are free than it needs.
            ValueError: seq_id is in use, or n_tokens is below 1.
        """
        self._must_be_new(seq_id)
        if n_tokens < 1:
            raise ValueError(f"n_tokens must be at least 1, got {n_tokens!r}")
        n_needed = -(-n_tokens // self.block_size)  # rounds up
        self._must_be_free(n_needed)
        self.block_tables[seq_id] = [self._take() for _ in range(n_needed)]
        self.lengths[seq_id] = n_tokens

    def append(self, seq_id: Hashable) -> tuple[int, int] | None:
        """Make room for one more token of a sequence, which is about to be written.

        A full last block is followed by a new one. A last block with room that other sequences hold too is
        replaced by a private one (copy-on-write).

        Returns:
            (source_block, copy_block) after copy-on-write: copy the one's content to the other. Otherwise None.

        Raises:
            OutOfBlocks: a block is needed and none is free.
            KeyError: there is no such sequence.
        """
        self._must_exist(seq_id)
        table, copied = self.block_tables[seq_id], None
        last = table[-1]
        if self.lengths[seq_id] % self.block_size == 0:
            self._must_be_free(1)
            table.append(self._take())
        elif self.ref_counts[last] > 1:
            self._must_be_free(1)
            table[-1] = self._take()
            self.ref_counts[last] -= 1
            copied = (last, table[-1])
        self.lengths[seq_id] += 1
        return copied

    def fork(self, parent_id: Hashable, child_id: Hashable) -> None:
        """Start a new sequence that shares every block of another one.

        Raises:
            KeyError: there is no such parent.
            ValueError: child_id is in use.
        """
        self._must_exist(parent_id)
        self._must_be_new(child_id)
        self.block_tables[child_id] = list(self.block_tables[parent_id])
        self.lengths[child_id] = self.lengths[parent_id]
        for block in self.block_tables[child_id]:
            self.ref_counts[block] += 1

    def free(self, seq_id: Hashable) -> None:
        """End a sequence: its blocks lose one holder, and those without any go back to the pool.

        Raises:
            KeyError: there is no such sequence.
        """
        self._must_exist(seq_id)
        del self.lengths[seq_id]
        for block in reversed(self.block_tables.pop(seq_id)):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free[block] = None

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self.ref_counts[block] = 1
        return block

    def _must_be_free(self, n_needed: int) -> None:
        if n_needed > len(self.ref_counts):
            raise OutOfBlocks(f"blocks needed: {n_needed}, more than the whole pool of {len(self.ref_counts)}")
        if n_needed > self.n_free:
            raise OutOfBlocks(f"blocks needed: {n_needed}, free: {self.n_free}; wait, or preempt a sequence")

    def _must_be_new(self, seq_id: Hashable) -> None:
        if seq_id in self.block_tables:
            raise ValueError(f"sequence {seq_id!r} exists already: free it first, or choose another id")

    def _must_exist(self, seq_id: Hashable) -> None:
        if seq_id not in self.block_tables:
            raise KeyError(f"there is no sequence {seq_id!r}: allocate it first")


class PrefixCachingAllocator(BlockAllocator):
    """A block allocator that finds the leading blocks of a prompt again, and can preempt.

    Only full blocks of a prompt are findable, from the moment it is allocated. A block is found by a hash of its tokens
    and of the hash of the block before it, since its keys and values depend on everything before; tokens and
    predecessor are then compared too, so that two contents with one hash are told apart. Freed blocks stay findable
    until they are reused. Blocks are reused in the order in which they became free: never used ones first, and of a
    freed sequence the last block first, so that the start of a prompt lives longest.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        super().__init__(n_blocks, block_size)
        self._block_of: dict[int, int] = {}  # chained hash -> block
        self._content: dict[int, tuple[int, int | None, tuple[int, ...]]] = {}  # block -> hash, predecessor, tokens

    def allocate(self, seq_id: Hashable, tokens: int | Sequence[int]) -> int:
        """Give a new sequence its blocks; where token ids are given, reuse the cached blocks that they start with.

        The last token is never taken from the cache: the model must run on it to give the next one. So with blocks of
        16 a prompt of 48 tokens that is cached whole counts 32 cached tokens, and one of 49 counts 48.

        Args:
            seq_id: a new name.
            tokens: the prompt's token ids, or only their number.

        Returns:
            How many leading tokens are cached, so that prefill can skip them: a multiple of the block size, and 0
            where only a number was given.

        Raises:
            OutOfBlocks: fewer blocks are free than it needs. A cached block that is free counts as needed, too.
            ValueError: seq_id is in use, or there are no tokens.
        """
        if isinstance(tokens, int | np.integer):
            super().allocate(seq_id, int(tokens))
            return 0
        self._must_be_new(seq_id)
        if len(tokens) == 0:
            raise ValueError("a sequence needs at least 1 token, got none")
        hits = self._find(tokens)
        n_new = -(-len(tokens) // self.block_size) - len(hits)
        self._must_be_free(n_new + sum(self.ref_counts[block] == 0 for block in hits))
        for block in hits:  # before any block is taken, so that none of these is
            self._free.pop(block, None)
            self.ref_counts[block] += 1
        self.block_tables[seq_id] = hits + [self._take() for _ in range(n_new)]
        self.lengths[seq_id] = len(tokens)
        self._remember(tokens, self.block_tables[seq_id])
        return len(hits) * self.block_size

    def preempt(self) -> tuple[Hashable, int]:
        """Take all blocks from the newest sequence (the last one allocated or forked).

        Returns:
            Its id, and its tokens, prompt and generated ones: what must be swapped in or prefilled again to go on.

        Raises:
            ValueError: there is no sequence.
        """
        if not self.block_tables:
            raise ValueError("there is no sequence to preempt")
        newest = next(reversed(self.block_tables))
        n_tokens = self.lengths[newest]
        self.free(newest)
        return newest, n_tokens

    def _chain(self, tokens: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Chained hash and tokens of every full block."""
        chain, chained = [], 0
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            content = tuple(int(token) for token in tokens[end - self.block_size : end])
            chained = hash((chained, content))
            chain.append((chained, content))
        return chain

    def _find(self, tokens: Sequence[int]) -> list[int]:
        """The cached blocks that the prompt starts with, without the block of its last token."""
        hits: list[int] = []
        for chained, content in self._chain(tokens[:-1]):
            block = self._block_of.get(chained)
            before = hits[-1] if hits else None
            if block is None or self._content[block] != (chained, before, content):
                break
            hits.append(block)
        return hits

    def _remember(self, tokens: Sequence[int], table: list[int]) -> None:
        """Make the full blocks of a prompt findable, the first of equal ones."""
        before = None
        for block, (chained, content) in zip(table, self._chain(tokens), strict=False):
            if self._block_of.setdefault(chained, block) == block:
                self._content[block] = (chained, before, content)
            before = block

    def _take(self) -> int:
        block = super()._take()
        if block in self._content:  # reused now, so no longer findable
            del self._block_of[self._content.pop(block)[0]]
        return block
