"""Figure 3: KV memory, contiguous against paged, action by action (Kwon et al. 2023, arXiv:2309.06180, section 4).

A small server runs every sequence of actions that the buttons allow, once with buffers reserved at the maximum
length and once with a `BlockAllocator`, the learner's or the reference. The page holds what the allocators' tables
were after each; it computes no memory management of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from string import ascii_lowercase, digits
from typing import Any

from lessonlib.check.harness import CheckFailed
from lessonlib.figures import interactive, still
from lessonlib.records import OutOfBlocks
from lessonlib.reference import BlockAllocator as Reference

TITLE = "KV memory: contiguous against paged"
N_BLOCKS, BLOCK = 12, 4
RESERVED = 16  # slots that the contiguous server reserves for each request, its maximum length
N_STEPS, N_ADDS, N_FORKS = 7, 2, 1  # what the buttons allow: every run must fit in the output
PROMPTS = {"A": 6, "B": 9, "C": 3, "D": 6, "E": 7}
FIRST = ("A", "B", "C")
CHILD = "F"  # the fork of A, shown as A2
ENDS = {"B": 14}  # length at which a request is done
_DIGITS = digits + ascii_lowercase


Snapshot = dict[str, tuple[int, str]]


Allocator = Any  # a BlockAllocator of exercise 3, or something with its interface


class Reserving:
    """Earlier servers' way, with an allocator's interface: one contiguous buffer of the maximum length each."""

    def __init__(self) -> None:
        self.block_tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}
        self.ref_counts = [0] * N_BLOCKS

    @property
    def n_free(self) -> int:
        return self.ref_counts.count(0)

    def allocate(self, seq_id: str, n_tokens: int) -> None:
        size = RESERVED // BLOCK
        start = next((block for block in range(0, N_BLOCKS, size) if not self.ref_counts[block]), None)
        if start is None:
            raise OutOfBlocks("no buffer is free")
        self.block_tables[seq_id] = list(range(start, start + size))
        self.ref_counts[start : start + size] = [1] * size
        self.lengths[seq_id] = n_tokens

    def append(self, seq_id: str) -> None:
        self.lengths[seq_id] += 1

    def fork(self, parent_id: str, child_id: str) -> None:
        self.allocate(child_id, self.lengths[parent_id])

    def free(self, seq_id: str) -> None:
        for block in self.block_tables.pop(seq_id):
            self.ref_counts[block] = 0
        del self.lengths[seq_id]


class Broken(Exception):  # noqa: N818 - a finding about an allocator, not an error of the figure
    """A paged allocator's state contradicts the rules of exercise 3; the text says how."""


