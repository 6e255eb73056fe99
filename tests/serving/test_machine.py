"""What the capstone measures of its machine: step probes beside a run."""

from __future__ import annotations

import numpy as np
import pytest

from lessonlib.machine import StepProbes, TimedRun
from lessonlib.serving import LLM, Decoder, SamplingParams
from lessonlib.simulator import LinearCost, Server, requests_of, serve


def run_beside(probes: StepProbes, model: Decoder, n_prompt: list[int], n_output: list[int]) -> tuple[LLM, TimedRun]:
    llm = LLM(model, n_blocks=128, max_batch_tokens=128, max_sequences=8, prefix_caching=False)
    for n, n_new in zip(n_prompt, n_output, strict=True):
        llm.add_request([3] * n, SamplingParams(max_tokens=n_new, ignore_eos=True))
    return llm, probes.run_beside(llm)


def test_probes_measure_three_kinds_of_step_which_determine_the_cost(tiny: Decoder) -> None:
    llm, run = run_beside(StepProbes(tiny), tiny, [20, 70, 30], [12, 16, 20])
    (n_short, short, _), (n_longer, longer, _), (n_joined, *_) = run.steps
    assert (n_short, n_longer, n_joined) == (8, 8, 97)
    assert 8 * 32 < short < 8 * 96 < longer
    assert all(seconds > 0 for *_, seconds in run.steps)
    LinearCost.fitted(run.steps)
    assert run.seconds == llm.metrics.total("seconds")
    # All three prompts fit in the first step's budget of 128 tokens.
    assert run.ttft == [llm.metrics.steps[0].seconds] * 3


def test_the_clock_stands_still_while_a_probe_is_measured(tiny: Decoder) -> None:
    """Times of the run are sums of its own steps: the second prompt waits for the first request's 3 tokens."""
    llm = LLM(tiny, n_blocks=64, max_batch_tokens=128, max_sequences=1, prefix_caching=False)
    for _ in range(2):
        llm.add_request([5] * 40, SamplingParams(max_tokens=3, ignore_eos=True))
    run = StepProbes(tiny).run_beside(llm)
    steps = [step.seconds for step in llm.metrics.steps]
    assert len(steps) == 6
    assert run.ttft == pytest.approx([steps[0], sum(steps[:4])])


def test_probes_serve_one_run_after_the_other_and_a_run_of_one_step(tiny: Decoder) -> None:
    probes = StepProbes(tiny)
    for n_output in (1, 450, 1):  # the probes' own sequences end after 256 tokens, and new ones follow
        _, run = run_beside(probes, tiny, [20], [n_output])
        assert [n for n, *_ in run.steps] == [8, 8, 97]


def test_a_request_that_fails_is_not_measured(tiny: Decoder) -> None:
    with pytest.raises(ValueError, match=r"request 0 cannot be measured: .* 512 positions"):
        run_beside(StepProbes(tiny), tiny, [20], [600])


def test_errors_of_a_simulation_that_is_right_and_of_one_that_is_twice_as_slow() -> None:
    def simulated(scale: float):
        cost = LinearCost(0.05 * scale, 0.001 * scale, 1e-6 * scale)
        return serve(requests_of(np.zeros(4), [30] * 4, [10] * 4), Server(cost, n_blocks=64))

    truth = simulated(1.0)
    run = TimedRun(truth.duration, truth.ttft.tolist(), [])
    assert run.errors(truth) == pytest.approx((0, 0))
    assert run.errors(simulated(2.0)) == pytest.approx((0.5, 1.0))  # half the throughput, twice the wait
