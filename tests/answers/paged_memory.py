"""Answers to exercise 3, right and wrong."""

from __future__ import annotations

import copy
import hashlib
import heapq
import random
from collections import Counter, UserDict, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from lessonlib import OutOfBlocks
from lessonlib.reference import BlockAllocator, PrefixCachingAllocator
from tests.answers import Answers, Wrong

# --- BlockAllocator: right ------------------------------------------------------------------------------


class SetOfFree:
    """Free blocks in a set; counts in a dict that has only what was ever held."""

    def __init__(self, n_blocks, block_size):
        self.size, self.free_set = block_size, set(range(n_blocks))
        self.block_tables, self.lengths, self.ref_counts = {}, {}, {}

    n_free = property(lambda self: len(self.free_set))

    def allocate(self, seq_id, n_tokens):
        if seq_id in self.block_tables:
            raise ValueError(seq_id)
        need = (n_tokens + self.size - 1) // self.size
        if need > len(self.free_set):
            raise OutOfBlocks(need)
        self.block_tables[seq_id] = [self.grab() for _ in range(need)]
        self.lengths[seq_id] = n_tokens

    def grab(self):
        if not self.free_set:
            raise OutOfBlocks("none free")
        block = self.free_set.pop()
        self.ref_counts[block] = 1
        return block

    def append(self, seq_id):
        table, pair = self.block_tables[seq_id], None
        if self.lengths[seq_id] == self.size * len(table):
            table.append(self.grab())
        elif self.ref_counts[table[-1]] != 1:
            new = self.grab()
            self.ref_counts[table[-1]] -= 1
            pair, table[-1] = (table[-1], new), new
        self.lengths[seq_id] += 1
        return pair

    def fork(self, parent_id, child_id):
        parent = self.block_tables[parent_id]
        if child_id in self.block_tables:
            raise ValueError(child_id)
        for block in parent:
            self.ref_counts[block] += 1
        self.block_tables[child_id], self.lengths[child_id] = parent[:], self.lengths[parent_id]

    def free(self, seq_id):
        for block in self.block_tables.pop(seq_id):
            self.ref_counts[block] -= 1
            if not self.ref_counts[block]:
                del self.ref_counts[block]
                self.free_set.add(block)
        del self.lengths[seq_id]


class OnlyTables:
    """Nothing is kept but tables and lengths: counts and free blocks follow from them."""

    def __init__(self, n_blocks, block_size):
        self.n_blocks, self.block_size, self.block_tables, self.lengths = n_blocks, block_size, {}, {}

    @property
    def ref_counts(self):
        held = Counter(block for table in self.block_tables.values() for block in table)
        return [held[block] for block in range(self.n_blocks)]

    @property
    def n_free(self):
        return self.ref_counts.count(0)

    def free_blocks(self, need):
        found = [block for block, count in enumerate(self.ref_counts) if count == 0][:need]
        if len(found) < need:
            raise OutOfBlocks
        return found

    def allocate(self, seq_id, n_tokens):
        if seq_id in self.lengths:
            raise KeyError(seq_id)
        self.block_tables[seq_id] = self.free_blocks(int(np.ceil(n_tokens / self.block_size)))
        self.lengths[seq_id] = n_tokens

    def append(self, seq_id):
        *before, last = self.block_tables[seq_id]
        if self.lengths[seq_id] % self.block_size == 0:
            self.block_tables[seq_id] = [*before, last, *self.free_blocks(1)]
            result = None
        elif self.ref_counts[last] > 1:
            (copy,) = self.free_blocks(1)
            self.block_tables[seq_id] = [*before, copy]
            result = [last, copy]
        else:
            result = None
        self.lengths[seq_id] += 1
        return result

    def fork(self, parent_id, child_id):
        if child_id in self.lengths:
            raise KeyError(child_id)
        self.block_tables[child_id] = self.block_tables[parent_id].copy()
        self.lengths[child_id] = self.lengths[parent_id]

    def free(self, seq_id):
        del self.block_tables[seq_id], self.lengths[seq_id]


