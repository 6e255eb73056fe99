"""Checks of the capstone: expected speed, slots, writes, paged attention, admission, verification (torch)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessonlib.check.harness import Answer, CheckFailed, Mistake, fail, part, show
from lessonlib.gpus import GPUS, Gpu
from lessonlib.models import MODELS, ModelConfig
from lessonlib.records import Admission
from lessonlib.reference import capstone as reference
from lessonlib.reference.decode_roofline import decode_step

# --- expected_speed -------------------------------------------------------------------------------------

SPEED_MISTAKES = [
    Mistake(
        "without-the-batch",
        "This is the speed of one sequence: a step gives a token to each of the B sequences.",
        lambda B, C, cfg, machine: (1 / decode_step(B, C, cfg, machine).t_step, decode_step(B, C, cfg, machine).bound),
    ),
    Mistake(
        "weights-per-sequence",
        "The weights were read once per sequence: all B share one read.",
        lambda B, C, cfg, machine: reference.expected_speed(1, C, cfg, machine),
    ),
    Mistake(
        "ignores-number-format",
        "Two bytes per number were taken for granted: this machine serves another format, see cfg.bytes_per_weight.",
        lambda B, C, cfg, machine: reference.expected_speed(
            B, C, replace(cfg, bytes_per_weight=2, bytes_per_kv=2), machine
        ),
    ),
    Mistake(
        "seconds-for-speed",
        "These are seconds per step: tokens per second are B divided by them.",
        lambda B, C, cfg, machine: (
            decode_step(B, C, cfg, machine).t_step,
            decode_step(B, C, cfg, machine).bound,
        ),
    ),
    Mistake(
        "always-memory",
        "On this machine compute binds for some batches: compare the two times.",
        lambda B, C, cfg, machine: (
            B / decode_step(B, C, cfg, machine).t_memory,
            "memory",
        ),
    ),
]


@part("expected_speed")
def expected_speed(answer: Answer, seed: int) -> str:
    """Method and bound, on slow and fast machines, in fp32 and bf16; never the measured speed itself."""
    small = MODELS["SmolLM2-135M"]
    fp32 = replace(small, bytes_per_weight=4, bytes_per_kv=4)
    cpu, slow_cpu = Gpu("a CPU", 1e11, 15e9, 8e9), Gpu("a slow CPU", 3e10, 10e9, 8e9)
    cases: list[tuple[int, int, ModelConfig, Gpu]] = [
        (1, 64, fp32, cpu), (32, 64, fp32, cpu), (32, 64, fp32, slow_cpu), (1, 64, small, GPUS["T4"]),
        (32, 64, small, GPUS["T4"]), (32, 1024, small, GPUS["H100-SXM"]),
    ]  # fmt: skip
    rng = np.random.default_rng(seed)
    for _ in range(20):
        machine = Gpu("random", float(10 ** rng.uniform(10, 14)), float(10 ** rng.uniform(9.5, 12)), 8e9)
        cases.append(
            (int(rng.integers(1, 65)), int(rng.integers(1, 2000)), fp32 if rng.random() < 0.5 else small, machine)
        )
    _expect_same(answer, cases, reference.expected_speed, SPEED_MISTAKES, _speed)
    return f"{len(cases)} expectations right, and the limit that binds in each."


def _speed(value: Any, text: str) -> tuple[float, str]:
    """Tokens per second, rounded as far as sums may differ, and the bound."""
    what = 'a pair: tokens per second, and "memory" or "compute"'
    if (
        not isinstance(value, tuple | list)
        or len(value) != 2
        or not isinstance(value[0], int | float | np.number)
        or value[1] not in ("memory", "compute")
    ):
        fail(text, show(value), what)
    return float(f"{float(value[0]):.9g}"), str(value[1])


# --- slot_mapping ---------------------------------------------------------------------------------------

SLOT_MISTAKES = [
    Mistake(
        "ignores-block-table",
        "The block table was ignored: the logical block p // block_size was taken for the physical one.",
        lambda table, start, n, size: list(range(start, start + n)),
    ),
    Mistake(
        "ignores-start",
        "The tokens were placed at the beginning of the sequence: the first of them has position start.",
        lambda table, start, n, size: reference.slot_mapping(table, 0, n, size),
    ),
    Mistake(
        "offset-left-out",
        "The place inside the block is missing: add p % block_size.",
        lambda table, start, n, size: [table[p // size] * size for p in range(start, start + n)],
    ),
    Mistake(
        "block-for-slot",
        "These are block ids: a slot counts tokens, so multiply the block id by block_size.",
        lambda table, start, n, size: [table[p // size] + p % size for p in range(start, start + n)],
    ),
    Mistake(
        "off-by-one",
        "Every token is one place too far: positions count from 0.",
        lambda table, start, n, size: reference.slot_mapping([*table, 0], start + 1, n, size),
    ),
    Mistake(
        "only-block-size-16",
        "This is right for blocks of 16 tokens alone: use block_size.",
        lambda table, start, n, size: [table[p // 16] * 16 + p % 16 for p in range(start, start + n)],
    ),
]


@part("slot_mapping")
def slot_mapping(answer: Answer, seed: int) -> str:
    """Slots through tables that are never the identity, for block sizes 1 to 64."""
    rng = np.random.default_rng(seed)
    cases: list[tuple[list[int], int, int, int]] = [([5, 2, 9], 0, 10, 4), ([5, 2, 9], 6, 1, 4), ([3, 1], 15, 3, 16)]
    for size in (1, 2, 3, 5, 8, 16, 64):
        table = [int(b) for b in rng.permutation(40)[:6]]
        start = int(rng.integers(0, 3 * size))
        cases.append((table, start, int(rng.integers(1, 3 * size + 1)), size))
    _expect_same(answer, cases, reference.slot_mapping, SLOT_MISTAKES, _slots)
    return f"{len(cases)} mappings right, for block sizes 1 to 64 and tables in any order."


def _slots(value: Any, text: str) -> list[int]:
    """A list of ints from what came back."""
    if isinstance(value, Tensor):
        value = value.tolist()
    try:
        return [operator.index(slot) for slot in value]
    except TypeError:
        fail(text, show(value), "one slot (an int) per token, in order")


# --- write_kv -------------------------------------------------------------------------------------------


@part("write_kv")
def write_kv(answer: Answer, seed: int) -> str:
    """Writes land in their slots, keys with keys, and nothing else changes."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(seed)
    for n_blocks, size, n_kv, d_h, n in ((4, 4, 2, 8, 5), (6, 1, 1, 4, 3), (3, 16, 3, 4, 20), (5, 3, 2, 2, 1)):
        shape = (n_blocks, size, n_kv, d_h)
        before = [torch.randn(shape, generator=generator) for _ in range(2)]
        new = [torch.randn((n, n_kv, d_h), generator=generator) for _ in range(2)]
        slots = torch.randperm(n_blocks * size, generator=generator)[:n].tolist()
        text = f"write_kv(k_cache, v_cache, torch.tensor({show(slots)}), k, v)   with block_size {size}"
        caches = [cache.clone() for cache in before]
        given = (torch.tensor(slots), *[x.clone() for x in new])
        args = (*caches, *given)
        result = answer.run(lambda args=args: answer.function(*args), lambda text=text: text)  # type: ignore[misc]
        wanted = [cache.clone() for cache in before]
        reference.write_kv(wanted[0], wanted[1], torch.tensor(slots), new[0], new[1])
        if not all(torch.equal(a, b) for a, b in zip(caches, wanted, strict=True)):
            fail(
                text,
                _what_was_written(caches, before, wanted, slots, new, result),
                "k in k_cache and v in v_cache at those slots, and nothing else changed",
                _write_mistake(caches, before, wanted, slots, new),
            )
        answer.expect_unchanged((torch.tensor(slots), *new), given, text)
    return "keys and values in their slots, and the rest of the pool untouched."


