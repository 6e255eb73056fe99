"""Who holds which block of the KV cache: tables, reference counts, copy-on-write, and the prefix cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from lessonlib.records import OutOfBlocks


class Allocator(Protocol):
    """What the engine asks of a block manager: the interface of exercise 3."""

    @property
    def block_tables(self) -> Mapping[Hashable, list[int]]: ...
    @property
    def lengths(self) -> Mapping[Hashable, int]: ...
    @property
    def n_free(self) -> int: ...
    def allocate(self, seq_id: Hashable, tokens: Any, /) -> object: ...
    def append(self, seq_id: Hashable, /) -> tuple[int, int] | None: ...
    def fork(self, parent_id: Hashable, child_id: Hashable, /) -> None: ...
    def free(self, seq_id: Hashable, /) -> None: ...


def blocks_needed(n_tokens: int, block_size: int) -> int:
    """ceil(n_tokens / block_size)."""
    return -(-n_tokens // block_size)


class BlockManager:
    """Allocates the blocks of a pool to sequences, and finds the blocks of a prompt that are computed already.

    A block is findable once it is full and computed. It is found by a hash of its tokens chained with the hash of the
    block before it, since keys and values depend on everything before; tokens and predecessor are compared too, so
    that two contents with one hash are told apart. Blocks that nobody holds stay findable until they are reused, the
    least recently used first (Kwon et al. 2023, sections 4.3 and 4.4; vLLM's automatic prefix caching).

    Args:
        n_blocks: blocks in the pool.
        block_size: tokens per block.
        prefix_caching: whether to find blocks again.
        hash_of: the hash of (chained hash, tokens); tests pass one that collides.

    Raises:
        ValueError: n_blocks or block_size is below 1.
    """

    def __init__(
        self,
        n_blocks: int,
        block_size: int,
        prefix_caching: bool = True,
        hash_of: Callable[[tuple[int, tuple[int, ...]]], int] = hash,
    ) -> None:
        if n_blocks < 1 or block_size < 1:
            raise ValueError(f"n_blocks and block_size must be at least 1, got {n_blocks!r} and {block_size!r}")
        self.n_blocks, self.block_size, self.prefix_caching, self._hash_of = (
            n_blocks,
            block_size,
            prefix_caching,
            hash_of,
        )
        self.block_tables: dict[Hashable, list[int]] = {}
        self.lengths: dict[Hashable, int] = {}
        self.ref_counts = [0] * n_blocks
        self._free = OrderedDict.fromkeys(range(n_blocks))  # least recently used first
        self._block_of: dict[int, int] = {}  # chained hash -> block
        self._content: dict[int, tuple[int, int | None, tuple[int, ...]]] = {}  # block -> hash, predecessor, tokens
        self._n_registered: dict[Hashable, int] = {}  # leading blocks of a sequence that were looked at

    @property
    def n_free(self) -> int:
        return len(self._free)

    def allocate(self, seq_id: Hashable, tokens: int | Sequence[int]) -> int:
        """Give a new sequence its blocks; where token ids are given, start with the cached blocks of its prefix.

        The last token is never taken from the cache: the model must run on it to give the next one.

        Returns:
            Leading tokens that are cached, so that prefill can skip them: a multiple of the block size.

        Raises:
            OutOfBlocks: too few blocks are free; nothing has changed.
            ValueError: seq_id is in use, or there are no tokens.
        """
        n_tokens = tokens if isinstance(tokens, int) else len(tokens)
        if seq_id in self.block_tables or n_tokens < 1:
            raise ValueError(f"need a new seq_id and at least 1 token, got {seq_id!r} and {n_tokens!r}")
        hits = [] if isinstance(tokens, int) else self._find(tokens)
        n_new = blocks_needed(n_tokens, self.block_size) - len(hits)
        self._must_be_free(n_new + sum(self.ref_counts[block] == 0 for block in hits))
        for block in hits:  # before any block is taken, so that none of these is
            self._free.pop(block, None)
            self.ref_counts[block] += 1
        self.block_tables[seq_id] = hits + [self._take() for _ in range(n_new)]
        self.lengths[seq_id] = n_tokens
        self._n_registered[seq_id] = len(hits)
        return len(hits) * self.block_size

    def append(self, seq_id: Hashable) -> tuple[int, int] | None:
        """Make room for one more token of a sequence, which is about to be written.

        Returns:
            (source_block, copy_block) where the last block was shared and is now a private copy, to be filled by the
            caller; otherwise None.

        Raises:
            OutOfBlocks: a block is needed and none is free; nothing has changed.
            KeyError: there is no such sequence.
        """
        table, copied = self.block_tables[seq_id], None
        if self.lengths[seq_id] % self.block_size == 0:
            self._must_be_free(1)
            table.append(self._take())
        elif self.ref_counts[table[-1]] > 1:
            self._must_be_free(1)
            shared, table[-1] = table[-1], self._take()
            self.ref_counts[shared] -= 1
            copied = (shared, table[-1])
        self.lengths[seq_id] += 1
        return copied

    def fork(self, parent_id: Hashable, child_id: Hashable) -> None:
        """Start a sequence that shares every block of another one.

        Raises:
            KeyError: there is no such parent.
            ValueError: child_id is in use.
        """
        if child_id in self.block_tables:
            raise ValueError(f"sequence {child_id!r} exists already")
        self.block_tables[child_id] = list(self.block_tables[parent_id])
        self.lengths[child_id] = self.lengths[parent_id]
        self._n_registered[child_id] = self._n_registered[parent_id]
        for block in self.block_tables[child_id]:
            self.ref_counts[block] += 1

    def free(self, seq_id: Hashable) -> None:
        """End a sequence; blocks without a holder go back, its last block first in line for reuse.

        Raises:
            KeyError: there is no such sequence.
        """
        table = self.block_tables.pop(seq_id)
        del self.lengths[seq_id], self._n_registered[seq_id]
        for block in reversed(table):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free[block] = None

    def register(self, seq_id: Hashable, tokens: Sequence[int], n_computed: int) -> None:
        """Make the full blocks among a sequence's first n_computed tokens findable, the first of equal ones."""
        if not self.prefix_caching:
            return
        table, size = self.block_tables[seq_id], self.block_size
        for i in range(self._n_registered[seq_id], n_computed // size):
            before = table[i - 1] if i else None
            if before is not None and before not in self._content:
                break  # an equal block was first: this chain ends here
            content = tuple(tokens[i * size : (i + 1) * size])
            chained = self._hash_of((self._content[before][0] if before is not None else 0, content))
            if self._block_of.setdefault(chained, table[i]) == table[i]:
                self._content[table[i]] = (chained, before, content)
            self._n_registered[seq_id] = i + 1

    def n_held(self, tokens: Sequence[int]) -> int:
        """Blocks that `allocate` would share with running sequences: those cost no free block."""
        return sum(self.ref_counts[block] > 0 for block in self._find(tokens))

    def _find(self, tokens: Sequence[int]) -> list[int]:
        hits: list[int] = []
        chained, before = 0, None
        for start in range(0, len(tokens) - self.block_size, self.block_size) if self._block_of else ():
            content = tuple(tokens[start : start + self.block_size])
            chained = self._hash_of((chained, content))
            block = self._block_of.get(chained)
            if block is None or self._content[block] != (chained, before, content):
                break
            hits.append(block)
            before = block
        return hits

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self.ref_counts[block] = 1
        if block in self._content:  # reused now, so no longer findable
            del self._block_of[self._content.pop(block)[0]]
        return block

    def _must_be_free(self, n_needed: int) -> None:
        if n_needed > self.n_free:
            raise OutOfBlocks(f"needs {n_needed} free blocks, and {self.n_free} of {self.n_blocks} are free")
