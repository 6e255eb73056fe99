"""Request lengths and arrival times that follow published production traces.

The traces themselves are not here, only 28 quantiles of their lengths. A sampler that interpolates between
the quantiles meets the traces' mean lengths within 1% (outputs of the code trace: 4%).

Source of the numbers: Azure LLM inference traces of 2023, published in Azure's public dataset and described by
Patel et al., "Splitwise" (ISCA 2024, arXiv:2311.18677).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# fmt: off
PERCENT = (0, 1, 2.5, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 92.5, 95, 97.5, 99, 99.5,
           99.9, 100)
# fmt: on


@dataclass(frozen=True, slots=True)
class Trace:
    """What is kept of one trace.

    Prompt and output lengths of a request are nearly uncorrelated in both traces, so two lists of quantiles do.

    Args:
        name: what the lessons call it.
        source: where the numbers come from.
        n_requests: requests in the trace.
        rate: mean requests per second.
        gap_cv: coefficient of variation of the gaps between arrivals: 1 for a Poisson process.
        prompt: quantiles of the prompt length in tokens, at PERCENT.
        output: quantiles of the output length in tokens, at PERCENT.
        prompt_mean: mean prompt length in the trace, tokens.
        output_mean: mean output length in the trace, tokens.
    """

    name: str
    source: str
    n_requests: int
    rate: float
    gap_cv: float
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    prompt_mean: float
    output_mean: float


# fmt: off
TRACES: dict[str, Trace] = {trace.name: trace for trace in (
    Trace(
        "conversation", "Azure LLM inference trace 2023, conversation (arXiv:2311.18677)", 19366, 5.53, 1.09,
        prompt=(2, 29, 120, 181, 207, 372, 387, 396, 403, 414, 703, 984, 1020, 1045, 1071, 1097, 1130, 1189, 1315,
                1876, 2734, 4075, 4083, 4092, 4142, 4831, 6179, 14050),
        output=(7, 16, 28, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 430,
                451, 522, 601, 643, 954, 1000),
        prompt_mean=1154.7, output_mean=211.1,
    ),
    Trace(
        "code", "Azure LLM inference trace 2023, code (arXiv:2311.18677)", 8819, 2.57, 13.2,
        prompt=(3, 17, 44, 75, 147, 232, 386, 578, 770, 939, 1075, 1261, 1469, 1690, 1909, 2164, 2433, 2744, 3192,
                3920, 5188, 6097, 7303, 7435, 7436, 7436, 7437, 7437),
        output=(6, 6, 6, 6, 7, 7, 8, 9, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 29, 39, 55, 69, 90, 145, 251, 359,
                825, 1899),
        prompt_mean=2047.8, output_mean=27.9,
    ),
)}
# fmt: on


def sample_lengths(trace: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw prompt and output lengths of n requests, independently of each other.

    Args:
        trace: a name in TRACES.
        n: how many requests.
        rng: where the randomness comes from.

    Returns:
        Prompt lengths and output lengths in tokens, two integer arrays of shape (n,).

    Raises:
        ValueError: there is no such trace.
    """
    quantiles = _trace(trace)
    percent = rng.uniform(0, 100, size=(2, n))
    prompt = np.interp(percent[0], PERCENT, quantiles.prompt)
    output = np.interp(percent[1], PERCENT, quantiles.output)
    return np.rint(prompt).astype(np.int64), np.rint(output).astype(np.int64)


def sample_arrivals(rate: float, n: int, rng: np.random.Generator, gap_cv: float = 1.0) -> np.ndarray:
    """Draw n arrival times in seconds, from 0 on, in order.

    The gaps follow a gamma distribution of mean 1 / rate. With gap_cv = 1 that is the exponential one, and the
    arrivals are a Poisson process; a larger gap_cv makes them come in bursts.

    Args:
        rate: mean requests per second, above 0.
        n: how many requests.
        rng: where the randomness comes from.
        gap_cv: coefficient of variation (standard deviation / mean) of the gaps, above 0.

    Returns:
        Arrival times, shape (n,).

    Raises:
        ValueError: rate or gap_cv is not positive.
    """
    if not rate > 0 or not gap_cv > 0:
        raise ValueError(f"rate and gap_cv must be above 0, got {rate!r} and {gap_cv!r}")
    shape = gap_cv**-2
    return np.cumsum(rng.gamma(shape, 1 / (rate * shape), size=n))


def _trace(name: str) -> Trace:
    if name not in TRACES:
        raise ValueError(f"there is no trace {name!r}; choose one of {', '.join(TRACES)}")
    return TRACES[name]