def _what_was_written(
    caches: list[Tensor], before: list[Tensor], wanted: list[Tensor], slots: list[int], new: list[Tensor], result: Any
) -> str:
    changed = {int(i) for c, b in zip(caches, before, strict=True) for i in _changed_slots(c, b)}
    if not changed:
        return "caches that did not change" + ("" if result is None else f", and a returned {type(result).__name__}")
    return f"changes at the slots {show(sorted(changed))}"


def _changed_slots(cache: Tensor, before: Tensor) -> Tensor:
    return (cache != before).flatten(0, 1).flatten(1).any(1).nonzero()[:, 0]


def _write_mistake(
    caches: list[Tensor], before: list[Tensor], wanted: list[Tensor], slots: list[int], new: list[Tensor]
) -> tuple[str, str] | None:
    changed = {int(i) for c, b in zip(caches, before, strict=True) for i in _changed_slots(c, b)}
    if not changed:
        return "writes-into-a-copy", "The pool did not change: write in place, through a view of it and not a copy."
    if changed <= set(slots) and torch.equal(caches[0], wanted[0]) != torch.equal(caches[1], wanted[1]):
        return "one-cache-only", "Only one of the two caches is right: keys and values both have to be written."
    swapped = [before[0].clone(), before[1].clone()]
    reference.write_kv(swapped[0], swapped[1], torch.tensor(slots), new[1], new[0])
    if all(torch.equal(a, b) for a, b in zip(caches, swapped, strict=True)):
        return "keys-and-values-swapped", "Keys went to v_cache and values to k_cache."
    size = before[0].shape[1]
    if changed > set(slots) and {slot // size for slot in changed} <= {slot // size for slot in slots}:
        return "whole-block-written", "The whole block was overwritten: its other tokens are lost. Write single slots."
    if changed <= set(slots):
        return "tokens-in-wrong-order", "The right slots, but not each token in its own: token i belongs in slots[i]."
    return None


# --- paged_attention ------------------------------------------------------------------------------------


def _dense(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], length: int,
    scale: float | None = None, interleave: bool = True,
) -> Tensor:  # fmt: skip
    """Attention over gathered keys and values: what paged attention must equal."""
    n_heads, d_h = q.shape
    n_kv = k_cache.shape[2]
    k = k_cache[list(table)].reshape(-1, n_kv, d_h)[:length].double()
    v = v_cache[list(table)].reshape(-1, n_kv, d_h)[:length].double()
    group = n_heads // n_kv
    k, v = (x.repeat_interleave(group, 1) if interleave else x.repeat(1, group, 1) for x in (k, v))
    scores = torch.einsum("hd,nhd->hn", q.double(), k) * (d_h**-0.5 if scale is None else scale)
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v).to(q.dtype)


