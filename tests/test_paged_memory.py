"""Exercise 3's reference answers: golden numbers, facts, and random calls against the rules of the check."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lessonlib import OutOfBlocks, check, quiz
from lessonlib.check.block_rules import BlockRules, fields
from lessonlib.check.harness import Answer
from lessonlib.check.objects import Call, Seen, observe, replay
from lessonlib.check.paged_memory import (
    SCENARIOS,
    Scenario,
    calls_of,
    first_fault,
    random_prefix_scenario,
    random_scenario,
)
from lessonlib.check.prefix_rules import PrefixRules
from lessonlib.reference import BlockAllocator, PrefixCachingAllocator
from tests.answers.paged_memory import BLOCK_ALLOCATOR

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["paging"]


def state(pool: BlockAllocator) -> tuple:
    return {s: list(t) for s, t in pool.block_tables.items()}, dict(pool.lengths), list(pool.ref_counts), pool.n_free


# --- facts ----------------------------------------------------------------------------------------------


def test_golden_three_samples() -> None:
    golden = GOLDEN["three_samples_of_100_tokens_block_16"]
    apart = BlockAllocator(64, 16)
    for seq_id in "ABC":
        apart.allocate(seq_id, 100)
    assert 64 - apart.n_free == golden["blocks_unshared"]
    pool = BlockAllocator(64, 16)
    pool.allocate("A", 100)
    pool.fork("A", "B")
    pool.fork("A", "C")
    assert 64 - pool.n_free == golden["blocks_shared"]
    pairs = [pool.append(seq_id) for seq_id in "ABC"]
    assert 64 - pool.n_free == golden["blocks_after_first_writes"]
    assert sum(pair is not None for pair in pairs) == golden["copies"]
    assert pairs[2] is None, "the last sharer writes in place"


def test_golden_trace() -> None:
    golden = GOLDEN["trace"]
    lengths = np.random.default_rng(golden["seed"]).integers(golden["low"], golden["high"], size=golden["n"])
    assert lengths.sum() == golden["live"]
    pool = BlockAllocator(golden["n"] * golden["max_length"] // 16, golden["block_size"])
    for i, length in enumerate(lengths):
        pool.allocate(i, int(length))
    used = (len(pool.ref_counts) - pool.n_free) * golden["block_size"]
    assert used == golden["paged"]
    waste = [len(pool.block_tables[i]) * 16 - n for i, n in enumerate(lengths)]
    assert max(waste) < 16


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
def test_blocks_taken_by_appends_after_a_fork(block_size: int) -> None:
    """Appending a tokens to L takes ceil((L + a) / b) - floor(L / b) blocks for the first writer, on either side."""
    for length in range(1, 3 * block_size + 2):
        for n_more in range(1, 2 * block_size + 2):
            for writer in "AB":
                pool = BlockAllocator(100, block_size)
                pool.allocate("A", length)
                pool.fork("A", "B")
                free = pool.n_free
                copies = [pool.append(writer) for _ in range(n_more)]
                assert free - pool.n_free == -(-(length + n_more) // block_size) - length // block_size
                copied = [pair for pair in copies if pair]
                assert len(copied) == (length % block_size != 0), "a copy only where the last block is not full"
                assert not copied or copies[0] is not None


def test_copy_on_an_empty_pool_changes_nothing() -> None:
    pool = BlockAllocator(2, 4)
    pool.allocate("A", 6)
    pool.fork("A", "B")
    before = state(pool)
    with pytest.raises(OutOfBlocks, match="needed: 1, free: 0; wait, or preempt"):
        pool.append("B")
    assert state(pool) == before
    pool.free("A")
    assert pool.n_free == 0, "freeing one side of a fork frees nothing"
    assert pool.append("B") is None


def test_admission_says_never_or_later() -> None:
    pool = BlockAllocator(4, 4)
    pool.allocate("A", 8)
    with pytest.raises(OutOfBlocks, match="more than the whole pool of 4"):
        pool.allocate("B", 17)
    with pytest.raises(OutOfBlocks, match="needed: 3, free: 2"):
        pool.allocate("B", 12)
    pool.allocate("B", 8)


def test_errors_name_the_value() -> None:
    with pytest.raises(ValueError, match="got 0 and 4"):
        BlockAllocator(0, 4)
    pool = BlockAllocator(8, 4)
    pool.allocate("A", 5)
    before = state(pool)
    for error, match, call in [
        (ValueError, "'A' exists", lambda: pool.allocate("A", 1)),
        (ValueError, "got 0", lambda: pool.allocate("B", 0)),
        (ValueError, "'A' exists", lambda: pool.fork("A", "A")),
        (KeyError, "no sequence 'X'", lambda: pool.fork("X", "Y")),
        (KeyError, "no sequence 'X'", lambda: pool.append("X")),
        (KeyError, "no sequence 'X'", lambda: pool.free("X")),
    ]:
        with pytest.raises(error, match=match):
            call()
        assert state(pool) == before


def test_prefix_of_48_and_49_tokens() -> None:
    pool = PrefixCachingAllocator(32, 16)
    prompt = list(range(100, 149))
    assert pool.allocate("A", prompt[:48]) == 0
    assert pool.allocate("B", prompt[:48]) == 32
    assert pool.allocate("C", prompt) == 48
    assert pool.block_tables["B"][:2] == pool.block_tables["A"][:2]
    assert pool.block_tables["C"][:3] == pool.block_tables["A"]


def test_a_hit_on_a_free_block_uses_up_a_free_block() -> None:
    pool = PrefixCachingAllocator(8, 4)
    pool.allocate("A", [1, 2, 3, 4, 5])
    pool.free("A")
    assert pool.n_free == 8
    assert pool.allocate("B", [1, 2, 3, 4, 6]) == 4
    assert pool.n_free == 6
    assert pool.allocate("C", [1, 2, 3, 4, 7]) == 4
    assert pool.n_free == 5, "a hit on a held block does not"


def test_a_block_is_forgotten_when_it_is_reused() -> None:
    pool = PrefixCachingAllocator(3, 4)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    pool.allocate("A", prompt)
    pool.free("A")
    pool.allocate("B", 8)  # takes the tail and the deeper full block
    pool.free("B")
    assert pool.allocate("C", prompt) == 4


def test_eviction_order() -> None:
    """Never-used blocks, then private tails, then the shared prefix, deepest block first."""
    pool = PrefixCachingAllocator(8, 2)
    pool.allocate("A", [1, 2, 3, 4, 5, 6])
    pool.allocate("B", [1, 2, 3, 4, 7, 8])
    (p1, p2, a), b = pool.block_tables["A"], pool.block_tables["B"][2]
    pool.free("A")
    pool.free("B")
    order = []
    for i in range(8):
        pool.allocate(i, 1)
        order += pool.block_tables[i]
    assert set(order[:4]) == set(range(8)) - {p1, p2, a, b}
    assert order[4:] == [a, b, p2, p1]


def test_preemption_takes_generated_tokens_too() -> None:
    pool = PrefixCachingAllocator(8, 4)
    pool.allocate("old", 4)
    pool.allocate("new", [1, 2, 3, 4])
    pool.append("new")
    assert pool.preempt() == ("new", 5)
    assert list(pool.block_tables) == ["old"]
    assert pool.preempt() == ("old", 4)
    assert pool.n_free == 8
    with pytest.raises(ValueError, match="no sequence"):
        pool.preempt()


def test_contents_of_equal_hash_are_told_apart() -> None:
    """Python's hash of -1 is that of -2, so these two prompts have equal chained hashes throughout."""
    pool = PrefixCachingAllocator(16, 1)
    assert hash((0, (-1,))) == hash((0, (-2,)))
    pool.allocate("A", [-1, 5, 6, 7])
    assert pool.allocate("B", [-2, 5, 6, 7]) == 0
    assert pool.allocate("C", [-1, 5, 6, 8]) == 3
    assert pool.block_tables["C"][:3] == pool.block_tables["A"][:3]


