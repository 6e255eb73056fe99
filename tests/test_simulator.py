"""The serving simulator: the spec's interference numbers, its invariants, and what it must never do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.records import Request
from lessonlib.reference import simulate
from lessonlib.roofline import prefill_seconds
from lessonlib.simulator import (
    LinearCost,
    RooflineCost,
    Server,
    ServingRequest,
    ServingResult,
    llm_server,
    requests_of,
    serve,
)
from lessonlib.traces import sample_arrivals, sample_lengths

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["batching"]
LLAMA, H100 = MODELS["Llama-3-8B"], GPUS["H100-SXM"]
UNIT = LinearCost(fixed=1.0, per_token=0.0, per_cached=0.0)  # every step takes a second


# --- interference: a long prompt beside 64 decoding sequences -------------------------------------------


def interference(policy: str, prompt: int = 32768, share: float = 1.0, **settings: object) -> ServingResult:
    """64 sequences of 1,024 tokens decode for a while; then a long prompt arrives."""
    beside = [ServingRequest(0.0, 1024, 2000) for _ in range(64)]
    long = ServingRequest(4.0, prompt, 8)
    return serve([*beside, long], llm_server(LLAMA, H100, 50e9, policy, share, **settings))


def long_step(result: ServingResult) -> float:
    late = result.timeline.start > 3.9
    return float(result.timeline.longest[late & (result.timeline.prefill_tokens > 0)].max())


@pytest.mark.parametrize(("share", "golden"), [(1.0, "peak"), (0.5, "half_peak")])
def test_long_prompt_in_one_piece(share: float, golden: str) -> None:
    """The step of the whole prompt takes the prefill's time and the decodes' compute on top."""
    seconds = GOLDEN["one_piece_32768_seconds"][golden]
    result = interference("continuous", share=share)
    assert seconds < long_step(result) < 1.01 * seconds
    assert result.worst_gap[0] == pytest.approx(long_step(result))
    assert result.ttft[64] == pytest.approx(seconds, rel=0.03)
    assert result.worst_gap[0] > 50 * np.median(result.timeline.longest)


def test_cost_of_chunks_golden() -> None:
    """Chunks of 512 beside 64 sequences of 1,024 tokens, as steps of the cost model."""
    cost = RooflineCost(LLAMA, H100)
    steps = [cost.step(64, 64 * 1024, [(512, before)]) for before in range(0, 32768, 512)]
    golden = GOLDEN["chunked_512_step_seconds_at_peak"]
    assert steps[0] == pytest.approx(golden["first"], rel=1e-4)
    assert steps[-1] == pytest.approx(golden["last"], rel=1e-4)
    assert sum(steps) == pytest.approx(golden["sum_ttft"], rel=1e-4)


def test_long_prompt_in_chunks() -> None:
    """512 tokens beside the 64 decodes: steps of 9.5 to 18 ms, TTFT a little later than in one piece."""
    chunked = interference("chunked", token_budget=512 + 64)
    steps = chunked.timeline
    chunks = (steps.start > 3.9) & (steps.prefill_tokens == 512)
    assert chunks.sum() == 64
    golden = GOLDEN["chunked_512_step_seconds_at_peak"]
    assert steps.longest[chunks][0] == pytest.approx(golden["first"], rel=0.02)
    assert steps.longest[chunks][-1] == pytest.approx(golden["last"], rel=0.02)
    assert steps.longest[chunks].sum() == pytest.approx(golden["sum_ttft"], rel=0.02)
    assert chunked.ttft[64] > interference("continuous").ttft[64]
    assert chunked.worst_gap[64] < 0.02


def test_disaggregated_prompt_does_not_disturb() -> None:
    alone = interference("disaggregated", prompt=1, n_prefill=4)
    result = interference("disaggregated", n_prefill=4)
    assert result.worst_gap[:64].max() < 1.02 * alone.worst_gap[:64].max() + 0.001
    assert result.ttft[64] == pytest.approx(prefill_seconds(32768, LLAMA, H100), rel=1e-9)
    assert result.worst_gap[64] > 32768 * 131072 / 50e9, "the cache is sent before the second token"


@pytest.mark.parametrize("link", GOLDEN["transfer_seconds"])
def test_transfer_golden(link: str) -> None:
    server = llm_server(LLAMA, H100, 50e9, "disaggregated", link_bandwidth=float(link))
    assert 2048 * server.transfer_seconds == pytest.approx(GOLDEN["transfer_seconds"][link])


def test_2048_tokens_in_one_step_and_in_eight() -> None:
    """About 71 ms at half of the peak, a 10x spike; 8 chunks of 256: 7.4 ms at peak, about 11 ms at half of it."""
    for share, chunk in ((1.0, 7.4e-3), (0.5, 11e-3)):
        cost = RooflineCost(LLAMA, H100, share)
        steps = [cost.step(64, 64 * 1024, [(256, before)]) for before in range(0, 2048, 256)]
        assert len(steps) == 8
        assert np.mean(steps) == pytest.approx(chunk, rel=0.03)
    assert cost.step(64, 64 * 1024, [(2048, 0)]) == pytest.approx(71e-3, rel=0.01)
    assert cost.step(64, 64 * 1024, [(2048, 0)]) > 9 * cost.step(64, 64 * 1024, [])


def test_free_chunk() -> None:
    """The weights' FLOPs of 389 more tokens fit into the time that 64 sequences of 1,024 tokens need for bytes."""
    seconds = RooflineCost(LLAMA, H100).step(64, 64 * 1024, [])
    tokens = seconds * H100.peak_flops / (2 * LLAMA.n_params)
    assert tokens - 64 == pytest.approx(GOLDEN["free_chunk_tokens_64_at_1024"])
    assert RooflineCost(LLAMA, H100).step(64, 64 * 1024, [(370, 0)]) < 1.01 * seconds