class NumpyCounts:
    """Counts in an array; tables are arrays too; the free block of the highest id comes first."""

    def __init__(self, n_blocks, block_size):
        self.ref_counts = np.zeros(n_blocks, dtype=np.int32)
        self.block_tables, self.lengths, self.block_size = {}, {}, block_size

    @property
    def n_free(self):
        return np.count_nonzero(self.ref_counts == 0)

    def take(self, n):
        blocks = np.flatnonzero(self.ref_counts == 0)[::-1][:n]
        if len(blocks) < n:
            raise OutOfBlocks(f"{n} blocks")
        self.ref_counts[blocks] += 1
        return blocks

    def allocate(self, seq_id, n_tokens):
        if seq_id in self.block_tables:
            raise ValueError(seq_id)
        self.block_tables[seq_id] = self.take(-(n_tokens // -self.block_size))
        self.lengths[seq_id] = np.int64(n_tokens)

    def append(self, seq_id):
        table = self.block_tables[seq_id]
        room = len(table) * self.block_size - self.lengths[seq_id]
        pair = None
        if room == 0:
            self.block_tables[seq_id] = np.append(table, self.take(1))
        elif self.ref_counts[table[-1]] > 1:
            source, (copy,) = table[-1], self.take(1)
            self.ref_counts[source] -= 1
            self.block_tables[seq_id] = np.append(table[:-1], copy)
            pair = np.array([source, copy])
        self.lengths[seq_id] += 1
        return pair

    def fork(self, parent_id, child_id):
        table = self.block_tables[parent_id].copy()
        if child_id in self.block_tables:
            raise ValueError(child_id)
        self.ref_counts[table] += 1
        self.block_tables[child_id], self.lengths[child_id] = table, self.lengths[parent_id]

    def free(self, seq_id):
        self.ref_counts[self.block_tables.pop(seq_id)] -= 1
        self.lengths.pop(seq_id)


class FirstInFirstOut:
    """A queue of free blocks, a count of them that is kept by hand, and one method that takes and gives."""

    def __init__(self, n_blocks, block_size):
        self.n_free, self.queue = n_blocks, deque(range(n_blocks))
        self.block_tables, self.lengths = {}, {}
        self.ref_counts = defaultdict(int)
        self.block_size = block_size

    def _hold(self, block, by):
        self.ref_counts[block] += by
        if self.ref_counts[block] == 0:
            self.queue.append(block)
            self.n_free += 1

    def _new(self, need):
        if need > self.n_free:
            raise OutOfBlocks
        blocks = [self.queue.popleft() for _ in range(need)]
        self.n_free -= need
        for block in blocks:
            self._hold(block, +1)
        return blocks

    def allocate(self, seq_id, n_tokens):
        if seq_id in self.block_tables:
            raise KeyError
        self.block_tables[seq_id] = self._new(1 + (n_tokens - 1) // self.block_size)
        self.lengths[seq_id] = n_tokens
        return self.block_tables[seq_id]

    def append(self, seq_id):
        table = self.block_tables[seq_id]
        slot = self.lengths[seq_id] % self.block_size
        if slot == 0:
            table += self._new(1)
        elif self.ref_counts[table[-1]] >= 2:
            (copy,) = self._new(1)
            source = table.pop()
            self._hold(source, -1)
            table.append(copy)
            self.lengths[seq_id] += 1
            return source, copy
        self.lengths[seq_id] += 1

    def fork(self, parent_id, child_id):
        if child_id in self.block_tables or parent_id not in self.block_tables:
            raise KeyError
        self.block_tables[child_id] = []
        for block in self.block_tables[parent_id]:
            self._hold(block, +1)
            self.block_tables[child_id].append(block)
        self.lengths[child_id] = self.lengths[parent_id]
        return child_id

    def free(self, seq_id):
        table = self.block_tables.pop(seq_id)
        del self.lengths[seq_id]
        while table:
            self._hold(table.pop(), -1)
        return True


class LowestFirst(SetOfFree):
    """The lowest free id first, from a heap."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.heap = list(range(n_blocks))

    n_free = property(lambda self: len(self.heap))

    def grab(self):
        if not self.heap:
            raise OutOfBlocks("none free")
        block = heapq.heappop(self.heap)
        self.free_set.discard(block)
        self.ref_counts[block] = 1
        return block

    def free(self, seq_id):
        before = set(self.free_set)
        super().free(seq_id)
        for block in self.free_set - before:
            heapq.heappush(self.heap, block)


@dataclass
class Sequence:
    blocks: list = field(default_factory=list)
    length: int = 0


class Objects:
    """Sequences are objects; the documented state is made when someone reads it."""

    def __init__(self, n_blocks, block_size):
        self.sequences, self.pool, self.block_size = {}, [set() for _ in range(n_blocks)], block_size

    block_tables = property(lambda self: {s: tuple(q.blocks) for s, q in self.sequences.items()})
    lengths = property(lambda self: {s: q.length for s, q in self.sequences.items()})
    ref_counts = property(lambda self: tuple(len(holders) for holders in self.pool))
    n_free = property(lambda self: sum(not holders for holders in self.pool))

    def take(self, seq_id, need):
        empty = [block for block, holders in enumerate(self.pool) if not holders]
        random.Random(len(self.sequences)).shuffle(empty)
        if len(empty) < need:
            raise OutOfBlocks("too few")
        for block in empty[:need]:
            self.pool[block].add(seq_id)
        return empty[:need]

    def allocate(self, seq_id, n_tokens):
        if seq_id in self.sequences:
            raise ValueError("exists")
        self.sequences[seq_id] = Sequence(self.take(seq_id, len(range(0, n_tokens, self.block_size))), n_tokens)

    def append(self, seq_id):
        sequence, pair = self.sequences[seq_id], None
        last = sequence.blocks[-1]
        if sequence.length % self.block_size == 0:
            sequence.blocks += self.take(seq_id, 1)
        elif self.pool[last] != {seq_id}:
            sequence.blocks[-1:] = self.take(seq_id, 1)
            self.pool[last].remove(seq_id)
            pair = last, sequence.blocks[-1]
        sequence.length += 1
        return pair

    def fork(self, parent_id, child_id):
        if child_id in self.sequences:
            raise ValueError("exists")
        parent = self.sequences[parent_id]
        self.sequences[child_id] = Sequence(list(parent.blocks), parent.length)
        for block in parent.blocks:
            self.pool[block].add(child_id)

    def free(self, seq_id):
        for block in self.sequences.pop(seq_id).blocks:
            self.pool[block].remove(seq_id)


class CopyThenCommit:
    """Every call works on a copy of the state and puts it in place at its end, so that an error leaves no trace."""

    def __init__(self, n_blocks, block_size):
        self.block_size = block_size
        self.block_tables, self.lengths, self.ref_counts = UserDict(), UserDict(), [0] * n_blocks

    n_free = property(lambda self: sum(1 for count in self.ref_counts if not count))

    def _change(self, change):
        tables = {seq_id: list(table) for seq_id, table in self.block_tables.items()}
        lengths, counts = dict(self.lengths), list(self.ref_counts)

        def new():
            if 0 not in counts:
                raise OutOfBlocks
            counts[counts.index(0)] = 1
            return next(b for b in range(len(counts)) if counts[b] == 1 and not any(b in t for t in tables.values()))

        result = change(tables, lengths, counts, new)
        self.block_tables, self.lengths, self.ref_counts = tables, lengths, counts
        return result

    def allocate(self, seq_id, n_tokens):
        def change(tables, lengths, counts, new):
            if seq_id in tables:
                raise ValueError
            tables[seq_id], lengths[seq_id] = [], n_tokens
            while len(tables[seq_id]) * self.block_size < n_tokens:
                tables[seq_id].append(new())

        self._change(change)

    def append(self, seq_id):
        def change(tables, lengths, counts, new):
            lengths[seq_id] += 1
            if lengths[seq_id] > len(tables[seq_id]) * self.block_size:
                tables[seq_id].append(new())
            elif counts[tables[seq_id][-1]] > 1:
                source, tables[seq_id][-1] = tables[seq_id][-1], new()
                counts[source] -= 1
                return source, tables[seq_id][-1]

        return self._change(change)

    def fork(self, parent_id, child_id):
        def change(tables, lengths, counts, new):
            if child_id in tables:
                raise ValueError
            tables[child_id], lengths[child_id] = list(tables[parent_id]), lengths[parent_id]
            for block in tables[child_id]:
                counts[block] += 1

        self._change(change)

    def free(self, seq_id):
        def change(tables, lengths, counts, new):
            for block in tables.pop(seq_id):
                counts[block] -= 1
            del lengths[seq_id]

        self._change(change)


class LeavesEmptyTables(OnlyTables):
    """A freed sequence stays as an empty entry; it prints what it does."""

    def allocate(self, seq_id, n_tokens):
        print("allocate", seq_id)
        if self.lengths.get(seq_id):
            raise ValueError(seq_id)
        self.lengths.pop(seq_id, None)
        super().allocate(seq_id, n_tokens)

    def append(self, seq_id):
        if not self.lengths.get(seq_id):
            raise KeyError(seq_id)
        return super().append(seq_id)

    def fork(self, parent_id, child_id):
        if not self.lengths.get(parent_id):
            raise KeyError(parent_id)
        if not self.lengths.get(child_id):
            self.lengths.pop(child_id, None)
        super().fork(parent_id, child_id)

    def free(self, seq_id):
        if not self.lengths.get(seq_id):
            raise KeyError(seq_id)
        self.block_tables[seq_id], self.lengths[seq_id] = [], 0


class OutOfPages(OutOfBlocks):
    """An error of one's own, which is an OutOfBlocks."""


class OwnError(BlockAllocator):
    def _must_be_free(self, n_needed):
        if n_needed > self.n_free:
            raise OutOfPages


def made_by_a_function(n_blocks, block_size):
    return FirstInFirstOut(n_blocks, block_size)


# --- BlockAllocator: wrong ------------------------------------------------------------------------------


def _wrong(base=BlockAllocator, **methods):
    """The reference with some methods replaced."""
    return type("BlockAllocator", (base,), methods)


def _rounding(blocks_of):
    """allocate with another number of blocks."""

    def allocate(self, seq_id, n_tokens):
        self._must_be_new(seq_id)
        need = blocks_of(n_tokens, self.block_size)
        self._must_be_free(need)
        self.block_tables[seq_id] = [self._take() for _ in range(need)]
        self.lengths[seq_id] = n_tokens

    return _wrong(allocate=allocate)


def _appending(body):
    """append whose part between the check of the id and the new length is replaced."""

    def append(self, seq_id):
        self._must_exist(seq_id)
        copied = body(self, seq_id, self.block_tables[seq_id], self.lengths[seq_id] % self.block_size == 0)
        self.lengths[seq_id] += 1
        return copied

    return _wrong(append=append)


def _grow(self, table):
    self._must_be_free(1)
    table.append(self._take())


def _copy_last(self, table):
    self._must_be_free(1)
    source, table[-1] = table[-1], self._take()
    self.ref_counts[source] -= 1
    if self.ref_counts[source] == 0:
        self._free[source] = None
    return source, table[-1]


def _right_append(self, seq_id, table, full):
    if full:
        return _grow(self, table)
    return _copy_last(self, table) if self.ref_counts[table[-1]] > 1 else None


@_appending
def block_per_token(self, seq_id, table, full):
    _grow(self, table)


@_appending
def never_allocates(self, seq_id, table, full):
    return None if full else _right_append(self, seq_id, table, full)


@_appending
def no_copy_on_write(self, seq_id, table, full):
    if full:
        _grow(self, table)


@_appending
def copies_every_block(self, seq_id, table, full):
    if full or self.ref_counts[table[-1]] == 1:
        return _right_append(self, seq_id, table, full)
    pairs = []
    self._must_be_free(len(table))
    for i, block in enumerate(table):
        table[i] = self._take()
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._free[block] = None
        pairs.append((block, table[i]))
    return pairs[-1]


@_appending
def last_sharer_copies(self, seq_id, table, full):
    if full:
        return _grow(self, table)
    held_before = getattr(self, "ever_shared", set())
    self.ever_shared = held_before | {block for block, count in enumerate(self.ref_counts) if count > 1}
    return _copy_last(self, table) if table[-1] in self.ever_shared else None


@_appending
def always_copies(self, seq_id, table, full):
    return _grow(self, table) if full else _copy_last(self, table)


@_appending
def count_not_lowered(self, seq_id, table, full):
    if full or self.ref_counts[table[-1]] == 1:
        return _right_append(self, seq_id, table, full)
    self._must_be_free(1)
    source, table[-1] = table[-1], self._take()
    return source, table[-1]


@_appending
def copies_full_block(self, seq_id, table, full):
    copied = _copy_last(self, table) if self.ref_counts[table[-1]] > 1 else None
    if full:
        _grow(self, table)
    return copied


@_appending
def copy_not_reported(self, seq_id, table, full):
    _right_append(self, seq_id, table, full)


@_appending
def pair_reversed(self, seq_id, table, full):
    pair = _right_append(self, seq_id, table, full)
    return pair and pair[::-1]


@_appending
def reports_new_block(self, seq_id, table, full):
    pair = _right_append(self, seq_id, table, full)
    return (table[-2], table[-1]) if full else pair


@_appending
def copies_the_wrong_block(self, seq_id, table, full):
    if full or self.ref_counts[table[-1]] == 1:
        return _right_append(self, seq_id, table, full)
    self._must_be_free(1)
    source, table[0] = table[0], self._take()
    self.ref_counts[source] -= 1
    return source, table[0]


@_appending
def looks_one_token_late(self, seq_id, table, full):
    if self.lengths[seq_id] % self.block_size == 1 and self.lengths[seq_id] > 1:
        return _grow(self, table)
    return _copy_last(self, table) if self.ref_counts[table[-1]] > 1 else None


def length_first(self, seq_id):
    self._must_exist(seq_id)
    self.lengths[seq_id] += 1
    table = self.block_tables[seq_id]
    return _right_append(self, seq_id, table, (self.lengths[seq_id] - 1) % self.block_size == 0)


def length_forgotten(self, seq_id):
    self._must_exist(seq_id)
    return _right_append(self, seq_id, self.block_tables[seq_id], self.lengths[seq_id] % self.block_size == 0)


def fork_copies(self, parent_id, child_id):
    self._must_exist(parent_id)
    self.allocate(child_id, self.lengths[parent_id])


def fork_copies_last(self, parent_id, child_id):
    BlockAllocator.fork(self, parent_id, child_id)
    if self.lengths[child_id] % self.block_size:
        _copy_last(self, self.block_tables[child_id])


def fork_same_list(self, parent_id, child_id):
    BlockAllocator.fork(self, parent_id, child_id)
    self.block_tables[child_id] = self.block_tables[parent_id]


def fork_without_counts(self, parent_id, child_id):
    self._must_exist(parent_id)
    self._must_be_new(child_id)
    self.block_tables[child_id] = list(self.block_tables[parent_id])
    self.lengths[child_id] = self.lengths[parent_id]


def fork_over_existing(self, parent_id, child_id):
    self._must_exist(parent_id)
    if child_id in self.block_tables and child_id != parent_id:
        self.free(child_id)
    if child_id != parent_id:
        BlockAllocator.fork(self, parent_id, child_id)


def fork_rounds_length_up(self, parent_id, child_id):
    BlockAllocator.fork(self, parent_id, child_id)
    self.lengths[child_id] = len(self.block_tables[child_id]) * self.block_size


def free_shared(self, seq_id):
    self._must_exist(seq_id)
    del self.lengths[seq_id]
    for block in self.block_tables.pop(seq_id):
        self.ref_counts[block] = 0
        self._free[block] = None


def free_shared_right_counts(self, seq_id):
    self._must_exist(seq_id)
    del self.lengths[seq_id]
    for block in self.block_tables.pop(seq_id):
        self.ref_counts[block] -= 1
        self._free[block] = None


def free_leaks(self, seq_id):
    self._must_exist(seq_id)
    del self.lengths[seq_id]
    for block in self.block_tables.pop(seq_id):
        self.ref_counts[block] -= 1


def free_leaks_last(self, seq_id):
    self._must_exist(seq_id)
    table = self.block_tables[seq_id]
    tail = table.pop() if self.lengths[seq_id] % self.block_size and len(table) > 1 else None
    BlockAllocator.free(self, seq_id)
    if tail is not None:
        self.ref_counts[tail] -= 1


def free_keeps_counts(self, seq_id):
    self._must_exist(seq_id)
    del self.lengths[seq_id]
    for block in self.block_tables.pop(seq_id):
        self._free[block] = None


def free_keeps_length(self, seq_id):
    length = self.lengths.get(seq_id)
    BlockAllocator.free(self, seq_id)
    self.lengths[seq_id] = length


def free_anything(self, seq_id):
    if seq_id in self.block_tables:
        BlockAllocator.free(self, seq_id)


def allocate_bit_by_bit(self, seq_id, n_tokens):
    self._must_be_new(seq_id)
    table = []
    for _ in range(-(-n_tokens // self.block_size)):
        self._must_be_free(1)
        table.append(self._take())
    self.block_tables[seq_id], self.lengths[seq_id] = table, n_tokens


def allocate_table_first(self, seq_id, n_tokens):
    self._must_be_new(seq_id)
    self.block_tables[seq_id], self.lengths[seq_id] = [], n_tokens
    for _ in range(-(-n_tokens // self.block_size)):
        self._must_be_free(1)
        self.block_tables[seq_id].append(self._take())


def allocate_over_existing(self, seq_id, n_tokens):
    if seq_id in self.block_tables:
        self.free(seq_id)
    BlockAllocator.allocate(self, seq_id, n_tokens)


def allocate_always_lends_one(self, seq_id, n_tokens):
    """Keeps one block in reserve."""
    if -(-n_tokens // self.block_size) >= self.n_free:
        raise OutOfBlocks
    BlockAllocator.allocate(self, seq_id, n_tokens)


class LeakBehindCounts(OnlyTables):
    """n_free is right, but a failed allocate lost blocks from the list that it takes from."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.stack = list(range(n_blocks))

    def free_blocks(self, need):
        found = []
        while len(found) < need:
            if not self.stack:
                raise OutOfBlocks
            found.append(self.stack.pop())
        return found

    def free(self, seq_id):
        before = self.block_tables[seq_id]
        super().free(seq_id)
        self.stack += [block for block in before if not self.ref_counts[block]]


class NeverTakenBack(LeakBehindCounts):
    """A failed allocate takes nothing, but freed blocks never come back to the list."""

    def free_blocks(self, need):
        if need > len(self.stack):
            raise OutOfBlocks
        return super().free_blocks(need)

    def free(self, seq_id):
        OnlyTables.free(self, seq_id)


class CountsUpwards(OnlyTables):
    """Ids simply go up."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.next_id = 0

    def free_blocks(self, need):
        if need > self.n_free:
            raise OutOfBlocks
        self.next_id += need
        return list(range(self.next_id - need, self.next_id))

    @property
    def ref_counts(self):
        held = Counter(block for table in self.block_tables.values() for block in table)
        return [held[block] for block in range(max([self.n_blocks, self.next_id]))]


class FromOne(OnlyTables):
    """Ids from 1 to n_blocks."""

    @property
    def ref_counts(self):
        held = Counter(block for table in self.block_tables.values() for block in table)
        return [held[block] for block in range(self.n_blocks + 1)]

    @property
    def n_free(self):
        return self.ref_counts[1:].count(0)

    def free_blocks(self, need):
        found = [block for block in range(1, self.n_blocks + 1) if not self.ref_counts[block]][:need]
        if len(found) < need:
            raise OutOfBlocks
        return found


class NoLimit(OnlyTables):
    """Makes new blocks where none are left."""

    def free_blocks(self, need):
        held = {block for table in self.block_tables.values() for block in table}
        return [block for block in range(self.n_blocks + 100) if block not in held][:need]


class SharedTables(BlockAllocator):
    """Tables and counts that every instance has in common."""

    _tables: dict = {}  # noqa: RUF012
    _lengths: dict = {}  # noqa: RUF012

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.block_tables, self.lengths = self._tables, self._lengths


class SharedButEmptied(SharedTables):
    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self._tables.clear()
        self._lengths.clear()


def _stale_n_free():
    def __init__(self, n_blocks, block_size):  # noqa: N807
        BlockAllocator.__init__(self, n_blocks, block_size)
        self.kept = n_blocks

    def allocate(self, seq_id, n_tokens):
        BlockAllocator.allocate(self, seq_id, n_tokens)
        self.kept = len(self._free)

    def free(self, seq_id):
        BlockAllocator.free(self, seq_id)
        self.kept = len(self._free)

    return _wrong(__init__=__init__, allocate=allocate, free=free, n_free=property(lambda self: self.kept))


class Hangs(BlockAllocator):
    def append(self, seq_id):
        while self.n_free >= 0:
            pass


class SetTables(BlockAllocator):
    """Its tables have no order; its own work goes on with lists."""

    @property
    def block_tables(self):
        return {seq_id: set(table) for seq_id, table in self.tables.items()}

    @block_tables.setter
    def block_tables(self, tables):
        self.tables = tables

    def allocate(self, seq_id, n_tokens):
        self.tables[seq_id] = [self._take() for _ in range(-(-n_tokens // self.block_size))]
        self.lengths[seq_id] = n_tokens


class Panic(BaseException):
    def __str__(self):
        raise ValueError("no text")


def panics(self, seq_id):
    raise Panic


class Starter(BlockAllocator):
    def append(self, seq_id):
        raise NotImplementedError


BLOCK_ALLOCATOR = Answers(
    right=[
        SetOfFree,
        OnlyTables,
        NumpyCounts,
        FirstInFirstOut,
        LowestFirst,
        Objects,
        CopyThenCommit,
        LeavesEmptyTables,
        OwnError,
        made_by_a_function,
    ],
    wrong={
        "a block per token": Wrong(block_per_token, "block-per-token"),
        "a block per token at first": Wrong(_rounding(lambda n, size: n), "block-per-token"),
        "one too many": Wrong(_rounding(lambda n, size: n // size + 1), "one-block-too-many"),
        "one too few": Wrong(_rounding(lambda n, size: max(1, n // size)), "one-block-too-few"),
        "rounds to nearest": Wrong(_rounding(lambda n, size: max(1, round(n / size))), "one-block-too-few"),
        "always one in reserve": Wrong(_rounding(lambda n, size: -(-n // size) + 1), "one-block-too-many"),
        "never allocates": Wrong(never_allocates, "never-allocates"),
        "one token late": Wrong(looks_one_token_late, "never-allocates"),
        "fork copies": Wrong(_wrong(fork=fork_copies), "fork-copies"),
        "fork copies the last": Wrong(_wrong(fork=fork_copies_last), "fork-copies"),
        "fork shares the list": Wrong(_wrong(fork=fork_same_list), "shares-the-list"),
        "fork without counts": Wrong(_wrong(fork=fork_without_counts), "fork-without-counts"),
        "fork over an existing": Wrong(_wrong(fork=fork_over_existing), "repeated-id-accepted"),
        "fork rounds up": Wrong(_wrong(fork=fork_rounds_length_up), "lengths-not-kept"),
        "no copy-on-write": Wrong(no_copy_on_write, "no-copy-on-write"),
        "copies every block": Wrong(copies_every_block, "copies-every-block"),
        "last sharer copies": Wrong(last_sharer_copies, "last-sharer-copies"),
        "always copies": Wrong(always_copies, "last-sharer-copies"),
        "count not lowered": Wrong(count_not_lowered, "shared-count-not-lowered"),
        "copies full blocks": Wrong(copies_full_block, "copies-full-block"),
        "copies the first": Wrong(copies_the_wrong_block),
        "copy not reported": Wrong(copy_not_reported, "copy-not-reported"),
        "pair reversed": Wrong(pair_reversed, "pair-reversed"),
        "reports new blocks": Wrong(reports_new_block, "reports-no-copy"),
        "length before the check": Wrong(_wrong(append=length_first), "changes-state-on-failure"),
        "length forgotten": Wrong(_wrong(append=length_forgotten), "lengths-not-kept"),
        "frees shared": Wrong(_wrong(free=free_shared), "frees-shared-blocks"),
        "frees shared, counts right": Wrong(_wrong(free=free_shared_right_counts), "frees-shared-blocks"),
        "leaks": Wrong(_wrong(free=free_leaks), "leak"),
        "leaks the tail": Wrong(_wrong(free=free_leaks_last), "leak"),
        "counts kept after free": Wrong(_wrong(free=free_keeps_counts), "leak"),
        "length kept after free": Wrong(_wrong(free=free_keeps_length), "lengths-not-kept"),
        "double free": Wrong(_wrong(free=free_anything), "double-free"),
        "keeps blocks on failure": Wrong(_wrong(allocate=allocate_bit_by_bit), "keeps-blocks-on-failure"),
        "keeps a half table": Wrong(_wrong(allocate=allocate_table_first), "keeps-blocks-on-failure"),
        "loses blocks on failure": Wrong(LeakBehindCounts, "keeps-blocks-on-failure"),
        "loses blocks on free": Wrong(NeverTakenBack, "leak"),
        "over an existing": Wrong(_wrong(allocate=allocate_over_existing), "repeated-id-accepted"),
        "exact fit refused": Wrong(_wrong(allocate=allocate_always_lends_one), "exact-fit-refused"),
        "ids go up": Wrong(CountsUpwards, "id-out-of-range"),
        "ids from 1": Wrong(FromOne, "id-out-of-range"),
        "no limit": Wrong(NoLimit, "id-out-of-range"),
        "stale n_free": Wrong(_stale_n_free(), "free-count-not-kept"),
        "n_free is a method": Wrong(_wrong(n_free=lambda self: len(self._free))),
        "no n_free": Wrong(_wrong(n_free=property(lambda self: self.number_of_free_blocks))),
        "shared tables": Wrong(SharedTables, "shared-between-instances"),
        "shared and emptied": Wrong(SharedButEmptied, "shared-between-instances"),
        "IndexError": Wrong(_wrong(_must_be_free=lambda self, n: [][0] if n > self.n_free else None), "wrong-error"),
        "no fork": Wrong(_wrong(fork=None)),
        "makes None": Wrong(lambda n_blocks, block_size: None),
        "an instance": Wrong(BlockAllocator(8, 4)),
        "needs more arguments": Wrong(_wrong(__init__=lambda self, n_blocks, block_size, device: None)),
        "sets for tables": Wrong(SetTables),
        "endless n_free": Wrong(_wrong(n_free=property(lambda self: float("inf")))),
        "n_free too large to print": Wrong(_wrong(n_free=property(lambda self: 10**5000))),
        "own BaseException": Wrong(_wrong(append=panics)),
        "hangs": Wrong(Hangs, "never-returns"),
        "half written": Wrong(Starter, "not-written"),
    },
)

# --- PrefixCachingAllocator: right ----------------------------------------------------------------------


def _is_count(tokens):
    return isinstance(tokens, int | np.integer)


class PrefixTuples(FirstInFirstOut):
    """The key of a block is the whole prompt up to its end; the latest block with a content wins."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.found, self.key_of = {}, {}

    def _new(self, need):
        if need > self.n_free:
            raise OutOfBlocks
        blocks = list(self.queue)[:need]
        for block in blocks:
            key = self.key_of.pop(block, None)
            if self.found.get(key) == block:
                del self.found[key]
        return super()._new(need)

    def allocate(self, seq_id, tokens):
        if _is_count(tokens):
            super().allocate(seq_id, tokens)
            return 0
        if seq_id in self.block_tables:
            raise ValueError(seq_id)
        size, hits = self.block_size, []
        while len(hits) < (len(tokens) - 1) // size and tuple(tokens[: (len(hits) + 1) * size]) in self.found:
            hits.append(self.found[tuple(tokens[: (len(hits) + 1) * size])])
        need = -(-len(tokens) // size) - len(hits)
        if need + sum(block in self.queue for block in hits) > self.n_free:
            raise OutOfBlocks
        for block in hits:
            if block in self.queue:
                self.queue.remove(block)
                self.n_free -= 1
            self._hold(block, +1)
        self.block_tables[seq_id], self.lengths[seq_id] = hits + self._new(need), len(tokens)
        for i, block in enumerate(self.block_tables[seq_id][: len(tokens) // size]):
            self.key_of[block] = tuple(tokens[: (i + 1) * size])
            self.found[self.key_of[block]] = block
        return len(hits) * size

    def preempt(self):
        seq_id = list(self.block_tables)[-1]
        result = [seq_id, self.lengths[seq_id]]
        self.free(seq_id)
        return result


class Scan(OnlyTables):
    """No keys at all: every block remembers its content and when it was last held, and a hit is searched for."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.content = [None] * n_blocks
        self.held_until = [(-1, 0)] * n_blocks
        self.clock = 0

    def free_blocks(self, need):
        idle = [block for block, count in enumerate(self.ref_counts) if count == 0]
        idle.sort(key=lambda block: self.held_until[block])
        if len(idle) < need:
            raise OutOfBlocks
        for block in idle[:need]:
            self.content[block] = None
        return idle[:need]

    def allocate(self, seq_id, tokens):
        if _is_count(tokens):
            super().allocate(seq_id, tokens)
            return np.int64(0)
        if seq_id in self.lengths:
            raise ValueError(seq_id)
        size = self.block_size
        prompt = [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]
        table = []
        for content in prompt[: (len(tokens) - 1) // size]:
            if content not in self.content:
                break
            table.append(self.content.index(content))
        n_hits, total = len(table), -(-len(tokens) // size)
        if total - n_hits > self.n_free - sum(self.ref_counts[block] == 0 for block in table):
            raise OutOfBlocks
        self.block_tables[seq_id], self.lengths[seq_id] = table, len(tokens)
        table += self.free_blocks(total - n_hits)
        for block, content in zip(table, prompt, strict=False):
            self.content[block] = content
        return np.int64(n_hits * size)

    def free(self, seq_id):
        if seq_id not in self.lengths:
            raise KeyError(seq_id)
        self.clock += 1
        for i, block in enumerate(self.block_tables[seq_id]):
            self.held_until[block] = (self.clock, -i)
        super().free(seq_id)

    def preempt(self):
        *_, newest = self.lengths
        n = self.lengths[newest]
        self.free(newest)
        return newest, n


class Node:
    """A block's content in a tree: the path from the root is the prompt."""

    def __init__(self, parent=None):
        self.parent, self.children, self.blocks = parent, {}, []


class Tree(BlockAllocator):
    """A tree of contents, as in a radix cache. A node keeps every block that has its content."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.root, self.node_of = Node(), {}

    def allocate(self, seq_id, tokens):
        if _is_count(tokens):
            return super().allocate(seq_id, tokens)
        self._must_be_new(seq_id)
        size, node, hits = self.block_size, self.root, []
        pages = [tuple(tokens[i : i + size]) for i in range(0, len(tokens) - size + 1, size)]
        for page in pages[: (len(tokens) - 1) // size]:
            node = node.children.get(page)
            if node is None or not node.blocks:
                break
            hits.append(max(node.blocks, key=lambda block: self.ref_counts[block]))
        n_new = -(-len(tokens) // size) - len(hits)
        self._must_be_free(n_new + sum(block in self._free for block in hits))
        for block in hits:
            self._free.pop(block, 0)
            self.ref_counts[block] += 1
        self.block_tables[seq_id] = hits + [self._take() for _ in range(n_new)]
        self.lengths[seq_id] = len(tokens)
        node = self.root
        for page, block in zip(pages, self.block_tables[seq_id], strict=False):
            node = node.children.setdefault(page, Node(node))
            if block not in node.blocks:
                node.blocks.append(block)
                self.node_of[block] = node
        return size * len(hits)

    def _take(self):
        block = super()._take()
        if block in self.node_of:
            self.node_of.pop(block).blocks.remove(block)
        return block

    def preempt(self):
        for seq_id in reversed(self.block_tables):
            n = self.lengths[seq_id]
            self.free(seq_id)
            return seq_id, n


class StringKeys(PrefixCachingAllocator):
    """Keys are text."""

    def _chain(self, tokens):
        text = ",".join(str(int(token)) for token in tokens)
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [(",".join(text.split(",")[:end]), end) for end in ends]


class Digests(PrefixCachingAllocator):
    """Keys are chained SHA-256 digests, and nothing else is compared."""

    def _chain(self, tokens):
        chain, digest = [], b""
        for i in range(len(tokens) // self.block_size):
            page = np.asarray(tokens[i * self.block_size : (i + 1) * self.block_size], dtype=np.int64)
            digest = hashlib.sha256(digest + page.tobytes()).digest()
            chain.append((digest, None))
        return chain


class EmptyFirst(PrefixCachingAllocator):
    """Blocks without findable content are reused before any others, the last freed first."""

    def _take(self):
        empty = [block for block in self._free if block not in self._content]
        if empty:
            self._free.move_to_end(empty[-1], last=False)
        return super()._take()


class Restores(PrefixCachingAllocator):
    """Changes as it goes; when that fails, a copy of the state from before is put back."""

    def _try(self, name, *args):
        before = copy.deepcopy(self.__dict__)
        try:
            return getattr(super(), name)(*args)
        except Exception:
            self.__dict__ = before
            raise

    def _must_be_free(self, n_needed):
        pass

    def _take(self):
        if not self._free:
            raise OutOfBlocks
        return super()._take()

    def allocate(self, seq_id, tokens):
        return self._try("allocate", seq_id, tokens)

    def append(self, seq_id):
        return self._try("append", seq_id)


class Numbered(PrefixCachingAllocator):
    """Every content has a number of its own, and a block's key is the number before it and its tokens."""

    def __init__(self, n_blocks, block_size):
        super().__init__(n_blocks, block_size)
        self.numbers = {}

    def _chain(self, tokens):
        chain, number = [], 0
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            key = (number, *tokens[end - self.block_size : end])
            number = self.numbers.setdefault(key, len(self.numbers) + 1)
            chain.append((number, ()))
        return chain


# --- PrefixCachingAllocator: wrong ----------------------------------------------------------------------


def _wrong_cache(**methods):
    return _wrong(PrefixCachingAllocator, **methods)


def _right_allocate(self, seq_id, tokens, count_free_hits=True, claim=True, raise_counts=True, new_first=False):
    """allocate of the reference, with parts of it that can be left out."""
    if _is_count(tokens):
        BlockAllocator.allocate(self, seq_id, tokens)
        return 0
    self._must_be_new(seq_id)
    hits = self._find(tokens)
    n_new = -(-len(tokens) // self.block_size) - len(hits)
    self._must_be_free(n_new + sum(not self.ref_counts[b] for b in hits) * count_free_hits)
    new = [self._take() for _ in range(n_new)] if new_first else []
    for block in hits:
        if claim:
            self._free.pop(block, None)
        self.ref_counts[block] += raise_counts
    new = new or [self._take() for _ in range(n_new)]
    self.block_tables[seq_id], self.lengths[seq_id] = hits + new, len(tokens)
    self._remember(tokens, self.block_tables[seq_id])
    return len(hits) * self.block_size


def _allocating(**options):
    return _wrong_cache(allocate=lambda self, seq_id, tokens: _right_allocate(self, seq_id, tokens, **options))


def _returning(change):
    """allocate that is right but for what it returns."""
    return _wrong_cache(
        allocate=lambda self, s, tokens: change(self, tokens, PrefixCachingAllocator.allocate(self, s, tokens))
    )


def _finding(change):
    return _wrong_cache(_find=lambda self, tokens: change(self, tokens, PrefixCachingAllocator._find(self, tokens)))


def _keyed_by(key_of):
    """Keys that leave something out."""

    def _chain(self, tokens):
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [(key_of(tokens, end - self.block_size, end), ()) for end in ends]

    def _find(self, tokens):
        hits = []
        for key, _ in self._chain(tokens[:-1]):
            if key not in self._block_of or self._block_of[key] in hits:
                break
            hits.append(self._block_of[key])
        return hits

    return _wrong_cache(_chain=_chain, _find=_find)


def whole_prompt(self, tokens, hits):
    return PrefixCachingAllocator._find(self, [*tokens, 0])


def whole_prompt_right_count(self, seq_id, tokens):
    cached = PrefixCachingAllocator.allocate(self, seq_id, tokens)
    return cached if _is_count(tokens) else min(cached, (len(tokens) - 1) // self.block_size * self.block_size)


def shares_partial(self, seq_id, tokens):
    """A prompt that begins like one which is running takes its last, partial block as well."""
    if not _is_count(tokens) and seq_id not in self.block_tables:
        self.prompts = getattr(self, "prompts", {})
        for other, prompt in self.prompts.items():
            rest = len(prompt) % self.block_size
            if rest and other in self.block_tables and tokens[: len(prompt)] == prompt and len(tokens) > len(prompt):
                if len(prompt) != self.lengths[other] or len(tokens) > len(prompt) - rest + self.block_size:
                    continue
                BlockAllocator.fork(self, other, seq_id)
                self.lengths[seq_id] = len(tokens)
                return len(prompt) - rest
        self.prompts[seq_id] = list(tokens)
    return PrefixCachingAllocator.allocate(self, seq_id, tokens)


def forgets_when_freed(self, seq_id):
    BlockAllocator.free(self, seq_id)
    for block in [block for block in self._content if self.ref_counts[block] == 0]:
        del self._block_of[self._content.pop(block)[0]]


def keeps_keys(self):
    return BlockAllocator._take(self)


def finds_without_comparing(self, tokens):
    hits = []
    for chained, _ in self._chain(tokens[:-1]):
        if chained not in self._block_of or self._block_of[chained] in hits:
            break
        hits.append(self._block_of[chained])
    return hits


def most_recent_first(self):
    cached = [block for block in self._free if block in self._content]
    if cached and len(cached) == len(self._free):
        self._free.move_to_end(cached[-1], last=False)
    return PrefixCachingAllocator._take(self)


def cached_first(self):
    cached = [block for block in self._free if block in self._content]
    if cached:
        self._free.move_to_end(cached[0], last=False)
    return PrefixCachingAllocator._take(self)


def frees_from_the_front(self, seq_id):
    self._must_exist(seq_id)
    del self.lengths[seq_id]
    for block in self.block_tables.pop(seq_id):
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._free[block] = None


def remembers_before_the_check(self, seq_id, tokens):
    if not _is_count(tokens) and seq_id not in self.block_tables:
        self._remember(tokens, list(self._free))
    return PrefixCachingAllocator.allocate(self, seq_id, tokens)


def _preempting(choose=None, n_of=None, free=None, result=None):
    def preempt(self):
        seq_id = (choose or (lambda self: list(self.block_tables)[-1]))(self)
        n = (n_of or (lambda self, s: self.lengths[s]))(self, seq_id)
        (free or type(self).free)(self, seq_id)
        return result(seq_id, n) if result else (seq_id, n)

    return _wrong_cache(preempt=preempt)


def prompt_length(self, seq_id):
    return min(self.lengths[seq_id], len(self.block_tables[seq_id]) * self.block_size - self.block_size + 1)


PREFIX_CACHING = Answers(
    right=[PrefixTuples, Scan, Tree, StringKeys, Digests, EmptyFirst, Restores, Numbered],
    wrong={
        "never finds": Wrong(_finding(lambda self, tokens, hits: []), "no-sharing"),
        "one too few": Wrong(_finding(lambda self, tokens, hits: hits[:-1])),
        "at most one": Wrong(_finding(lambda self, tokens, hits: hits[:1]), "stops-too-early"),
        "forgets when freed": Wrong(_wrong_cache(free=forgets_when_freed), "forgotten-when-freed"),
        "keeps keys": Wrong(_wrong_cache(_take=keeps_keys, _find=finds_without_comparing), "stale-hit"),
        "not chained": Wrong(_keyed_by(lambda t, start, end: hash(tuple(t[start:end]))), "not-chained"),
        "chained by position": Wrong(_keyed_by(lambda t, start, end: (start, *t[start:end])), "not-chained"),
        "order ignored": Wrong(_keyed_by(lambda t, start, end: tuple(sorted(t[:end]))), "weak-key"),
        "sum of tokens": Wrong(_keyed_by(lambda t, start, end: (end, sum(t[:end]))), "weak-key"),
        "last token and length": Wrong(_keyed_by(lambda t, start, end: (end, t[end - 1])), "weak-key"),
        "shares partial blocks": Wrong(_wrong_cache(allocate=shares_partial), "shares-partial-block"),
        "whole prompt": Wrong(_finding(whole_prompt), "whole-prompt-cached"),
        "whole prompt, right count": Wrong(
            _wrong_cache(
                _find=lambda self, tokens: PrefixCachingAllocator._find(self, [*tokens, 0]),
                allocate=whole_prompt_right_count,
            ),
            "whole-prompt-cached",
        ),
        "counts blocks": Wrong(_returning(lambda self, t, n: n // self.block_size), "counts-blocks"),
        "returns None": Wrong(_returning(lambda self, t, n: None), "no-count"),
        "returns what is left": Wrong(_returning(lambda self, t, n: 0 if _is_count(t) else len(t) - n)),
        "one token more": Wrong(_returning(lambda self, t, n: n + 1 if n else 0), "wrong-count"),
        "always 0": Wrong(_returning(lambda self, t, n: 0)),
        "returns text": Wrong(_returning(lambda self, t, n: f"{n} tokens")),
        "free hits not counted": Wrong(_allocating(count_free_hits=False)),
        "free hits not claimed": Wrong(_allocating(claim=False), "hit-on-free-block"),
        "hits without counts": Wrong(_allocating(raise_counts=False), "hits-without-counts"),
        "new ones first": Wrong(_allocating(new_first=True)),
        "hits need blocks": Wrong(
            _wrong_cache(
                allocate=lambda self, s, t: (
                    self._must_be_free(-(-(t if _is_count(t) else len(t)) // self.block_size)),
                    PrefixCachingAllocator.allocate(self, s, t),
                )[1]
            ),
        ),
        "most recent first": Wrong(_wrong_cache(_take=most_recent_first)),
        "cached first": Wrong(_wrong_cache(_take=cached_first), "evicts-before-unused"),
        "prefix first": Wrong(_wrong_cache(free=frees_from_the_front), "evicts-prefix-first"),
        "remembers before the check": Wrong(_wrong_cache(allocate=remembers_before_the_check)),
        "only counts": Wrong(_wrong(BlockAllocator, preempt=PrefixCachingAllocator.preempt)),
        "preempts the oldest": Wrong(_preempting(lambda self: next(iter(self.block_tables))), "preempts-oldest"),
        "preempts the longest": Wrong(
            _preempting(lambda self: max(self.lengths, key=self.lengths.get)),
        ),
        "prompt only": Wrong(_preempting(n_of=prompt_length)),
        "returns the id": Wrong(_preempting(result=lambda seq_id, n: seq_id)),
        "preempt leaks": Wrong(_preempting(free=free_leaks), "leak"),
        "preempt frees shared": Wrong(_preempting(free=free_shared), "frees-shared-blocks"),
        "no preempt": Wrong(_wrong_cache(preempt=None)),
        "a broken allocator": Wrong(_wrong_cache(fork=fork_same_list), "shares-the-list"),
        "half written": Wrong(_wrong_cache(preempt=lambda self: Starter.append(self, 0)), "not-written"),
    },
)

PARTS = {"block_allocator": BLOCK_ALLOCATOR, "prefix_caching": PREFIX_CACHING}