def _mean_of_blocks(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], length: int) -> Tensor:
    size = k_cache.shape[1]
    parts = [
        _dense(q, k_cache, v_cache, table[i : i + 1], min(size, length - i * size))
        for i in range(-(-length // size))
    ]  # fmt: skip
    return torch.stack(parts).mean(0)


def _last_block_only(q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], length: int) -> Tensor:
    size = k_cache.shape[1]
    i = (length - 1) // size
    return _dense(q, k_cache, v_cache, table[i : i + 1], length - i * size)


ATTENTION_MISTAKES = [
    Mistake(
        "ignores-block-table",
        "The block table was ignored: the first blocks of the pool were read, whoever they belong to.",
        lambda q, k, v, table, n: _dense(q, k, v, range(len(table)), n),
    ),
    Mistake(
        "reads-unused-slots",
        "The last block was read to its end: slots after `length` hold nothing of this sequence.",
        lambda q, k, v, table, n: _dense(q, k, v, table, -(-n // k.shape[1]) * k.shape[1]),
    ),
    Mistake(
        "whole-table",
        "All blocks of the table were read: only the first `length` tokens belong to the sequence yet.",
        lambda q, k, v, table, n: _dense(q, k, v, table, len(table) * k.shape[1]),
    ),
    Mistake(
        "no-scale",
        "The scores were not scaled by 1 / sqrt(head_dim).",
        lambda q, k, v, table, n: _dense(q, k, v, table, n, scale=1.0),
    ),
    Mistake(
        "heads-interleaved",
        "Query heads were dealt to KV heads in turn: head i uses KV head i // group_size, so neighbours share one.",
        lambda q, k, v, table, n: _dense(q, k, v, table, n, interleave=False),
    ),
    Mistake(
        "blocks-averaged",
        "The blocks' results were averaged. Each block's softmax has a sum of its own: weigh the blocks by these sums "
        "(online softmax).",
        _mean_of_blocks,
    ),
    Mistake(
        "last-block-only", "Only the last block was attended to: merge the results of all blocks.", _last_block_only
    ),
    Mistake(
        "newest-token-left-out",
        "The newest token was left out: `length` counts it.",
        lambda q, k, v, table, n: _dense(q, k, v, table, max(1, n - 1)),
    ),
    Mistake(
        "keys-for-values",
        "Keys were mixed in place of values.",
        lambda q, k, v, table, n: _dense(q, k, k, table, n),
    ),
    Mistake(
        "values-for-keys",
        "Queries were compared with values in place of keys.",
        lambda q, k, v, table, n: _dense(q, v, v, table, n),
    ),
    Mistake(
        "only-block-size-16",
        "This is right for blocks of 16 tokens alone: take block_size from the cache's shape.",
        lambda q, k, v, table, n: _dense(q, k, v, table[: -(-n // 16)], n),
    ),
]


def _attention_case(
    generator: torch.Generator, size: int, length: int, n_heads: int, n_kv: int, d_h: int, loud: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, list[int], int]:
    """A pool in which every block holds something, and a table that is never the identity."""
    needed = -(-length // size)
    table = (torch.randperm(needed + 4, generator=generator) + 1).tolist()[: needed + 1]
    if table == sorted(table):
        table.reverse()
    shape = (needed + 6, size, n_kv, d_h)
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    return loud * torch.randn((n_heads, d_h), generator=generator), loud * k, v, table, length


@part("paged_attention", seconds=10)
def paged_attention(answer: Answer, seed: int) -> str:
    """Against dense attention: block sizes 1 to 64, exact borders, GQA, large scores."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(4, 10, 6, 2, 8), (16, 33, 9, 3, 16), (1, 5, 4, 4, 8), (3, 9, 4, 1, 4), (8, 16, 8, 2, 8)]
    shapes += [(64, 70, 4, 2, 8), (16, 16, 4, 2, 8), (5, 1, 4, 2, 8), (2, 31, 12, 4, 32)]
    cases = [_attention_case(g, *shape) for shape in shapes]
    _expect_same(answer, cases, _dense, ATTENTION_MISTAKES, _tensor, "paged_attention(q, k_cache, v_cache, {}, {})")
    loud = _attention_case(g, 4, 14, 4, 2, 8, loud=30.0)
    text = "paged_attention(q, k_cache, v_cache, {}, {})   with scores in the thousands".format(*loud[3:])
    got = _tensor(answer(*loud), text, loud[0].shape)
    if not torch.isfinite(got).all() or not _near(got, _dense(*loud)):
        fail(
            text,
            "inf or nan" if not torch.isfinite(got).all() else "other numbers than dense attention",
            "the same as dense attention",
            ("overflows", "exp of a large score overflows: subtract the running maximum, and rescale when it grows."),
        )
    return f"{len(cases) + 1} cases equal to dense attention, for block sizes 1 to 64, exact borders and GQA."


def _tensor(value: Any, text: str, shape: tuple[int, ...] | None = None) -> Tensor:
    if not isinstance(value, Tensor):
        fail(text, f"{show(value)} (type {type(value).__name__})", "a tensor of shape (n_heads, head_dim)")
    if not value.is_floating_point() or value.layout != torch.strided or value.is_meta:
        fail(text, f"a tensor of {value.dtype}, {value.layout}, on {value.device}", "a dense tensor of floats, as q is")
    if shape is not None and value.shape != shape:
        fail(text, f"a tensor of shape {tuple(value.shape)}", f"shape {tuple(shape)}: n_heads, head_dim")
    return value


def _near(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4))


# --- admit ----------------------------------------------------------------------------------------------


def _admit_with(
    plus_one: int = 1, skip_ahead: bool = False, round_up: bool = True, budget: bool = True, refuse: bool = True,
    take: bool = True, spend: bool = True,
) -> Callable[..., list[Admission]]:  # fmt: skip
    """The admission rule with some of its parts left out."""

    def rule(waiting: Sequence[int], n_free: int, n_blocks: int, block_size: int, token_budget: int) -> list[Admission]:
        answers, blocked = [], False
        for n in waiting:
            needed = -(-(n + plus_one) // block_size) if round_up else (n + plus_one) // block_size
            if refuse and needed > n_blocks:
                answers.append(Admission("never", 0))
            elif (blocked and not skip_ahead) or needed > n_free or (budget and token_budget == 0):
                blocked = True
                answers.append(Admission("later", 0))
            else:
                chunk = min(n, token_budget) if budget else n
                n_free -= needed if take else 0
                token_budget -= chunk if spend else 0
                answers.append(Admission("now", chunk))
        return answers

    return rule


def _never_blocks(waiting: Sequence[int], n_free: int, n_blocks: int, *rest: int) -> list[Admission]:
    """A request that can never run stops everyone behind it."""
    answers = reference.admit(waiting, n_free, n_blocks, *rest)
    at = next((i for i, a in enumerate(answers) if a.answer == "never"), len(answers))
    return answers[: at + 1] + [Admission("later", 0)] * (len(answers) - at - 1)


def _whole_prompts(
    waiting: Sequence[int], n_free: int, n_blocks: int, block_size: int, token_budget: int
) -> list[Admission]:
    """Prompts are never cut: one longer than the budget waits for ever."""
    answers, blocked = [], False
    for n in waiting:
        needed = -(-(n + 1) // block_size)
        if needed > n_blocks:
            answers.append(Admission("never", 0))
        elif blocked or needed > n_free or n > token_budget:
            blocked = True
            answers.append(Admission("later", 0))
        else:
            n_free, token_budget = n_free - needed, token_budget - n
            answers.append(Admission("now", n))
    return answers


ADMIT_MISTAKES = [
    Mistake(
        "skips-ahead",
        "A later request was let in before an earlier one that waits: first come, first served, or large ones starve.",
        _admit_with(skip_ahead=True),
    ),
    Mistake(
        "no-room-for-the-next-token",
        "A request needs room for its prompt and for the token that this step will write: count one token more.",
        _admit_with(plus_one=0),
    ),
    Mistake("rounds-blocks-down", "Part of a block takes a whole block: round up.", _admit_with(round_up=False)),
    Mistake("ignores-budget", "The token budget of the step was exceeded.", _admit_with(budget=False)),
    Mistake(
        "waits-for-ever", "A request larger than the whole pool can never run: say never.", _admit_with(refuse=False)
    ),
    Mistake(
        "blocks-not-taken",
        "Each admitted request takes its blocks: fewer are free for the next.",
        _admit_with(take=False),
    ),
    Mistake(
        "budget-not-spent",
        "Each admitted chunk uses up the budget: less is left for the next.",
        _admit_with(spend=False),
    ),
    Mistake(
        "never-stops-the-queue",
        "A refused request leaves the queue: those behind it are not held up.",
        _never_blocks,
    ),
    Mistake(
        "prompts-never-cut",
        "A prompt longer than the budget would wait for ever: run as much of it as the budget has, the rest later.",
        _whole_prompts,
    ),
]


@part("admit")
def admit(answer: Answer, seed: int) -> str:
    """The three answers, in order, with blocks and budget used up on the way."""
    rng = np.random.default_rng(seed)
    cases: list[tuple[list[int], int, int, int, int]] = [
        ([30, 10, 10], 4, 20, 16, 100), ([15, 16], 2, 20, 16, 100), ([40, 8], 20, 20, 16, 32),
        ([400, 8], 20, 20, 16, 64), ([64, 8, 8], 3, 20, 16, 100), ([10, 10, 10], 2, 20, 16, 100),
        ([50, 50, 50], 20, 20, 16, 60), ([], 4, 4, 16, 10), ([8], 4, 4, 16, 0), ([1], 1, 1, 1, 8),
        ([63], 4, 4, 16, 64), ([64], 4, 4, 16, 64),
    ]  # fmt: skip
    for _ in range(60):
        size, n_blocks = int(rng.choice([1, 4, 16])), int(rng.integers(2, 30))
        waiting = [int(n) for n in rng.integers(1, n_blocks * size * 5 // 4 + 2, size=int(rng.integers(1, 7)))]
        cases.append(
            (waiting, int(rng.integers(0, n_blocks + 1)), n_blocks, size, int(rng.integers(0, 3 * size * n_blocks)))
        )
    _expect_same(answer, cases, reference.admit, ADMIT_MISTAKES, _admissions)
    return f"{len(cases)} queues right: now, later and never, first come first served, within blocks and budget."


def _admissions(value: Any, text: str) -> list[tuple[str, int]]:
    """Pairs from what came back: `Admission`s or tuples."""
    what = 'a list with one Admission("now" | "later" | "never", n_tokens) per waiting request'
    if not isinstance(value, list | tuple):
        fail(text, f"{show(value)} (type {type(value).__name__})", what)
    pairs = []
    for item in value:
        pair = (item.answer, item.n_tokens) if hasattr(item, "answer") else item
        if not isinstance(pair, tuple | list) or len(pair) != 2 or pair[0] not in ("now", "later", "never"):
            fail(text, show(value), what)
        try:
            pairs.append((str(pair[0]), operator.index(pair[1])))
        except TypeError:
            fail(text, show(value), what)
    return pairs


# --- verify ---------------------------------------------------------------------------------------------

VERIFY_DRAWS = 4000
# With two outcomes of 0.9 and 0.1, this many catch a law that is 0.02 away with probability above 0.999.
PRECISE_DRAWS = 24_000
FALSE_ALARM = 1e-8  # per outcome; a check looks at fewer than 60 of them


def _verify_cases(seed: int) -> list[tuple[list[int], np.ndarray, np.ndarray]]:
    """Drafts with their laws: partial overlap, zeros, equal laws, disjoint laws, no draft at all."""
    rng = np.random.default_rng(seed)
    p = np.array([[0.5, 0.3, 0.2, 0.0], [0.1, 0.6, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]])
    q = np.array([[0.2, 0.3, 0.4, 0.1], [0.4, 0.2, 0.2, 0.2]])
    random_p, random_q = rng.dirichlet(np.ones(6), size=4), rng.dirichlet(np.ones(6), size=3)
    draft = [int(rng.choice(6, p=row)) for row in random_q]
    return [([2, 1], p, q), ([3, 1], p, q), ([0, 1], p, p[:2]), ([], p[:1], q[:0]), (draft, random_p, random_q)]


def _precise_cases() -> list[tuple[list[int], np.ndarray, np.ndarray]]:
    """Acceptance, the corrected token and the bonus token, each alone as a choice of 0.9 to 0.1."""
    acceptance = ([0], np.array([[0.45, 0.55], [0.0, 1.0]]), np.array([[0.5, 0.5]]))
    corrected = ([0], np.array([[0.0, 0.9, 0.1], [1.0, 0.0, 0.0]]), np.array([[1.0, 0.0, 0.0]]))
    bonus = ([1], np.array([[0.5, 0.5], [0.1, 0.9]]), np.array([[0.5, 0.5]]))
    return [acceptance, corrected, bonus]


def outcome_law(draft: Sequence[int], p: np.ndarray, q: np.ndarray) -> dict[tuple[int, int], float]:
    """Probability of each (accepted drafts, last token), given the draft (Leviathan et al. 2023, algorithm 1)."""
    law: dict[tuple[int, int], float] = {}
    reached = 1.0
    for i, token in enumerate(draft):
        accept = min(1.0, p[i, token] / q[i, token])
        residual = np.maximum(p[i] - q[i], 0)
        if accept < 1:
            for last in np.flatnonzero(residual):
                law[i, int(last)] = reached * (1 - accept) * residual[last] / residual.sum()
        reached *= accept
    for last in np.flatnonzero(p[-1]):
        law[len(draft), int(last)] = reached * p[-1, last]
    return {outcome: share for outcome, share in law.items() if share > 0}


@part("verify", seconds=20)
def verify(answer: Answer, seed: int) -> str:
    """The law of what is emitted, given the draft, and how much of the cache is kept."""
    cases = [(*case, VERIFY_DRAWS) for case in _verify_cases(seed)] + [(*c, PRECISE_DRAWS) for c in _precise_cases()]
    for draft, p, q, n_draws in cases:
        text = f"verify({show(draft)}, p, q, rng)   with p of shape {p.shape}"
        answer(draft, p, q, np.random.default_rng(seed))
        results = answer.repeat(n_draws, draft, p, q, seed=seed)
        counts: dict[tuple[int, int], int] = {}
        outcomes = answer.run(lambda: [_verified(r, draft, text) for r in results], lambda: text)  # noqa: B023 - called at once
        for outcome in outcomes:
            counts[outcome] = counts.get(outcome, 0) + 1
        law = outcome_law(draft, p, q)
        for outcome in sorted(set(law) | set(counts)):
            share, seen = law.get(outcome, 0.0), counts.get(outcome, 0) / n_draws
            if abs(seen - share) > _tolerance(share, n_draws):
                fail(
                    f"{n_draws} times {text}",
                    f"{outcome[0]} drafts accepted and then token {outcome[1]} in {seen:.1%} of the calls",
                    f"{share:.1%}",
                    _verify_mistake(draft, p, q, counts),
                )
        again = [answer(draft, p, q, np.random.default_rng(seed + 1)) for _ in range(4)]
        if any(show(result) != show(again[0]) for result in again):
            fail(
                text,
                "different results from the same seed",
                "all draws from the rng that is passed in",
                ("own-random-state", "Draw from the rng that is given, so that a run can be repeated."),
            )
    n_rounds = sum(n_draws for *_, n_draws in cases)
    return f"the law of drafts and next token holds over {n_rounds:,} rounds, and the cache is cut right."


def _tolerance(share: float, n_draws: int) -> float:
    """Bernstein's bound on |seen − share| at the false-alarm rate."""
    t = math.log(2 / FALSE_ALARM)
    return math.sqrt(2 * share * (1 - share) * t / n_draws) + t / (3 * n_draws) if 0 < share < 1 else 0.0


def _verified(result: Any, draft: Sequence[int], text: str) -> tuple[int, int]:
    """(accepted drafts, last token) of one result, after its form has been looked at."""
    if not isinstance(result, tuple | list) or len(result) != 2 or not isinstance(result[0], list | tuple | np.ndarray):
        fail(text, show(result), "a pair: the list of tokens to emit, and how many drafts stay in the cache")
    try:
        tokens, kept = [operator.index(token) for token in result[0]], operator.index(result[1])
    except TypeError:
        fail(text, show(result), "a pair: the list of tokens (ints) to emit, and how many drafts (an int) stay cached")
    accepted = len(tokens) - 1
    if not tokens or accepted > len(draft) or tokens[:accepted] != list(draft[:accepted]):
        fail(
            text,
            f"the tokens {tokens}",
            "some drafts from the front, and one token more",
            ("no-extra-token", "Every round ends with one token that is no draft: the corrected one, or the bonus.")
            if tokens == list(draft[: len(tokens)])
            else None,
        )
    if kept != accepted:
        fail(
            text,
            f"the tokens {tokens} and {kept} drafts kept in the cache",
            f"{accepted} kept: the accepted ones, and no more",
            (
                "cache-not-rolled-back",
                "Rejected drafts have left keys and values behind: the cached length must go back.",
            )
            if kept == len(draft)
            else ("counts-the-extra-token", "The last token was not in the target's pass yet: it has no keys there.")
            if kept == accepted + 1
            else None,
        )
    return accepted, tokens[-1]


def _verify_mistake(
    draft: Sequence[int], p: np.ndarray, q: np.ndarray, counts: dict[tuple[int, int], int]
) -> tuple[str, str] | None:
    """Name the wrong law that the counts follow best, if it is far better than chance."""
    n = sum(counts.values())
    best: tuple[float, tuple[str, str] | None] = (0.03, None)
    for slug, why, law in _wrong_laws(draft, p, q):
        distance = sum(abs(counts.get(o, 0) / n - law.get(o, 0.0)) for o in set(counts) | set(law)) / 2
        if distance < best[0]:
            best = (distance, (slug, why))
    return best[1]


def _wrong_laws(
    draft: Sequence[int], p: np.ndarray, q: np.ndarray
) -> list[tuple[str, str, dict[tuple[int, int], float]]]:
    def law(
        accept: Callable[[int, int], float], corrected: np.ndarray, bonus: np.ndarray
    ) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], float] = {}
        reached = 1.0
        for i, token in enumerate(draft):
            share = accept(i, token)
            for last, x in enumerate(corrected[i]):
                found[i, last] = reached * (1 - share) * float(x)
            reached *= share
        for last, x in enumerate(bonus):
            found[len(draft), last] = reached * float(x)
        return found

    residual = np.maximum(p[:-1] - q, 0)
    sums = residual.sum(-1, keepdims=True)
    residual = np.where(sums > 0, residual / np.where(sums > 0, sums, 1), p[:-1])

    def right(i: int, t: int) -> float:
        return min(1.0, p[i, t] / q[i, t])

    return [
        ("ratio-inverted", "The ratio is upside down: accept with min(1, p / q).",
         law(lambda i, t: min(1.0, q[i, t] / max(p[i, t], 1e-300)), residual, p[-1])),
        ("accepts-only-if-larger", "A draft with p < q was always refused: it is accepted with probability p / q.",
         law(lambda i, t: float(p[i, t] >= q[i, t]), residual, p[-1])),
        ("accepts-always", "Every draft was accepted: the output then follows the draft, not the target.",
         law(lambda i, t: 1.0, residual, p[-1])),
        ("accepts-with-p", "Drafts were accepted with probability p: divide by q, since q has favoured them already.",
         law(lambda i, t: p[i, t], residual, p[-1])),
        ("resamples-from-p", "After a rejection the token was drawn from p: draw from max(0, p − q), normalised.",
         law(right, p[:-1], p[-1])),
        ("resamples-from-q", "After a rejection the token was drawn from the draft's law.", law(right, q, p[-1])),
        ("bonus-from-draft", "The bonus token was drawn from the draft's law: the target's last row is p[γ].",
         law(right, residual, q[-1] if len(q) else p[-1])),
        ("argmax-bonus", "The last token was the likeliest one: draw it.",
         law(right, residual, np.eye(p.shape[1])[p[-1].argmax()])),
    ]  # fmt: skip


# --- shared ---------------------------------------------------------------------------------------------


def _expect_same(
    answer: Answer,
    cases: Sequence[tuple[Any, ...]],
    right: Callable[..., Any],
    mistakes: Sequence[Mistake],
    read: Callable[..., Any],
    form: str | None = None,
) -> None:
    """Compare structured results on every case; name the mistake that explains the answer best."""

    def text_of(case: tuple[Any, ...]) -> str:
        return form.format(*map(show, case[3:])) if form else answer.text(case)

    def equal(got: Any, wanted: Any) -> bool:
        return _near(got, wanted) if isinstance(wanted, Tensor) else bool(got == wanted)

    for case in cases:
        wanted = read(right(*case), "")
        result = answer(*case)
        got = answer.run(lambda: read(result, text_of(case)), lambda: text_of(case))  # noqa: B023 - called at once
        if not equal(got, wanted):
            fail(text_of(case), _brief(got), _brief(wanted), _explain(answer, cases, right, mistakes, read, equal))


def _explain(
    answer: Answer,
    cases: Sequence[tuple[Any, ...]],
    right: Callable[..., Any],
    mistakes: Sequence[Mistake],
    read: Callable[..., Any],
    equal: Callable[[Any, Any], bool],
) -> tuple[str, str] | None:
    """The mistake that agrees with the answer on most cases, if it explains nearly all the wrong ones."""

    def result(function: Callable[..., Any], case: tuple[Any, ...]) -> Any:
        try:
            return read(function(*case), "")
        except (CheckFailed, IndexError, ValueError, RuntimeError):
            return None

    got = [result(answer, case) for case in cases]
    is_wrong = [g is not None and not equal(g, read(right(*case), "")) for g, case in zip(got, cases, strict=True)]
    best, most = None, 0
    for mistake in mistakes:
        theirs = [result(mistake.wrong, case) for case in cases]
        agree = [g is not None and t is not None and equal(g, t) for g, t in zip(got, theirs, strict=True)]
        explained = sum(a and w for a, w in zip(agree, is_wrong, strict=True))
        if sum(agree) > most and explained >= max(1, 0.8 * sum(is_wrong)):
            best, most = mistake, sum(agree)
    return (best.slug, best.why) if best else None


def _brief(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)}, first numbers {[round(x, 4) for x in value.flatten()[:4].tolist()]}"
    return show(value)