# --- small cases, by hand -------------------------------------------------------------------------------


def test_by_hand() -> None:
    """Steps of one second; two slots. Request 2 waits for a slot."""
    requests = [ServingRequest(0, 5, 3), ServingRequest(0, 5, 1), ServingRequest(0, 5, 2)]
    result = serve(requests, Server(UNIT, n_blocks=10, n_slots=2))
    assert result.first_token.tolist() == [1, 1, 2]
    assert result.finish.tolist() == [3, 1, 3]
    assert result.ttft.tolist() == [1, 1, 2]
    assert result.tpot.tolist() == [1, 0, 1]
    assert result.throughput == 6 / 3
    assert result.goodput(ttft=1, tpot=1) == 2 / 3
    static = serve(requests, Server(UNIT, n_blocks=10, n_slots=2, policy="static"))
    assert static.finish.tolist() == [3, 1, 5]


def test_an_arrival_in_the_middle_of_a_step_waits_for_the_next() -> None:
    requests = [ServingRequest(0, 1, 10), ServingRequest(4.5, 1, 2), ServingRequest(6.0, 1, 1)]
    result = serve(requests, Server(UNIT, n_blocks=10))
    assert result.first_token.tolist() == [1, 6, 7]


def test_newest_first_preemption_by_recompute() -> None:
    """Blocks of one token, six of them: the two grow to six tokens, then the newer one gives way."""
    requests = [ServingRequest(0, 2, 4), ServingRequest(0, 2, 4)]
    result = serve(requests, Server(UNIT, n_blocks=6, block_size=1))
    assert result.n_preempted.tolist() == [0, 1]
    # 1: both prefills; 2: both decode (3 cached each); 3, 4: the first alone; 5: the other's prefill over 2 + 2 tokens.
    assert result.finish.tolist() == [4, 6]
    assert result.timeline.prefill_tokens.tolist()[-2:] == [4, 0]
    assert result.worst_gap.tolist() == [1, 3]


def test_newest_first_preemption_by_swap() -> None:
    requests = [ServingRequest(0, 2, 4), ServingRequest(0, 2, 4)]
    result = serve(requests, Server(UNIT, n_blocks=6, block_size=1, restore="swap", swap_seconds=0.25))
    # Three tokens go out in step 3 and come back in step 5, 0.75 s each way.
    assert result.finish.tolist() == [4.75, 7.5]
    assert result.worst_gap.tolist() == [1.75, 6.5 - 2]


def test_prefix_caching_skips_prefill() -> None:
    """Three full blocks in common; the last token of a prompt is always computed."""
    names = ("a", "b", "c")
    requests = [ServingRequest(0, 48, 2, names), ServingRequest(5, 48, 2, names), ServingRequest(9, 49, 2, names)]
    result = serve(requests, Server(UNIT, n_blocks=20, prefix_caching=True))
    assert result.cached_tokens.tolist() == [0, 32, 48]
    off = serve(requests, Server(UNIT, n_blocks=20))
    assert off.cached_tokens.tolist() == [0, 0, 0]
    assert result.timeline.prefill_tokens.sum() == off.timeline.prefill_tokens.sum() - 80


def test_cached_blocks_give_way() -> None:
    """A freed prefix stays findable until its room is needed."""
    first, other = ServingRequest(0, 40, 1, ("a", "b")), ServingRequest(2, 64, 1)
    again = ServingRequest(4, 40, 1, ("a", "b"))
    big, small = (serve([first, other, again], Server(UNIT, n, prefix_caching=True)) for n in (6, 4))
    assert big.cached_tokens.tolist() == [0, 0, 32]
    assert small.cached_tokens.tolist() == [0, 0, 0]


