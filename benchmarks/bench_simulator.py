"""How many requests per second of wall clock the serving simulator runs, on one core."""

from __future__ import annotations

import time

import numpy as np

from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.simulator import POLICIES, llm_server, requests_of, serve
from lessonlib.traces import TRACES, sample_arrivals, sample_lengths

N_REQUESTS = 10_000


def main() -> None:
    """Print requests per second for each policy, at the rate of the conversation trace and at four times that."""
    trace = TRACES["conversation"]
    print(f"{N_REQUESTS:,} conversation-like requests, Llama-3-8B on an H100, 50 GB of KV cache")
    for load in (1, 4):
        rng = np.random.default_rng(0)
        arrivals = sample_arrivals(load * trace.rate, N_REQUESTS, rng, trace.gap_cv)
        requests = requests_of(arrivals, *sample_lengths("conversation", N_REQUESTS, rng))
        for policy in POLICIES:
            budget = 512 if policy == "chunked" else None
            server = llm_server(
                MODELS["Llama-3-8B"], GPUS["H100-SXM"], 50e9, policy, share_of_peak=0.5, token_budget=budget
            )
            start = time.perf_counter()
            result = serve(requests, server)
            seconds = time.perf_counter() - start
            print(
                f"{load * trace.rate:5.2f} requests/s, {policy:13}: {seconds:5.2f} s, {N_REQUESTS / seconds:7,.0f} "
                f"requests/s of wall clock, {result.timeline.n_steps.sum():,} steps"
            )


if __name__ == "__main__":
    main()