class Server:
    """Runs requests on an allocator, first come, first served, and notes what happened for the sentence below.

    Args:
        allocator: the memory manager.
        paged: whether to hold it to the rules of exercise 3.
    """

    def __init__(self, allocator: Allocator, paged: bool) -> None:
        self.allocator, self.paged = allocator, paged
        self.running: list[str] = []  # oldest first
        self.waiting: dict[str, int] = {}  # tokens to prefill
        self.tokens: dict[str, int] = {}
        self.names = iter(PROMPTS)
        self.events: list[str] = []
        for name in FIRST:
            self.start(next(self.names), PROMPTS[name])
        self.events = []

    def act(self, action: str) -> None:
        """One press of a button: s a step, a a new request, f a fork of the oldest.

        Raises:
            Broken: the allocator broke a rule.
        """
        self.events = []
        {"s": self.step, "a": self.add, "f": self.fork}[action]()

    def start(self, name: str, n_tokens: int) -> None:
        try:
            self.allocator.allocate(name, n_tokens)
        except OutOfBlocks:
            self.waiting[name] = n_tokens
            self.events.append(f"wait {name}")
            return
        self.waiting.pop(name, None)
        self.running.append(name)
        self.tokens[name] = n_tokens
        self.events.append(f"start {name}")

    def add(self) -> None:
        name = next(self.names)
        self.start(name, PROMPTS[name])

    def fork(self) -> None:
        parent = self.running[0]
        try:
            self.allocator.fork(parent, CHILD)
        except OutOfBlocks:
            self.events.append("nofork")
            return
        self.running.append(CHILD)
        self.tokens[CHILD] = self.tokens[parent]
        self.events.append("fork")

    def step(self) -> None:
        for name, n_tokens in list(self.waiting.items()):
            # Room for the tokens and for one more block each: a request that starts is not preempted at once.
            if int(self.allocator.n_free) >= -(-n_tokens // BLOCK) + len(self.running):
                self.start(name, n_tokens)
        for name in list(self.running):
            while name in self.running and not self._append(name):
                self._preempt(self.running[-1])
        for name in list(self.running):
            if self.tokens[name] == ENDS.get(name):
                self._drop(name)
                self.events.append(f"done {name}")

    def _append(self, name: str) -> bool:
        before = _tables(self.allocator)
        try:
            pair = self.allocator.append(name)
        except OutOfBlocks:
            return False
        self.tokens[name] += 1
        if not self.paged:
            return True
        last = before[name][-1]
        shared = any(last in table for other, table in before.items() if other != name)
        if pair is not None:
            self.events.append(f"copy {name} {int(pair[0])} {int(pair[1])}")
            if not shared:
                raise Broken(f"append({name!r}) copied block {last}, which no other sequence holds: write in place.")
        elif shared and (self.tokens[name] - 1) % BLOCK and _tables(self.allocator)[name][-1] == last:
            raise Broken(f"append({name!r}) wrote into block {last}, which another sequence holds too: copy it first.")
        return True

    def _preempt(self, name: str) -> None:
        self.waiting[name] = self.tokens[name]
        self._drop(name)
        self.events.append(f"preempt {name}")

    def _drop(self, name: str) -> None:
        self.allocator.free(name)
        self.running.remove(name)
        del self.tokens[name]

    def hold_to_the_rules(self) -> None:
        """Raise `Broken` where the paged allocator's public state is wrong."""
        tables = _tables(self.allocator)
        if set(tables) != set(self.running):
            raise Broken(f"block_tables has {sorted(map(str, tables))}, but {sorted(self.running)} are running.")
        for name, table in tables.items():
            length, needed = int(self.allocator.lengths[name]), -(-self.tokens[name] // BLOCK)
            if length != self.tokens[name]:
                raise Broken(f"lengths[{name!r}] is {length}, but it has {self.tokens[name]} tokens.")
            if len(table) != needed or len(set(table)) != needed or not set(table) <= set(range(N_BLOCKS)):
                raise Broken(f"{name} has {length} tokens and the blocks {table}: {needed} different blocks hold them.")
        for block in range(N_BLOCKS):
            holders, said = sum(block in table for table in tables.values()), _count(self.allocator.ref_counts, block)
            if said != holders:
                raise Broken(f"ref_counts[{block}] is {said}, but {holders} tables hold the block.")
        free = N_BLOCKS - len({block for table in tables.values() for block in table})
        if int(self.allocator.n_free) != free:
            raise Broken(f"n_free is {int(self.allocator.n_free)}, but {free} blocks are in no table.")


def _tables(allocator: Allocator) -> dict[str, list[int]]:
    """The tables of live sequences; an empty one is of a sequence that was freed."""
    return {name: [int(block) for block in table] for name, table in allocator.block_tables.items() if len(table)}


def _count(ref_counts: Any, block: int) -> int:
    """How many hold a block: a dict may leave out those that no one does."""
    try:
        return int(ref_counts[block])
    except KeyError:
        return 0


# --- all runs, packed -------------------------------------------------------------------------------------


class Runs:
    """Every sequence of actions, as a tree of what changed, in one string.

    A node is its note, then each child behind its action and ">" (s a step, a an added request, f a fork), then
    ";". The note holds the sequences whose state is not "one token more, same table", as "A725" (7 tokens in blocks
    2 and 5; digits in base 36) or "A-" (gone); then, behind "|", the numbers of its events in `events`.

    Args:
        make: makes a fresh allocator.
        paged: whether it is held to the rules.
    """

    def __init__(self, make: Callable[[], Allocator], paged: bool) -> None:
        self.make, self.paged = make, paged
        self.events: dict[str, int] = {}

    def tree(self) -> str:
        """The whole tree."""
        return self._node("", Server(self.make(), self.paged), {})

    def _node(self, path: str, server: Server, before: Snapshot) -> str:
        """The node that the server has reached by the actions of `path`, and all below it."""
        broken = self._act(server, path[-1]) if path else ""
        events = [*server.events, *([f"broken {broken}"] if broken else [])]
        state = snapshot(server)
        note = _changes(before, state, stepped=path.endswith("s"))
        if events:
            note += "|" + ",".join(str(self.events.setdefault(event, len(self.events))) for event in events)
        for action in "" if broken else _allowed(path):
            # The first branch goes on with this server, the others repeat the path on a server of their own.
            note += f"{action}>" + self._node(path + action, server if action == "s" else self._replay(path), state)
        return note + ";"

    def _replay(self, path: str) -> Server:
        server = Server(self.make(), self.paged)
        for action in path:
            server.act(action)
        return server

    def _act(self, server: Server, action: str) -> str:
        """Do it, and say what is wrong with the allocator afterwards, if anything."""
        method = {"s": "append", "a": "allocate", "f": "fork"}[action]
        try:
            server.act(action)
            if self.paged:
                server.hold_to_the_rules()
        except Broken as finding:
            return str(finding)
        except NotImplementedError:
            return f"{method}: not written yet."
        except Exception as error:
            return f"{method} or free raised {type(error).__name__}: {error}"
        return ""


def _allowed(path: str) -> str:
    """The actions that the buttons offer after `path`."""
    if path.count("s") == N_STEPS:
        return ""
    return "s" + "a" * (path.count("a") < N_ADDS) + "f" * (path.count("f") < N_FORKS)


def snapshot(server: Server) -> Snapshot:
    """Name -> length and table, the table as base-36 digits; what the page cannot show is left out."""
    return {
        name: (
            max(0, min(35, int(server.allocator.lengths.get(name, 0)))),
            "".join(_DIGITS[block] for block in table if 0 <= block < N_BLOCKS)[:N_BLOCKS],
        )
        for name, table in _tables(server.allocator).items()
        if name in (*PROMPTS, CHILD)
    }


def _changes(before: Snapshot, after: Snapshot, stepped: bool) -> str:
    usual = {name: (length + stepped, table) for name, (length, table) in before.items()}
    changed = [
        f"{name}{_DIGITS[length]}{table}"
        for name, (length, table) in after.items()
        if usual.get(name) != (length, table)
    ]
    return "".join(changed + [f"{name}-" for name in before if name not in after])


def used_share(state: Snapshot) -> float:
    """Slots that hold a token / slots of taken blocks."""
    filled: dict[str, int] = {}
    for length, table in state.values():
        for i, block in enumerate(table):
            filled[block] = max(filled.get(block, 0), min(BLOCK, max(0, length - BLOCK * i)))
    return sum(filled.values()) / (BLOCK * len(filled)) if filled else 0.0


@functools.cache
def _contiguous() -> tuple[str, list[str]]:
    runs = Runs(Reserving, paged=False)
    return runs.tree(), list(runs.events)


@interactive.or_message(TITLE, "figures.kv_memory()")
def kv_memory(BlockAllocator: Callable[..., Any] | None = None) -> interactive.Figure:
    """Contiguous against paged KV memory: step, add a request, fork the oldest, and see which slots hold tokens.

    Args:
        BlockAllocator: the learner's class; the reference where it is left out.
    """
    answer = interactive.learners(BlockAllocator, "BlockAllocator")
    make = BlockAllocator or Reference
    runs = Runs(lambda: make(N_BLOCKS, BLOCK), paged=True)

    def run() -> tuple[Snapshot, str]:
        first = Server(runs.make(), paged=True)
        first.hold_to_the_rules()
        return snapshot(first), runs.tree()

    try:
        start, tree = answer.run(run, lambda: f"a run on BlockAllocator({N_BLOCKS}, {BLOCK})") if answer else run()
    except Broken as finding:
        raise CheckFailed(str(finding)) from None
    contiguous, events = _contiguous()
    reserved = snapshot(Server(Reserving(), paged=False))
    return interactive.figure(
        "kv_memory",
        title=TITLE,
        idea="Step, add and fork, in both modes. A slot that is taken but empty is of no use to anyone.",
        alt="Twelve blocks of four slots: whose token is in each slot, what is taken but empty, what is free.",
        data={
            "state": {"mode": "paged", "path": ""},
            "n_blocks": N_BLOCKS,
            "block": BLOCK,
            "yours": answer is not None,
            "events": {"paged": list(runs.events), "contiguous": events},
            "paged": tree,
            "contiguous": contiguous,
        },
        picture=_still(start),
        height=176,
        readings=_readings(start, reserved),
        says="Three requests are running. Every token sits in a block of its request's table."
        + (" Run by your BlockAllocator." if answer else ""),
    )


# --- the first state, as text and as a still picture ------------------------------------------------------

LOOKS = {"A": "blue", "B": "orange", "C": "green", "D": "purple", "E": "red", "F": "grey"}


def _readings(start: Snapshot, reserved: Snapshot) -> list[tuple[str, str]]:
    taken = len(set("".join(table for _, table in start.values())))
    return [
        ("Used share, paged", f"{still.fixed(100 * used_share(start))}%"),
        ("Used share, contiguous", f"{still.fixed(100 * used_share(reserved))}%"),
        ("Blocks taken", f"{taken} of {N_BLOCKS}"),
        ("Tokens held", still.fixed(sum(length for length, _ in start.values()))),
    ]


def _still(state: Snapshot) -> str:
    """The pool, block by block."""
    svg, wide, cell = "", 656 / 6, 24
    for block in range(N_BLOCKS):
        x, y = block % 6 * wide, block // 6 * 62
        owner = next((name for name, (_, table) in state.items() if _DIGITS[block] in table), None)
        svg += still.rect(x, y, wide - 8, 54, "card") + still.text(x + 5, y + 14, f"block {block}", "soft")
        for slot in range(BLOCK):
            look, filled = "frame", False
            if owner is not None:
                length, table = state[owner]
                filled = table.index(_DIGITS[block]) * BLOCK + slot < length
                look = LOOKS[owner] if filled else "empty"
            svg += still.rect(x + 4 + slot * cell, y + 21, cell - 2, 27, look)
            if filled and owner:
                svg += still.text(x + 3 + slot * cell + cell / 2, y + 39, owner, "on", "middle")
    svg += still.keys(0, 142, [("empty", "taken but empty"), ("frame", "free")])
    tables = "   ".join(
        f"{n}: {length} tokens in {' '.join(str(int(b, 36)) for b in t)}" for n, (length, t) in state.items()
    )
    return svg + still.text(0, 166, f"Block tables   {tables}", "soft")
