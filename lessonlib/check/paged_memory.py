"""Checks of exercise 3: the block allocator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from lessonlib import reference
from lessonlib.check.block_rules import BlockRules, Fault, fields, show_pair
from lessonlib.check.harness import Answer, CheckFailed, fail, part, show
from lessonlib.check.objects import Call, Seen, replay_answer, script
from lessonlib.check.prefix_rules import PrefixRules
from lessonlib.records import OutOfBlocks

Rules = type[BlockRules]


class Scenario(NamedTuple):
    """A sequence of calls on one pool or several.

    Args:
        pools: (n_blocks, block_size) of each.
        calls: the calls.
        slug: the mistake that any fault here comes from, where the scenario can tell.
    """

    pools: tuple[tuple[int, int], ...]
    calls: tuple[Call, ...]
    slug: str | None = None


class Failure(NamedTuple):
    """The first fault of a scenario: which call, and what was seen up to it."""

    at: int
    fault: Fault
    seen: list[Seen]


def first_fault(answer: Answer, rules: Rules, scenario: Scenario) -> Failure | None:
    """Play a scenario, and judge each call."""
    seen = replay_answer(answer, scenario.pools, scenario.calls, fields(max(n for n, _ in scenario.pools)))
    judges = [rules(*pool) for pool in scenario.pools]
    n_pools = len(judges)
    for i, entry in enumerate(seen):
        if i < n_pools:
            fault = judges[i].start(entry)
        else:
            call = scenario.calls[i - n_pools]
            fault = judges[call.on].judge(call, entry)
        if fault is not None:
            return Failure(i - n_pools, fault, seen)
    return None


def shortened(answer: Answer, rules: Rules, scenario: Scenario, failure: Failure) -> tuple[Scenario, Failure]:
    """The scenario without the calls that its fault does not need."""
    scenario = scenario._replace(calls=scenario.calls[: failure.at + 1])
    i, left = len(scenario.calls) - 2, len(scenario.calls)
    while i >= 0:
        fewer = scenario._replace(calls=(*scenario.calls[:i], *scenario.calls[i + 1 :]))
        try:
            still = first_fault(answer, rules, fewer)
        except CheckFailed:  # it hangs now: keep the fault that was found
            break
        if still is not None and still.fault.slug == failure.fault.slug:
            scenario, failure = fewer._replace(calls=fewer.calls[: still.at + 1]), still
        i = min(i, len(scenario.calls) - 1) - 1
        if i < 0 and len(scenario.calls) < left:  # a call may have been needed only by one that is gone now
            i, left = len(scenario.calls) - 2, len(scenario.calls)
    return scenario, failure


def expect_no_fault(answer: Answer, rules: Rules, scenarios: Sequence[Scenario]) -> None:
    """Fail with the shortest transcript where a call breaks a rule."""
    for scenario in scenarios:
        failure = first_fault(answer, rules, scenario)
        if failure is None:
            continue
        scenario, (at, fault, seen) = shortened(answer, rules, scenario, failure)
        n_pools = len(scenario.pools)
        notes = [_note(call, entry) for call, entry in zip(scenario.calls, seen[n_pools:], strict=False)]
        text = script(answer, scenario.pools, scenario.calls[: at + 1], notes[:at])
        slug = scenario.slug or fault.slug
        fail(text, fault.came, fault.expected, (slug, rules.why[slug]) if slug else None)


def _note(call: Call, entry: Seen) -> str:
    """What a call did, for the transcript."""
    if entry.errors:
        return f"{entry.errors[0]}"
    tables: dict[Any, Any] = entry.state.get("block_tables", {})
    seq_id = call.args[call.method == "fork"] if call.args else None
    note = show(tables[seq_id]) if seq_id in tables else ""
    return f"{note}, returned {show_pair(entry.value)}" if entry.value is not None else note


# --- scenarios ------------------------------------------------------------------------------------------


def calls_of(text: str) -> tuple[Call, ...]:
    """Calls in short form: `A+6` allocate, `A.` append, `A>B` fork, `A-` free; an id may be a number."""
    calls = []
    for word in text.split():
        name, sign, rest = next((word.partition(s) for s in "+.>-" if s in word), (word, "", ""))
        seq_id = int(name) if name.isdigit() else name
        other = int(rest) if rest.isdigit() else rest
        method = {"+": "allocate", ".": "append", ">": "fork", "-": "free"}[sign]
        calls.append(Call(method, (seq_id, other) if rest else (seq_id,)))
    return tuple(calls)


def _scenario(n_blocks: int, block_size: int, text: str) -> Scenario:
    return Scenario(((n_blocks, block_size),), calls_of(text))


# From simple to involved, each as short as it can be: the first one that fails makes the message.
SCENARIOS = [
    _scenario(8, 4, "A+6"),
    _scenario(8, 4, "A+8 B+4"),
    _scenario(8, 4, "A+1 B+5"),
    _scenario(8, 4, "A+3 A."),
    _scenario(8, 4, "A+4 A. A."),
    _scenario(3, 4, "A+12"),
    _scenario(3, 4, "A+16"),
    _scenario(3, 4, "A+5 B+8 B+4"),
    _scenario(8, 4, "A+6 A-"),
    _scenario(2, 4, "A+6 A- B+8"),
    _scenario(8, 4, "A+6 B+3 A- C+9 B."),
    _scenario(8, 4, "A+6 A>B"),
    _scenario(8, 4, "A+6 A>B A."),
    _scenario(8, 4, "A+6 A>B B."),
    _scenario(8, 4, "A+6 A>B A. B."),
    _scenario(8, 4, "A+8 A>B A. B."),
    _scenario(8, 4, "A+10 A>B B-"),
    _scenario(8, 4, "A+10 A>B A- B. C+12"),
    _scenario(8, 4, "A+10 A>B A- B- C+32"),
    _scenario(8, 4, "A-"),
    _scenario(8, 4, "A+6 A- A-"),
    _scenario(8, 4, "A+6 A>B B- B-"),
    _scenario(8, 4, "A+6 B."),
    _scenario(8, 4, "A+6 B>C"),
    _scenario(8, 4, "A+6 A+3"),
    _scenario(8, 4, "A+6 B+3 A>B"),
    _scenario(8, 4, "A+6 A>A"),
    _scenario(1, 4, "A+4 A."),
    _scenario(2, 4, "A+6 A>B B. A- B."),
    _scenario(2, 4, "A+8 A>B B. A- B."),
    _scenario(24, 16, "A+100 A>B A>C A. B. C."),
    _scenario(9, 4, "A+6 A>B B>C C. B. A. B- A- C-"),
    _scenario(6, 1, "A+2 A>B A. B. A- B. B-"),
    _scenario(4, 4, "A+6 A- A+13 A- A+16"),
    _scenario(4, 2, "0+3 0>7 7. 0. 0- 7-"),
    Scenario(
        ((6, 4), (6, 4)),
        tuple(
            call._replace(on=on)
            for on, text in ((0, "A+6"), (1, "A+3"), (0, "A>B"), (1, "A."), (0, "B."), (1, "A-"), (0, "A."))
            for call in calls_of(text)
        ),
        "shared-between-instances",
    ),
]


def random_scenario(rng: np.random.Generator, n_calls: int = 30) -> Scenario:
    """A random pool, small enough to run full, and calls that mostly make sense there."""
    n_blocks, block_size = int(rng.integers(1, 11)), int(rng.choice([1, 2, 3, 4, 5, 16]))
    pool = reference.BlockAllocator(n_blocks, block_size)
    ids: list[Any] = [0, 1, 2, "A", "B", "C", "D"]
    calls = []
    for _ in range(n_calls):
        live = list(pool.block_tables)
        known = live[int(rng.integers(len(live)))] if live else "A"
        anyone = ids[int(rng.integers(len(ids)))]
        some = known if rng.random() < 0.95 else anyone
        n_tokens = int(rng.integers(1, block_size * max(2, n_blocks // 2) + 1))
        kind = rng.choice(["allocate", "append", "fork", "free"], p=[0.25, 0.45, 0.18, 0.12])
        args = {"allocate": (anyone, n_tokens), "append": (some,), "fork": (some, anyone), "free": (some,)}[kind]
        calls.append(Call(str(kind), args))
        with suppress(OutOfBlocks, KeyError, ValueError):
            getattr(pool, kind)(*args)
    return Scenario(((n_blocks, block_size),), tuple(calls))


@part("BlockAllocator")
def block_allocator(answer: Answer, seed: int) -> str:
    """Short scenarios first, then random sequences of calls, each call judged by the rules."""
    rng = np.random.default_rng(seed)
    scenarios = [*SCENARIOS, *(random_scenario(rng) for _ in range(120))]
    expect_no_fault(answer, BlockRules, scenarios)
    n_calls = sum(len(scenario.calls) for scenario in scenarios)
    return f"every rule held after each of {n_calls:,} calls, with sharing, copy-on-write and full pools among them."


# --- prefix caching and preemption ----------------------------------------------------------------------


def _cached(n_blocks: int, block_size: int, *steps: str | tuple[str, list[int] | int] | None) -> Scenario:
    """A scenario of calls in short form, of prompts given with their token ids, and of preemption (None)."""
    calls: list[Call] = []
    for step in steps:
        if step is None:
            calls.append(Call("preempt", ()))
        else:
            calls += [Call("allocate", step)] if isinstance(step, tuple) else calls_of(step)
    return Scenario(((n_blocks, block_size),), tuple(calls))


_ONE = [1, 2, 3, 4, 5, 6, 7, 8, 9]  # two full blocks of 4, and one token
_TWO = [11, 12, 13, 14, 15, 16, 17, 18, 19]
_PAGE = list(range(100, 149))  # three full blocks of 16, and one token

PREFIX_SCENARIOS = [
    _cached(8, 4, ("A", [1, 2, 3, 4, 5, 6])),
    _cached(8, 4, ("A", _ONE), ("B", _ONE)),
    _cached(8, 4, ("A", _ONE), ("B", _ONE), "A-", "B-"),
    _cached(8, 4, ("A", [1, 2, 3, 4, 5, 6]), ("B", [1, 2, 3, 4, 5, 6, 7])),
    _cached(8, 4, ("A", _ONE), ("B", [1, 2, 3, 4, 0, 6, 7, 8, 9])),
    _cached(8, 4, ("A", _ONE), ("B", [0, 2, 3, 4, 5, 6, 7, 8, 9])),
    _cached(8, 4, ("A", _ONE), ("B", [4, 3, 2, 1, 5, 6, 7, 8, 9])),
    _cached(8, 4, ("A", _ONE), ("B", [5, 6, 7, 8, 1, 2, 3, 4, 9])),
    _cached(12, 16, ("A", _PAGE), ("B", _PAGE[:48])),
    _cached(12, 16, ("A", _PAGE[:48]), ("B", _PAGE), ("C", _PAGE[:33])),
    _cached(12, 16, ("A", _PAGE[:48]), "A-", ("B", _PAGE[:48]), "B-", ("C", _PAGE)),
    _cached(8, 4, ("A", _ONE), "A-", ("B", _ONE)),
    _cached(3, 4, ("A", _ONE), ("B", [1, 2, 3, 4, 5])),
    _cached(4, 4, ("A", _ONE), ("B", [1, 2, 3, 4, 5, 6, 7, 8, 0])),
    _cached(3, 4, ("A", _ONE), "A-", ("B", _ONE), "C+1"),
    _cached(3, 4, ("A", _ONE), "A-", "C+4", ("B", _ONE), "C-", ("B", _ONE)),
    _cached(3, 4, ("A", _ONE), "A-", "B+12 B-", ("C", _ONE)),
    _cached(3, 4, ("A", _ONE), "A-", ("B", _TWO), "B-", ("C", _ONE)),
    _cached(6, 4, ("A", _ONE), "A- B+12 B-", ("C", _ONE)),
    _cached(4, 4, ("A", _ONE[:5]), "A-", ("B", _TWO[:5]), "B- C+5 C-", ("D", _TWO[:5])),
    _cached(4, 4, ("A", _ONE[:5]), ("B", _TWO[:5]), "B- A- C+5 C-", ("D", _ONE[:5])),
    _cached(4, 4, ("A", [*_ONE, 10, 11, 12]), "A- B+5 B-", ("C", _ONE[:5])),
    _cached(5, 4, ("A", _ONE), ("B", [*_ONE[:8], 0]), "A- B- C+9 C-", ("D", _ONE)),
    _cached(8, 4, ("A", [1, 2, 3]), "A.", ("B", [1, 2, 3, 4, 5])),
    _cached(8, 4, ("A", [1, 2, 3, 4]), "A. A>B B. A.", ("C", [1, 2, 3, 4, 5])),
    _cached(8, 4, ("A", _ONE), ("A", _TWO)),
    _cached(8, 4, "A+4 B+4 B.", None, "A."),
    _cached(8, 4, "A+4 B+4 A>C", None, None),
    _cached(8, 4, "A+4 B+4 A- A+3", None),
    _cached(8, 4, ("A", _ONE), ("B", [*_ONE[:8], 0]), None, ("B", [*_ONE[:8], 0])),
    _cached(6, 1, ("A", [1, 2, 3]), ("B", [1, 2, 3]), "A-", ("C", [1, 2, 4])),
]


def random_prefix_scenario(rng: np.random.Generator, n_calls: int = 30) -> Scenario:
    """A random pool, prompts that often begin alike, and all other calls among them."""
    n_blocks, block_size = int(rng.integers(2, 11)), int(rng.integers(1, 4))
    pool = reference.PrefixCachingAllocator(n_blocks, block_size)
    prompts: list[list[int]] = [[]]
    calls = []
    for i in range(n_calls):
        live = list(pool.block_tables)
        some = live[int(rng.integers(len(live)))] if live else "A"
        kind = str(rng.choice(["allocate", "append", "fork", "free", "preempt"], p=[0.42, 0.2, 0.06, 0.26, 0.06]))
        if kind == "preempt" and not live:
            continue
        if rng.random() < 0.8:
            start = prompts[int(rng.integers(len(prompts)))]
            kept = int(rng.integers(len(start) + 1))
            tail = rng.integers(1, 3, size=int(rng.integers(1, block_size * n_blocks // 2 + 1))).tolist()
            tokens: list[int] | int = [*start[:kept], *tail][: block_size * n_blocks]
            prompts.append(list(tokens))  # type: ignore[arg-type]
        else:
            tokens = int(rng.integers(1, block_size * 3 + 1))
        args: dict[str, tuple] = {"allocate": (i, tokens), "append": (some,), "fork": (some, i), "free": (some,)}
        calls.append(Call(kind, args.get(kind, ())))
        with suppress(OutOfBlocks, KeyError, ValueError):
            getattr(pool, kind)(*calls[-1].args)
    return Scenario(((n_blocks, block_size),), tuple(calls))


@part("PrefixCachingAllocator")
def prefix_caching(answer: Answer, seed: int) -> str:
    """Short scenarios of prefix hits, evictions and preemption, the allocator's own, then random calls."""
    rng = np.random.default_rng(seed)
    scenarios = [*PREFIX_SCENARIOS, *SCENARIOS, *(random_prefix_scenario(rng) for _ in range(100))]
    expect_no_fault(answer, PrefixRules, scenarios)
    n_calls = sum(len(scenario.calls) for scenario in scenarios)
    return f"every rule held after each of {n_calls:,} calls, with hits, evictions and preemption among them."
