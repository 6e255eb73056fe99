"""The rules of a block allocator: what may come of a call, given the state before it.

Rules look at block tables, lengths, reference counts and the number of free blocks, never at how they are kept:
any order of block ids will do. `BlockRules` follows one allocator through a sequence of calls and says what is wrong
with the first call that breaks a rule.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar, NamedTuple

from lessonlib.check.harness import show
from lessonlib.check.objects import Call, Seen

WHY = {
    "block-per-token": (
        "A block was taken for every token. A block holds block_size tokens: take a new one only when the last is full."
    ),
    "one-block-too-many": (
        "One block too many: n tokens need ceil(n / block_size) blocks, and an exact multiple leaves no started block."
    ),
    "one-block-too-few": "One block too few: the last tokens need a block, even if they do not fill it.",
    "never-allocates": "The last block is full, so the new token has no slot: append must take a new block here.",
    "fork-copies": (
        "The fork took blocks of its own. A child shares every block of its parent until one of them writes."
    ),
    "shares-the-list": (
        "Parent and child share one list object, so that a change of one table changes the other. Give the child a "
        "list of its own with the same block ids."
    ),
    "no-copy-on-write": (
        "The token would be written into a block that another sequence holds too. Where the count is above 1, take a "
        "private copy first."
    ),
    "copies-every-block": "Every block was copied. Only the last one is written: all full blocks stay shared.",
    "last-sharer-copies": "Nobody else holds this block (count 1), so write in place: a copy wastes a block.",
    "copies-full-block": (
        "A full block is never written again, so it needs no copy, shared or not: just take a new block."
    ),
    "shared-count-not-lowered": (
        "After copy-on-write this table no longer holds the shared block: its count goes down by 1."
    ),
    "copy-not-reported": (
        "append made a private copy and must say so: return (source_block, copy_block), or its content is lost."
    ),
    "pair-reversed": "The pair is (source_block, copy_block): what to copy from comes first.",
    "reports-no-copy": "No block was copied, so there is nothing to report: return None.",
    "frees-shared-blocks": (
        "Blocks were given back that another sequence still holds. Lower the count, and give a block back at 0."
    ),
    "leak": "Blocks were lost: they belong to nobody, and cannot be had again either.",
    "double-free": (
        "There is no such sequence, so free must raise KeyError. A second free that passes would lower the counts of "
        "blocks that others hold."
    ),
    "unknown-id-accepted": "There is no such sequence: raise KeyError.",
    "repeated-id-accepted": "The id is in use: raise ValueError, or its old blocks are lost.",
    "keeps-blocks-on-failure": "The call failed and kept something. Count what is needed before anything is taken.",
    "changes-state-on-failure": "The call failed and changed something. Check first, then change.",
    "exact-fit-refused": "Exactly as many blocks are free as are needed: that fits.",
    "takes-what-is-not-there": "There are not enough free blocks: raise OutOfBlocks.",
    "wrong-error": (
        "The error must be the one that callers wait for: OutOfBlocks where blocks are short, KeyError or ValueError "
        "for a wrong id."
    ),
    "id-out-of-range": "Block ids go from 0 to n_blocks - 1: there is no such block.",
    "duplicate-block": "One block stands twice in a table: two parts of the sequence would overwrite each other.",
    "hands-out-held-block": "A block that another sequence holds was handed out: the two would overwrite each other.",
    "fork-without-counts": "The child holds the parent's blocks too: each count goes up by 1.",
    "counts-not-kept": "ref_counts[b] is the number of tables that hold block b, after every call.",
    "free-count-not-kept": "n_free is the number of blocks with count 0, after every call.",
    "lengths-not-kept": "lengths must follow every call: it tells when the last block is full.",
    "shared-between-instances": (
        "Two allocators share state. Make tables and counts in __init__, with self, and not in the class or as a "
        "default argument."
    ),
}


class State(NamedTuple):
    """What an allocator shows after a call."""

    tables: dict[Any, list[int]]
    lengths: dict[Any, int]
    counts: list[int]
    n_free: int


class Fault(NamedTuple):
    """A broken rule.

    Args:
        came: what was seen.
        expected: what should have been.
        slug: the mistake that leads to this, if it is a known one.
    """

    came: str
    expected: str
    slug: str | None = None


class BrokenRule(Exception):  # noqa: N818 - it carries a fault from a rule to the judge, no more
    """Raised inside the rules at the first fault."""

    def __init__(self, came: str, expected: str, slug: str | None = None) -> None:
        self.fault = Fault(came, expected, slug)


def fields(n_blocks: int) -> dict[str, int | None]:
    """The documented state of an allocator, as `replay` wants it."""
    return {"block_tables": None, "lengths": None, "ref_counts": n_blocks, "n_free": None}


def is_whole(value: Any) -> bool:
    """Whether a plain value is a whole number; a float such as 3.0 is one."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value == int(value)


