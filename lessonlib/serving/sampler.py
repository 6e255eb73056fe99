"""From logits to tokens: greedy, temperature, top-k, top-p, each request with a generator of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lessonlib.serving.request import SamplingParams


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The law that a request's next token is drawn from.

    Temperature comes first, then top-k, then top-p. Equal logits at the edge of top-k are all kept.

    Args:
        logits: shape (n, V), float32.
        params: of the request; with temperature 0 the law is one-hot.

    Returns:
        Shape (n, V), rows that sum to 1.
    """
    if params.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    logits = (logits - logits.amax(-1, keepdim=True)) / params.temperature  # the largest stays finite, however cold
    if params.top_k is not None and params.top_k < logits.shape[-1]:
        edge = logits.topk(params.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < edge, -torch.inf)
    if params.top_p < 1:
        p, order = logits.softmax(-1).sort(-1, descending=True)
        before = p.cumsum(-1) - p
        dropped = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, before >= params.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    return logits.softmax(-1)


def draw(p: np.ndarray, rng: np.random.Generator) -> int:
    """One token from a law of shape (V,): the first whose cumulative probability is above a uniform number."""
    cumulative = np.cumsum(p, dtype=np.float64)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def next_token(logits: Tensor, greedy: int, params: SamplingParams, rng: np.random.Generator) -> int:
    """The token that follows, given its logits of shape (V,) and their argmax."""
    if params.temperature == 0:
        return greedy
    return draw(probabilities(logits[None].double(), params)[0].cpu().numpy(), rng)