def test_token_ids_may_be_an_array() -> None:
    pool = PrefixCachingAllocator(8, 4)
    pool.allocate("A", np.arange(9))
    assert pool.allocate("B", list(range(9))) == 8
    assert pool.allocate("C", np.int64(3)) == 0
    with pytest.raises(ValueError, match="got none"):
        pool.allocate("D", [])


# --- random calls: reference and rules together ---------------------------------------------------------


class Allocating(RuleBasedStateMachine):
    """Drives an allocator and, beside it, the rules that the check judges learners' answers by."""

    make: Any = BlockAllocator
    judged_by: Any = BlockRules

    @initialize(n_blocks=st.integers(1, 9), block_size=st.integers(1, 5))
    def start(self, n_blocks: int, block_size: int) -> None:
        self.pool = self.make(n_blocks, block_size)
        self.judge = self.judged_by(n_blocks, block_size)
        self.fields = fields(n_blocks)
        self.written: dict[int, Any] = {}

    def call(self, method: str, *args: Any) -> Seen:
        call = Call(method, args)
        before = state(self.pool)
        seen = observe(self.pool, call, self.fields)
        assert self.judge.judge(call, seen) is None
        if seen.errors:
            assert state(self.pool) == before
        return seen

    ids = st.sampled_from(["A", "B", "C", 0, 1])

    @rule(seq_id=ids, n_tokens=st.integers(1, 30))
    def allocate(self, seq_id: Any, n_tokens: int) -> None:
        self.call("allocate", seq_id, n_tokens)

    @rule(seq_id=ids)
    def append(self, seq_id: Any) -> None:
        others = {s: list(t) for s, t in self.pool.block_tables.items() if s != seq_id}
        seen = self.call("append", seq_id)
        if not seen.errors:  # the block that is written now belongs to this sequence alone
            last = self.pool.block_tables[seq_id][-1]
            assert all(last not in table for table in others.values())

    @rule(parent=ids, child=ids)
    def fork(self, parent: Any, child: Any) -> None:
        self.call("fork", parent, child)

    @rule(seq_id=ids)
    def free(self, seq_id: Any) -> None:
        self.call("free", seq_id)

    @invariant()
    def invariants(self) -> None:
        if not hasattr(self, "pool"):
            return
        held = Counter(block for table in self.pool.block_tables.values() for block in table)
        assert list(self.pool.ref_counts) == [held[block] for block in range(len(self.pool.ref_counts))]
        assert self.pool.n_free == list(self.pool.ref_counts).count(0)
        for seq_id, table in self.pool.block_tables.items():
            assert len(table) == -(-self.pool.lengths[seq_id] // self.pool.block_size)
            assert len(set(table)) == len(table)


class AllocatingWithPrefixes(Allocating):
    make = PrefixCachingAllocator
    judged_by = PrefixRules

    @rule(seq_id=Allocating.ids, tokens=st.lists(st.integers(1, 2), min_size=1, max_size=12))
    def allocate_tokens(self, seq_id: Any, tokens: list[int]) -> None:
        self.call("allocate", seq_id, tokens)

    @precondition(lambda self: hasattr(self, "pool") and self.pool.block_tables)
    @rule()
    def preempt(self) -> None:
        newest = list(self.pool.block_tables)[-1]
        n_tokens = self.pool.lengths[newest]
        assert self.call("preempt").value == [newest, n_tokens]

    @invariant()
    def what_is_found_is_there(self) -> None:
        """Whatever the index finds has the content, and the predecessor, that it was registered with."""
        if hasattr(self, "pool"):
            for chained, block in self.pool._block_of.items():
                assert self.pool._content[block][0] == chained


TestAllocating = Allocating.TestCase
TestAllocating.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, derandomize=True)
TestAllocatingWithPrefixes = AllocatingWithPrefixes.TestCase
TestAllocatingWithPrefixes.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, derandomize=True
)


