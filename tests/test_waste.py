"""The measurement of wasted KV memory, on cases small enough to count, and its conservation laws."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessonlib.reference import BlockAllocator
from lessonlib.traces import sample_lengths
from lessonlib.waste import serve_contiguous, serve_paged, share_used_over_lives


def test_one_request_at_a_time_by_hand() -> None:
    """Two requests of 3 + 2 tokens with buffers of 8 in a memory of 10: one runs while the other waits."""
    shares = serve_contiguous(np.array([3, 3]), np.array([2, 2]), np.array([8, 8]), 10)
    # Steps with 3 and 4 tokens in the cache; 2 and 1 to come; 3 never used; 2 slots beside the buffer.
    assert shares.used == pytest.approx(3.5 / 10)
    assert shares.reserved == pytest.approx(1.5 / 10)
    assert shares.internal == pytest.approx(3 / 10)
    assert shares.idle == pytest.approx(2 / 10)
    assert shares.running == 1


def test_gaps_are_counted() -> None:
    """The second of three buffers of 4 in 12 slots ends first; a request of 5 finds 4 free and waits."""
    shares = serve_contiguous(np.array([3, 3, 3, 4]), np.array([1, 1, 1, 1]), np.array([4, 4, 4, 5]), 12)
    assert shares.idle == 0  # all three end together
    staggered = serve_contiguous(np.array([1, 3, 1, 4]), np.array([3, 1, 3, 1]), np.array([4, 4, 4, 5]), 12)
    assert staggered.idle == pytest.approx((0 + 4 + 4) / 3 / 12)


@given(
    st.lists(st.tuples(st.integers(5, 30), st.integers(1, 10)), min_size=14, max_size=30),
    st.integers(0, 20),
    st.sampled_from([1, 4, 16]),
)
def test_every_slot_is_accounted_for(lengths: list[tuple[int, int]], extra: int, block_size: int) -> None:
    prompt, output = (np.array(column) for column in zip(*lengths, strict=True))
    for shares in (
        serve_contiguous(prompt, output, prompt + output + extra, 64),
        serve_paged(BlockAllocator, prompt, output, 64, block_size),
    ):
        used, reserved, internal, idle, running, _ = astuple(shares)
        assert used + reserved + internal + idle == pytest.approx(1)
        assert min(used, reserved, internal, idle) >= 0
        assert running >= 1
        if block_size == 1:
            assert serve_paged(BlockAllocator, prompt, output, 64, 1).internal == 0


def test_preemption_happens_and_ends() -> None:
    prompt, output = np.full(30, 4), np.full(30, 40)
    shares = serve_paged(BlockAllocator, prompt, output, 64, 4)
    assert shares.preempted > 0


def test_paging_uses_the_memory_of_a_conversation_trace() -> None:
    prompt, output = sample_lengths("conversation", 600, np.random.default_rng(0))
    paged = serve_paged(BlockAllocator, prompt, output, 200_000, 16)
    exact = serve_contiguous(prompt, output, prompt + output, 200_000)
    longest = serve_contiguous(prompt, output, np.full(600, 15_050), 200_000)
    assert paged.used > 0.96 > exact.used > longest.used
    assert longest.used < 0.12
    assert exact.internal == 0
    assert exact.idle > 0.05


def test_share_used_over_lives_of_the_trace() -> None:
    """Near the published trace's own 99.4%, 95.1% and 90.8%; lengths here are drawn from its quantiles."""
    prompt, output = sample_lengths("conversation", 3000, np.random.default_rng(0))
    for block_size, share in ((16, 0.994), (128, 0.951), (256, 0.908)):
        assert share_used_over_lives(prompt, output, block_size) == pytest.approx(share, abs=0.01)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least prompt"):
        serve_contiguous(np.array([3]), np.array([2]), np.array([4]), 10)
    with pytest.raises(ValueError, match="5 tokens can never run in 5 slots"):
        serve_paged(BlockAllocator, np.array([3]), np.array([2]), 5, 4)
    with pytest.raises(ValueError, match="all requests fit"):
        serve_contiguous(np.array([3]), np.array([2]), np.array([5]), 10)