def test_linear_cost_through_three_measured_steps() -> None:
    truth = LinearCost(4e-3, 2e-5, 3e-8)
    measured = [(n, cached, truth.step(n, cached, [])) for n, cached in ((1, 100), (64, 6400), (64, 64000))]
    fitted = LinearCost.fitted(measured)
    assert fitted.step(32, 1000, [(100, 50)]) == pytest.approx(truth.step(32, 1000, [(100, 50)]))
    assert fitted.decode_run(8, 800, 3) == pytest.approx([truth.step(8, 800 + 8 * i, []) for i in range(3)])
    with pytest.raises(ValueError, match="three steps"):
        LinearCost.fitted(measured[:2])


def test_roofline_run_is_its_steps() -> None:
    cost = RooflineCost(LLAMA, H100, share_of_peak=0.5)
    for B, cached in ((1, 1), (64, 64 * 1024), (900, 900 * 20)):
        expected = [cost.step(B, cached + B * i, []) for i in range(40)]
        assert cost.decode_run(B, cached, 40) == pytest.approx(expected, rel=1e-12)


# --- what can never run is refused, and nothing waits for ever ------------------------------------------


def test_larger_than_the_pool_is_refused() -> None:
    requests = [ServingRequest(0, 161, 1), ServingRequest(0, 150, 12), ServingRequest(0, 150, 11)]
    for policy in ("static", "continuous", "disaggregated"):
        result = serve(requests, Server(UNIT, n_blocks=10, policy=policy))
        assert result.refused.tolist() == [True, True, False]
        assert np.isnan(result.finish).tolist() == [True, True, False]
        assert result.attained(1e9, 1e9) == pytest.approx(1 / 3)


def test_prompt_above_the_token_budget_is_refused_or_chunked() -> None:
    requests = [ServingRequest(0, 100, 3), ServingRequest(0, 10, 3)]
    whole = serve(requests, Server(UNIT, n_blocks=10, token_budget=64))
    assert whole.refused.tolist() == [True, False]
    chunked = serve(requests, Server(UNIT, n_blocks=10, policy="chunked", token_budget=64))
    assert not chunked.refused.any()
    assert chunked.timeline.prefill_tokens.tolist()[:2] == [64, 46]


def test_all_refused() -> None:
    result = serve([ServingRequest(0, 1000, 1)], Server(UNIT, n_blocks=10))
    assert result.throughput == 0
    assert result.duration == result.goodput(1, 1) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"n_blocks": 0},
        {"policy": "random"},
        {"policy": "chunked"},
        {"token_budget": 0},
        {"restore": "forget"},
        {"policy": "disaggregated", "prefix_caching": True},
        {"n_slots": 0},
    ],
)
def test_bad_servers_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="got"):
        Server(UNIT, **{"n_blocks": 10, **settings})


@pytest.mark.parametrize("args", [(-1, 1, 1), (0, 0, 1), (0, 1, 0), (float("nan"), 1, 1)])
def test_bad_requests_are_refused(args: tuple) -> None:
    with pytest.raises(ValueError, match="got"):
        ServingRequest(*args)
    with pytest.raises(ValueError, match="at least one request"):
        serve([], Server(UNIT, 1))


# --- invariants, on random traffic ----------------------------------------------------------------------

requests_strategy = st.lists(
    st.builds(
        ServingRequest,
        arrival=st.one_of(st.just(0.0), st.floats(0, 60)),
        prompt=st.integers(1, 70),
        output=st.integers(1, 40),
        prefix=st.sampled_from([(), ("a",), ("a", "b", "c", "d"), ("a", "x", "y")]),
    ),
    min_size=1,
    max_size=14,
)
servers = st.builds(
    Server,
    cost=st.sampled_from([UNIT, LinearCost(0.5, 0.01, 0.001), RooflineCost(LLAMA, replace(H100, bandwidth=1e11))]),
    n_blocks=st.integers(7, 40),
    block_size=st.sampled_from([1, 4, 16]),
    n_slots=st.integers(1, 8),
    policy=st.sampled_from(["static", "continuous", "chunked"]),
    token_budget=st.integers(5, 100),
    restore=st.sampled_from(["recompute", "swap"]),
    swap_seconds=st.sampled_from([0.0, 0.01]),
    prefix_caching=st.booleans(),
) | st.builds(
    Server,
    cost=st.just(UNIT),
    n_blocks=st.integers(7, 40),
    n_slots=st.integers(1, 8),
    policy=st.just("disaggregated"),
    n_prefill=st.integers(1, 3),
    transfer_seconds=st.sampled_from([0.0, 0.05]),
    restore=st.sampled_from(["recompute", "swap"]),
    swap_seconds=st.just(0.01),
)