def _named(holders: list[Any]) -> str:
    """Who holds a block."""
    if not holders:
        return "nobody holds"
    return f"{' and '.join(map(repr, holders))} {'holds' if len(holders) == 1 else 'hold'}"


def show_pair(value: Any) -> str:
    """A returned value; a pair as the tuple that it stands for."""
    return show(tuple(value) if isinstance(value, list) else value)


class BlockRules:
    """Follows one allocator through its calls.

    Args:
        n_blocks: blocks in its pool.
        block_size: tokens per block.
    """

    why: ClassVar[dict[str, str]] = WHY

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks, self.block_size = n_blocks, block_size
        self.state = State({}, {}, [0] * n_blocks, n_blocks)
        self.past: set[str] = set()

    def start(self, seen: Seen) -> Fault | None:
        """Judge a new allocator."""
        try:
            if seen.errors:
                raise BrokenRule(seen.message, "a new allocator")
            after = self.read(seen)
            slug = "shared-between-instances" if after.tables or after.lengths else None
            self._same_state(after, "an empty pool", slug)
        except BrokenRule as broken:
            return broken.fault
        return None

    def judge(self, call: Call, seen: Seen) -> Fault | None:
        """Judge one call, and remember the state after it."""
        try:
            after = self.read(seen)
            wanted = self.refusal(call)
            if seen.errors:
                self._judge_error(call, seen, after, wanted)
            elif wanted and "OutOfBlocks" not in wanted:
                slug = "repeated-id-accepted" if self._is_repeated(call) else "unknown-id-accepted"
                raise BrokenRule(
                    f"returned {show(seen.value)}",
                    f"{' or '.join(wanted)}",
                    "double-free" if call.method == "free" else slug,
                )
            else:
                self.judge_result(call, seen.value, after)
                if wanted:
                    raise BrokenRule(f"returned {show(seen.value)}", "OutOfBlocks", "takes-what-is-not-there")
        except BrokenRule as broken:
            return broken.fault
        self.past.add("refused" if seen.errors else call.method)
        self.state = after
        return None

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, seen: Seen) -> State:
        """The state after a call, in plain numbers. Entries of sequences that hold nothing are left out."""
        if seen.trouble:
            raise BrokenRule(seen.trouble, "block_tables, lengths, ref_counts and n_free that anyone can read")
        raw = seen.state
        for name in ("block_tables", "lengths"):
            if not isinstance(raw[name], dict):
                raise BrokenRule(f"{name} = {show(raw[name])}", f"{name}, a dict from seq_id")
        tables = {}
        for seq_id, table in raw["block_tables"].items():
            if not isinstance(table, list):
                raise BrokenRule(f"block_tables[{seq_id!r}] = {show(table)}", "a list of block ids")
            if table:
                tables[seq_id] = [self._whole(b, "block_tables", seq_id, table) for b in table]
        lengths = {seq_id: self._whole(n, "lengths", seq_id, n) for seq_id, n in raw["lengths"].items()}
        counts = [self._whole(n, "ref_counts", block, n) for block, n in enumerate(raw["ref_counts"])]
        n_free = raw["n_free"]
        if "method" in str(n_free):
            raise BrokenRule("n_free is a method", "a number: make n_free a property")
        if not is_whole(n_free):
            raise BrokenRule(f"n_free = {show(n_free)}", "a whole number")
        return State(tables, {s: n for s, n in lengths.items() if n or s in tables}, counts, int(n_free))

    @staticmethod
    def _whole(value: Any, field: str, key: Any, entry: Any) -> int:
        if not is_whole(value):
            raise BrokenRule(f"{field}[{key!r}] = {show(entry)}", "whole numbers")
        return int(value)

    # --- calls that must fail ---------------------------------------------------------------------------

    def _is_repeated(self, call: Call) -> bool:
        return call.method in ("allocate", "fork") and self._subject(call) in self.state.tables

    @staticmethod
    def _subject(call: Call) -> Any:
        """The sequence whose table a call makes or changes."""
        return call.args[1] if call.method == "fork" else call.args[0]

    def _is_unknown(self, call: Call) -> bool:
        return call.method in ("append", "fork", "free") and call.args[0] not in self.state.tables

    def refusal(self, call: Call) -> tuple[str, ...]:
        """Names of the errors of which this call must raise one; empty if it must succeed."""
        ids = ("KeyError", "ValueError") if self._is_repeated(call) or self._is_unknown(call) else ()
        if call.method == "allocate":
            short = self.n_needed(call.args[1]) > self.state.n_free
        else:
            short = call.method == "append" and not ids and self._append_takes(call.args[0]) > self.state.n_free
        return (*ids, "OutOfBlocks") if short and ids else ("OutOfBlocks",) if short else ids

    def n_needed(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def _append_takes(self, seq_id: Any) -> int:
        full = self.state.lengths[seq_id] % self.block_size == 0
        return int(full or self.state.counts[self.state.tables[seq_id][-1]] > 1)

    def _judge_error(self, call: Call, seen: Seen, after: State, wanted: tuple[str, ...]) -> None:
        if not wanted:
            raise BrokenRule(f"raised {seen.message}", self._why_possible(call), self._lost_blocks(call, seen))
        slug = "keeps-blocks-on-failure" if call.method == "allocate" else "changes-state-on-failure"
        self._same_state(after, f"the state before the call, which raised {seen.errors[0]}", slug)
        if not set(seen.errors) & set(wanted):
            raise BrokenRule(f"raised {seen.message}", " or ".join(wanted), "wrong-error")

    def _why_possible(self, call: Call) -> str:
        n = self.state.n_free
        free = f": {n} block{' is' if n == 1 else 's are'} free"
        return f"no error{free if call.method in ('allocate', 'append') else ''}"

    def _lost_blocks(self, call: Call, seen: Seen) -> str | None:
        """Why a call may have failed that had blocks enough."""
        if call.method not in ("allocate", "append") or not {"OutOfBlocks", "LookupError"} & set(seen.errors):
            return None
        if "refused" in self.past:
            return "keeps-blocks-on-failure"
        if "free" in self.past:
            return "leak"
        exact = call.method == "append" or self.n_needed(call.args[1]) == self.state.n_free
        return "exact-fit-refused" if exact and self.state.n_free else None

    def _same_state(self, after: State, what: str, slug: str | None) -> None:
        for name, old, new in zip(("block_tables", "lengths", "ref_counts", "n_free"), self.state, after, strict=True):
            if old != new:
                raise BrokenRule(f"{name} = {show(new)}", f"{name} = {show(old)}: {what}", slug)

    # --- calls that must succeed ------------------------------------------------------------------------

    def judge_result(self, call: Call, value: Any, after: State) -> None:
        """Judge what a call returned and changed."""
        tables, lengths = dict(self.state.tables), dict(self.state.lengths)
        changed = self._subject(call)
        if call.method == "free":
            del tables[changed], lengths[changed]
        else:
            if changed not in after.tables:
                raise BrokenRule(f"block_tables = {show(after.tables)}", f"a table for {changed!r}")
            tables[changed] = after.tables[changed]
            getattr(self, f"_judge_{call.method}")(call, value, after)
            lengths[changed] = {
                "allocate": lambda: self.length_of(call.args[1]),
                "append": lambda: lengths[changed] + 1,
                "fork": lambda: lengths[call.args[0]],
            }[call.method]()
        self._judge_others(call, after, tables, lengths)

    def length_of(self, tokens: Any) -> int:
        return tokens

    def _judge_allocate(self, call: Call, value: Any, after: State) -> None:
        seq_id, n_tokens = call.args
        table, n_needed = after.tables[seq_id], self.n_needed(n_tokens)
        self.judge_length(table, seq_id, n_tokens, n_needed)
        self.judge_new_blocks(table, table, seq_id)

    def judge_length(self, table: list[int], seq_id: Any, n_tokens: int, n_needed: int) -> None:
        if len(table) != n_needed:
            slug = "one-block-too-few" if len(table) < n_needed else "one-block-too-many"
            slug = "block-per-token" if len(table) == n_tokens else slug
            raise BrokenRule(
                f"block_tables[{seq_id!r}] = {show(table)}",
                f"{n_needed} blocks: {n_tokens} tokens in blocks of {self.block_size}",
                slug,
            )

    def judge_new_blocks(self, table: list[int], new: list[int], seq_id: Any) -> None:
        """Judge a table into which some blocks were taken from the pool."""
        shown = f"block_tables[{seq_id!r}] = {show(table)}"
        for block in new:
            if not 0 <= block < self.n_blocks:
                short = len(new) > self.state.n_free
                raise BrokenRule(
                    shown, "OutOfBlocks" if short else f"ids from 0 to {self.n_blocks - 1}", "id-out-of-range"
                )
            if self.state.counts[block]:
                slug = "frees-shared-blocks" if "free" in self.past else "hands-out-held-block"
                holders = [s for s, held in self.state.tables.items() if block in held]
                raise BrokenRule(shown, f"blocks that nobody holds; {_named(holders)} block {block}", slug)
        if len(set(table)) < len(table):
            raise BrokenRule(shown, "each block once", "duplicate-block")

    def _judge_append(self, call: Call, value: Any, after: State) -> None:
        seq_id = call.args[0]
        before, table = self.state.tables[seq_id], after.tables[seq_id]
        full = self.state.lengths[seq_id] % self.block_size == 0
        shared = self.state.counts[before[-1]] > 1
        shown = f"block_tables[{seq_id!r}] = {show(table)}"
        judge_table = self._after_full if full else self._after_shared if shared else self._after_private
        judge_table(before, table, shown)
        self.judge_new_blocks(table, table[-1:] if full or shared else [], seq_id)
        self._judge_pair(value, (before[-1], table[-1]) if shared and not full else None)

    @staticmethod
    def _after_full(before: list[int], table: list[int], shown: str) -> None:
        if len(table) == len(before):
            slug = "never-allocates" if table == before else "copies-full-block"
            raise BrokenRule(shown, f"one block more than {show(before)}: block {before[-1]} is full", slug)
        if table[:-1] != before:
            raise BrokenRule(shown, f"{show(before)} and a new block behind it", "copies-full-block")

    def _after_shared(self, before: list[int], table: list[int], shown: str) -> None:
        last = before[-1]
        if len(table) > len(before):
            raise BrokenRule(shown, f"no more than {len(before)} blocks: block {last} has room", "block-per-token")
        if table == before:
            why = f"a private copy in place of block {last}: {self.state.counts[last]} sequences hold it"
            raise BrokenRule(shown, why, "no-copy-on-write")
        if table[:-1] != before[:-1]:
            slug = None if set(table) & set(before) else "copies-every-block"
            raise BrokenRule(shown, f"{show(before)} with only the last block replaced", slug)

    @staticmethod
    def _after_private(before: list[int], table: list[int], shown: str) -> None:
        if table != before:
            slug = "block-per-token" if len(table) > len(before) else "last-sharer-copies"
            why = f"{show(before)}, unchanged: block {before[-1]} has room and no other sequence holds it"
            raise BrokenRule(shown, why, slug)

    @staticmethod
    def _judge_pair(value: Any, pair: tuple[int, int] | None) -> None:
        if value == (None if pair is None else list(pair)):
            return
        slug: str | None = None
        if pair is None:
            slug = "reports-no-copy"
        elif value is None:
            slug = "copy-not-reported"
        elif value == [pair[1], pair[0]]:
            slug = "pair-reversed"
        raise BrokenRule(f"returned {show_pair(value)}", f"{pair}, source and copy" if pair else "None", slug)

    def _judge_fork(self, call: Call, value: Any, after: State) -> None:
        parent, child = call.args
        before, table = self.state.tables[parent], after.tables[child]
        if table != before:
            slug = "fork-copies" if len(table) == len(before) else None
            raise BrokenRule(f"block_tables[{child!r}] = {show(table)}", f"the parent's blocks {show(before)}", slug)

    def _judge_others(self, call: Call, after: State, tables: dict, lengths: dict) -> None:
        """Judge everything that the call should leave alone, and the counts, which follow from the tables."""
        if after.tables != tables:
            other = next(s for s in {**tables, **after.tables} if tables.get(s) != after.tables.get(s))
            came = f"block_tables[{other!r}] = {show(after.tables.get(other))}"
            slug = self._other_changed(call, other, after)
            raise BrokenRule(came, f"{show(tables.get(other, 'no such table'))}: {self._effect(call)}", slug)
        if after.lengths != lengths:
            raise BrokenRule(f"lengths = {show(after.lengths)}", show(lengths), "lengths-not-kept")
        counts = Counter(block for table in tables.values() for block in table)
        for block, count in enumerate(after.counts):
            if count != counts[block]:
                holders = [s for s, table in tables.items() if block in table]
                expected = f"ref_counts[{block}] = {counts[block]}: {_named(holders)} it"
                slug = self._wrong_count(call, block, count, counts[block])
                raise BrokenRule(f"ref_counts[{block}] = {count}", expected, slug)
        n_free = self.n_blocks - len(counts)
        if after.n_free != n_free:
            expected = f"n_free = {n_free}: ref_counts = {show(after.counts)}"
            raise BrokenRule(f"n_free = {after.n_free}", expected, self._wrong_n_free(call, after.n_free, n_free))

    def _effect(self, call: Call) -> str:
        return "only the table of the call's own sequence changes" if call.method != "free" else "only that table goes"

    def _other_changed(self, call: Call, other: Any, after: State) -> str | None:
        shared = self.state.tables.get(other) == self.state.tables.get(call.args[0])
        return "shares-the-list" if shared and call.method in ("append", "free") and other != call.args[0] else None

    def _wrong_count(self, call: Call, block: int, came: int, right: int) -> str:
        if call.method == "append" and came > right and block in self.state.tables[call.args[0]]:
            return "shared-count-not-lowered"
        if call.method == "fork" and came < right:
            return "fork-without-counts"
        if call.method == "free":
            return "leak" if came > right else "frees-shared-blocks" if right else "counts-not-kept"
        return "counts-not-kept"

    def _wrong_n_free(self, call: Call, came: int, right: int) -> str:
        if call.method == "free":
            held = any(self.state.counts[block] > 1 for block in self.state.tables[call.args[0]])
            return "leak" if came < right else "frees-shared-blocks" if held else "free-count-not-kept"
        return "free-count-not-kept"
