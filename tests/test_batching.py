"""Exercise 5: golden values, what holds for first come first served with unit steps, and what does not."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessonlib.check.batching import cases
from lessonlib.check.wrong_batching import SCHEDULE_MISTAKES, Twist
from lessonlib.records import BatchingResult, Policy, Request
from lessonlib.reference import simulate

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["batching"]
POLICIES: tuple[Policy, Policy] = ("static", "continuous")

requests_at_any_time = st.lists(st.builds(Request, st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=14)
lengths = st.lists(st.integers(1, 15), min_size=1, max_size=14)
slots = st.integers(1, 6)


def together(n_steps: list[int]) -> list[Request]:
    return [Request(0, n) for n in n_steps]


def ends(result: BatchingResult, n: int) -> np.ndarray:
    """The step after the last one of each request."""
    return np.array([np.argwhere(result.schedule == i)[-1, 0] + 1 for i in range(n)])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("example", GOLDEN["examples"])
def test_golden(example: dict, policy: Policy) -> None:
    result = simulate(together(example["n_steps"]), example["n_slots"], policy)
    expected = example[policy]
    assert result.n_steps == expected["n_steps"]
    assert result.slot_use == pytest.approx(expected["busy"] / (expected["n_steps"] * example["n_slots"]))
    assert result.mean_latency == pytest.approx(expected["mean_latency"])


def test_the_small_schedule_by_hand() -> None:
    """3, 1, 2, 4 on two slots."""
    requests = together([3, 1, 2, 4])
    static, continuous = (simulate(requests, 2, policy).schedule.T.tolist() for policy in POLICIES)
    assert static == [[0, 0, 0, 2, 2, -1, -1], [1, -1, -1, 3, 3, 3, 3]]
    assert continuous == [[0, 0, 0, 3, 3, 3, 3], [1, 2, 2, -1, -1, -1, -1]]


def test_idle_steps_pass() -> None:
    result = simulate([Request(2, 1), Request(5, 2)], 2, "continuous")
    assert result.schedule.tolist() == [[-1, -1], [-1, -1], [0, -1], [-1, -1], [-1, -1], [1, -1], [1, -1]]
    assert (result.n_steps, result.slot_use, result.mean_latency) == (7, 3 / 14, 1.5)


@pytest.mark.parametrize(
    ("requests", "n_slots", "policy", "named"),
    [
        ([], 2, "static", r"got \[\]"),
        (together([1]), 0, "static", "got 0"),
        (together([1]), -3, "continuous", "got -3"),
        (together([1]), 2, "Static", "got 'Static'"),
    ],
)
def test_bad_input_is_named(requests: list, n_slots: int, policy: Policy, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        simulate(requests, n_slots, policy)


@pytest.mark.parametrize(("arrival", "n_steps"), [(-1, 1), (0, 0), (0.5, 1), (0, True)])
def test_bad_requests_are_named(arrival: int, n_steps: int) -> None:
    with pytest.raises(ValueError, match="got"):
        Request(arrival, n_steps)


# --- what holds -----------------------------------------------------------------------------------------


@given(requests_at_any_time, slots, st.sampled_from(POLICIES))
def test_tokens_are_conserved(requests: list[Request], n_slots: int, policy: Policy) -> None:
    """Each request runs n_steps steps in a row, in one slot, and not before it arrives."""
    result = simulate(requests, n_slots, policy)
    assert result.schedule.shape == (result.n_steps, n_slots)
    for i, request in enumerate(requests):
        steps, columns = np.nonzero(result.schedule == i)
        assert steps.tolist() == list(range(steps[0], steps[0] + request.n_steps))
        assert len(set(columns)) == 1
        assert steps[0] >= request.arrival
    assert (result.schedule[-1] >= 0).any(), "the last step is busy"
    busy = sum(request.n_steps for request in requests)
    assert result.slot_use == pytest.approx(busy / (result.n_steps * n_slots))


@given(requests_at_any_time, slots, st.sampled_from(POLICIES))
def test_first_come_first_served(requests: list[Request], n_slots: int, policy: Policy) -> None:
    result = simulate(requests, n_slots, policy)
    starts = ends(result, len(requests)) - [request.n_steps for request in requests]
    order = sorted(range(len(requests)), key=lambda i: (requests[i].arrival, i))
    assert (np.diff(starts[order]) >= 0).all()


@given(requests_at_any_time, slots)
def test_no_slot_idles_while_a_request_waits(requests: list[Request], n_slots: int) -> None:
    result = simulate(requests, n_slots, "continuous")
    starts = ends(result, len(requests)) - [request.n_steps for request in requests]
    for t, row in enumerate(result.schedule):
        waiting = [i for i, request in enumerate(requests) if request.arrival <= t < starts[i]]
        assert not waiting or (row >= 0).all()


@given(requests_at_any_time, slots)
def test_static_batches_do_not_mix(requests: list[Request], n_slots: int) -> None:
    """Whoever joins finds all slots empty."""
    rows = simulate(requests, n_slots, "static").schedule
    for before, row in pairwise(rows):
        if set(row[row >= 0]) - set(before):
            assert not set(before[before >= 0]) & set(row)


@given(requests_at_any_time, slots, st.sampled_from(POLICIES))
def test_littles_law(requests: list[Request], n_slots: int, policy: Policy) -> None:
    """Mean number in the system = arrival rate · mean latency, over the whole run."""
    result = simulate(requests, n_slots, policy)
    last = ends(result, len(requests))
    present = sum(
        sum(r.arrival <= t < end for r, end in zip(requests, last, strict=True)) for t in range(result.n_steps)
    )
    assert present / result.n_steps == pytest.approx(len(requests) / result.n_steps * result.mean_latency)


@given(lengths, slots, st.sampled_from(POLICIES))
def test_steps_have_a_lower_bound(n_steps: list[int], n_slots: int, policy: Policy) -> None:
    result = simulate(together(n_steps), n_slots, policy)
    assert result.n_steps >= max(math.ceil(sum(n_steps) / n_slots), max(n_steps))


@given(lengths, slots)
def test_continuous_has_an_upper_bound(n_steps: list[int], n_slots: int) -> None:
    """Graham's bound for list scheduling (1966): at most work / slots + (1 - 1 / slots) · longest."""
    steps = simulate(together(n_steps), n_slots, "continuous").n_steps
    assert steps <= sum(n_steps) / n_slots + (1 - 1 / n_slots) * max(n_steps) + 1e-9