@settings(max_examples=300, deadline=None)
@given(requests_strategy, servers)
def test_invariants(requests: list[ServingRequest], server: Server) -> None:
    result = serve(requests, server)
    steps = result.timeline
    served = ~result.refused
    assert np.isfinite(result.finish[served]).all(), "every request that can run ends"
    assert (result.first_token[served] >= [r.arrival for r, yes in zip(requests, served, strict=True) if yes]).all()
    assert (result.finish[served] >= result.first_token[served]).all()
    # Memory, slots and time.
    assert (steps.used_blocks <= server.n_blocks).all()
    assert (steps.n_decodes <= server.n_slots).all()
    assert (steps.start[1:] >= steps.end[:-1] - 1e-9).all()
    # No token is lost: each output token but those of prefills comes from a decode.
    outputs = sum(r.output for r, yes in zip(requests, served, strict=True) if yes)
    by_decode = int((steps.n_steps * steps.n_decodes).sum()) if len(steps.n_steps) else 0
    if not result.n_preempted.any():
        assert by_decode == outputs - served.sum()
    assert outputs - served.sum() - result.n_preempted.sum() <= by_decode <= outputs - served.sum()
    assert (steps.n_decodes + steps.prefill_tokens > 0).all(), "no step does nothing"


@settings(max_examples=200, deadline=None)
@given(requests_strategy, servers)
def test_skipping_ahead_changes_nothing(requests: list[ServingRequest], server: Server) -> None:
    fast, slow = serve(requests, server), serve(requests, server, skip_ahead=False)
    for name in ("first_token", "finish", "worst_gap"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-9, abs=1e-9, nan_ok=True)
    assert (fast.n_preempted == slow.n_preempted).all()
    assert fast.timeline.n_steps.sum() == slow.timeline.n_steps.sum()


@settings(max_examples=200, deadline=None)
@given(requests_strategy, servers)
def test_first_come_first_served(requests: list[ServingRequest], server: Server) -> None:
    """First tokens come in the order of arrival, unless requests were preempted."""
    result = serve(requests, server)
    if result.n_preempted.any() and server.policy != "disaggregated":
        return
    order = [i for i in sorted(range(len(requests)), key=lambda i: requests[i].arrival) if not result.refused[i]]
    first = result.first_token[order]
    if server.policy != "disaggregated" or server.n_prefill == 1:
        assert (np.diff(first) >= -1e-9).all()


@settings(max_examples=100, deadline=None)
@given(requests_strategy, st.integers(1, 4))
def test_no_slot_idles_while_a_request_waits(requests: list[ServingRequest], n_slots: int) -> None:
    result = serve(requests, Server(UNIT, n_blocks=10_000, n_slots=n_slots), skip_ahead=False)
    steps = result.timeline
    for t, waiting in zip(steps.start, steps.n_waiting, strict=True):
        running = ((result.first_token - 1 < t + 1e-6) & (t + 1 < result.finish + 1e-6)).sum()
        assert waiting == 0 or running == n_slots


def test_same_seed_same_result() -> None:
    def run(seed: int) -> ServingResult:
        rng = np.random.default_rng(seed)
        requests = requests_of(sample_arrivals(20, 300, rng), *sample_lengths("conversation", 300, rng))
        return serve(requests, llm_server(LLAMA, H100, 5e9, "chunked", token_budget=512))

    a, b, c = run(0), run(0), run(1)
    assert np.array_equal(a.finish, b.finish)
    assert not np.array_equal(a.finish, c.finish)
    assert a.n_preempted.sum() > 0, "the pool is small enough to see preemption"


def test_agrees_with_the_exercise() -> None:
    """With steps of one second and memory for all, the policies are those of exercise 5."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        pairs = [(int(rng.integers(0, 20)), int(rng.integers(1, 12))) for _ in range(15)]
        simple = [Request(arrival, n) for arrival, n in pairs]
        rich = [ServingRequest(arrival, 3, n) for arrival, n in pairs]
        for policy in ("static", "continuous"):
            expected = simulate(simple, 3, policy)
            result = serve(rich, Server(UNIT, n_blocks=10_000, n_slots=3, policy=policy))
            assert result.finish.max() == expected.n_steps
            assert np.mean(result.finish - [arrival for arrival, _ in pairs]) == pytest.approx(expected.mean_latency)