# --- the rules, against another judge -------------------------------------------------------------------


def _renamed(seen: Seen) -> tuple:
    """What a call did, with block ids numbered by their first appearance in the tables."""
    names: dict[int, int] = {}
    tables = [
        (repr(s), [names.setdefault(b, len(names)) for b in table])
        for s, table in sorted(seen.state["block_tables"].items(), key=lambda item: repr(item[0]))
    ]
    counts = sorted((names.get(b, -1), n) for b, n in enumerate(seen.state["ref_counts"]) if n)
    return seen.errors, seen.value is not None, tables, counts, seen.state["lengths"], seen.state["n_free"]


WRONG = [
    "a block per token", "one too many", "never allocates", "fork copies", "fork shares the list", "no copy-on-write",
    "always copies", "copies full blocks", "count not lowered", "frees shared", "leaks", "keeps blocks on failure",
    "length forgotten", "copy not reported", "copies the first",
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_rules_find_the_first_call_that_differs(name: str) -> None:
    """The rules judge state by state; comparing with the reference up to block names finds the same call."""
    wrong = BLOCK_ALLOCATOR.wrong[name].answer
    rng, n_caught = np.random.default_rng(5), 0
    for _ in range(40):
        scenario = random_scenario(rng)
        fields_ = fields(scenario.pools[0][0])
        sides = [replay(cls, scenario.pools, scenario.calls, fields_)[1:] for cls in (BlockAllocator, wrong)]
        differs = [_renamed(a) != _renamed(b) for a, b in zip(*sides, strict=True)]
        failure = first_fault(Answer(wrong, "BlockAllocator"), BlockRules, scenario)
        assert (failure.at if failure else None) == (differs.index(True) if any(differs) else None)
        n_caught += failure is not None
    assert n_caught > 5


def test_scenarios_reach_every_case() -> None:
    """The random calls of the check copy on write, run out of blocks, meet wrong ids, hit, evict and preempt."""
    rng = np.random.default_rng(0)
    happened: Counter[str] = Counter()
    for i in range(40):
        scenario: Scenario = (random_prefix_scenario if i % 2 else random_scenario)(rng)
        cls = PrefixCachingAllocator if i % 2 else BlockAllocator
        seen = replay(cls, scenario.pools, scenario.calls, fields(scenario.pools[0][0]))[1:]
        for call, entry in zip(scenario.calls, seen, strict=True):
            happened[entry.errors[0] if entry.errors else call.method] += 1
            happened["copy"] += call.method == "append" and entry.value is not None
            happened["hit"] += call.method == "allocate" and bool(entry.value)
    assert min(happened[kind] for kind in ("copy", "OutOfBlocks", "KeyError", "ValueError", "hit", "preempt")) >= 10
    assert any(block_size == 1 for scenario in SCENARIOS for _, block_size in scenario.pools)


def test_short_form_of_calls() -> None:
    assert calls_of("A+6 A>B 7. B-") == (
        Call("allocate", ("A", 6)),
        Call("fork", ("A", "B")),
        Call("append", (7,)),
        Call("free", ("B",)),
    )


class Elsewhere:
    """Stands for a class in another process: only pickled calls go there, and only pickled replies come back."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.n_messages = 0

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("the check must not make objects here")

    def replay(self, *message: Any) -> list[tuple]:
        self.n_messages += 1
        return pickle.loads(
            pickle.dumps([tuple(entry) for entry in replay(self.cls, *pickle.loads(pickle.dumps(message)))])
        )


def test_checks_work_across_processes(capsys: pytest.CaptureFixture[str]) -> None:
    right = Elsewhere(PrefixCachingAllocator)
    check.block_allocator(right)
    check.prefix_caching(right)
    assert right.n_messages < 500
    with pytest.raises(check.CheckFailed) as caught:
        check.block_allocator(Elsewhere(BLOCK_ALLOCATOR.wrong["no copy-on-write"].answer))
    assert caught.value.mistake == "no-copy-on-write"


def test_quick_checks_have_the_right_keys() -> None:
    keys = {"what_is_wasted": "15, in", "writes_after_fork": "7", "cached_tokens": "48", "who_goes_first": "The newest"}
    for name, expected in keys.items():
        (right,) = [choice for choice in getattr(quiz.paged_memory, name)().choices if choice.right]
        assert right.text.startswith(expected)