@settings(max_examples=300)
@given(requests_at_any_time, slots)
def test_continuous_is_never_later_than_static_for_any_request(requests: list[Request], n_slots: int) -> None:
    """The lesson's proposition 2, which holds for arrivals at any time."""
    static, continuous = (ends(simulate(requests, n_slots, policy), len(requests)) for policy in POLICIES)
    assert (continuous <= static).all()


@given(lengths, slots)
def test_more_slots_delay_nobody(n_steps: list[int], n_slots: int) -> None:
    few, many = (ends(simulate(together(n_steps), n, "continuous"), len(n_steps)) for n in (n_slots, n_slots + 1))
    assert (many <= few).all()


@settings(max_examples=300)
@given(lengths, slots, st.data())
def test_a_shorter_request_delays_nobody(n_steps: list[int], n_slots: int, data: st.DataObject) -> None:
    shorter = [data.draw(st.integers(1, n)) for n in n_steps]
    for policy in POLICIES:
        long, short = (ends(simulate(together(n), n_slots, policy), len(n_steps)) for n in (n_steps, shorter))
        assert (short <= long).all()


@given(st.integers(1, 12), st.integers(1, 9), slots)
def test_equal_lengths_make_both_policies_equal(n: int, length: int, n_slots: int) -> None:
    static, continuous = (simulate(together([length] * n), n_slots, policy) for policy in POLICIES)
    assert np.array_equal(static.schedule, continuous.schedule)


# --- what does not hold ---------------------------------------------------------------------------------


def n_steps_of(n_steps: list[int], n_slots: int = 2) -> int:
    return simulate(together(n_steps), n_slots, "continuous").n_steps


def test_the_lower_bound_is_not_always_reached() -> None:
    assert n_steps_of([1, 1, 2]) == 3 > max(math.ceil(4 / 2), 2)


def test_the_order_matters() -> None:
    assert (n_steps_of([1, 1, 2]), n_steps_of([1, 2, 1])) == (3, 2)


def test_longest_first_can_be_worse() -> None:
    in_order = [2, 3, 2, 3, 2]
    assert (n_steps_of(in_order), n_steps_of(sorted(in_order, reverse=True))) == (6, 7)


def test_more_slots_can_delay_a_request_of_a_static_batch() -> None:
    """With a third slot, request 2 joins the first batch and holds up request 3."""
    two, three = (ends(simulate(together([1, 1, 9, 9]), n, "static"), 4).tolist() for n in (2, 3))
    assert (two, three) == ([1, 1, 10, 10], [1, 1, 9, 18])


def test_a_later_arrival_can_shorten_the_run() -> None:
    """Request 1 steps back, the long request starts at once, and all are done a step earlier."""
    first = simulate([Request(0, 1), Request(0, 1), Request(0, 2)], 2, "continuous")
    later = simulate([Request(0, 1), Request(1, 1), Request(0, 2)], 2, "continuous")
    assert (first.n_steps, later.n_steps) == (3, 2)


# --- the check's own scheduler --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_no_twist_is_the_reference(seed: int) -> None:
    for case in cases(seed):
        rows = [tuple(sorted(row[row >= 0])) for row in simulate(*case).schedule]
        assert Twist().rows(*case) == rows


@pytest.mark.parametrize("seed", range(20))
def test_every_wrong_scheduler_is_seen_in_every_set_of_cases(seed: int) -> None:
    for slug, why, scheduler in SCHEDULE_MISTAKES:
        assert any(scheduler(*case) != Twist().rows(*case) for case in cases(seed)), f"{slug}: {why}"
