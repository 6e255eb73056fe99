"""Reference answers of the capstone: the parts of a paged-KV server that a learner writes (torch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lessonlib.records import Admission


def slot_mapping(block_table: Sequence[int], start: int, n_tokens: int, block_size: int) -> list[int]:
    """Where in the pool the tokens start … start + n_tokens − 1 of a sequence are stored.

    A slot counts tokens through the whole pool: block b holds slots b · block_size … (b + 1) · block_size − 1.

    Args:
        block_table: the sequence's physical blocks, in the order of its logical blocks.
        start: position of the first token, 0-based.
        n_tokens: number of tokens.
        block_size: tokens per block.

    Returns:
        One slot per token, in order.
    """
    positions = range(start, start + n_tokens)
    return [block_table[p // block_size] * block_size + p % block_size for p in positions]


def write_kv(k_cache: Tensor, v_cache: Tensor, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
    """Write the keys and values of new tokens into their slots, in place, and touch nothing else.

    Args:
        k_cache, v_cache: shape (n_blocks, block_size, n_kv_heads, head_dim), one layer of the pool.
        slots: one slot per new token.
        k, v: shape (n_tokens, n_kv_heads, head_dim).
    """
    index = torch.tensor(list(slots), dtype=torch.long, device=k.device)
    k_cache.view(-1, *k_cache.shape[2:])[index] = k
    v_cache.view(-1, *v_cache.shape[2:])[index] = v


def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Sequence[int], length: int) -> Tensor:
    """Attention of one new token over its sequence's cache, block by block, merged with the online softmax.

    Query head i uses KV head i // (n_heads / n_kv_heads). Scores are scaled by 1 / sqrt(head_dim).
    (Kwon et al. 2023, section 4.1; online softmax: Milakov and Gimelshein 2018, arXiv:1805.02867.)

    Args:
        q: shape (n_heads, head_dim).
        k_cache, v_cache: shape (n_blocks, block_size, n_kv_heads, head_dim), one layer of the pool.
        block_table: the sequence's physical blocks; may have more of them than `length` needs.
        length: cached tokens of the sequence, the new one included; at least 1.

    Returns:
        Shape (n_heads, head_dim).
    """
    n_heads, head_dim = q.shape
    block_size, n_kv_heads = k_cache.shape[1], k_cache.shape[2]
    grouped = q.float().view(n_kv_heads, n_heads // n_kv_heads, head_dim) / head_dim**0.5
    highest = torch.full(grouped.shape[:2], -torch.inf, device=q.device)
    total = torch.zeros_like(highest)
    mixed = torch.zeros_like(grouped)
    for i in range((length + block_size - 1) // block_size):
        n = min(block_size, length - i * block_size)
        k, v = k_cache[block_table[i], :n].float(), v_cache[block_table[i], :n].float()
        scores = torch.einsum("hgd,nhd->hgn", grouped, k)
        new_highest = torch.maximum(highest, scores.amax(-1))
        weights = torch.exp(scores - new_highest[..., None])
        shrink = torch.exp(highest - new_highest)  # what was summed so far, on the new scale
        total = total * shrink + weights.sum(-1)
        mixed = mixed * shrink[..., None] + torch.einsum("hgn,nhd->hgd", weights, v)
        highest = new_highest
    return (mixed / total[..., None]).reshape(n_heads, head_dim).to(q.dtype)


def admit(waiting: Sequence[int], n_free: int, n_blocks: int, block_size: int, token_budget: int) -> list[Admission]:
    """Which waiting requests join in this step, first come, first served, and how many of their tokens run in it.

    Each waiting request is looked at in order. One whose tokens cannot fit in the whole pool never will:
    "never", and the next one is looked at. One that fits in the free blocks now, all of its tokens and one more
    slot for the token it will write, is admitted: "now", and takes its blocks and as many tokens as the budget
    still has (the rest of its prompt follows in later steps). One that does not fit, or finds no budget left, waits:
    "later", and so does everyone behind it.

    Args:
        waiting: tokens to prefill of each waiting request, the oldest first.
        n_free: free blocks.
        n_blocks: blocks of the whole pool.
        block_size: tokens per block.
        token_budget: prefill tokens that this step may still compute.

    Returns:
        One `Admission(answer, n_tokens)` per request: answer "now", "later" or "never"; n_tokens to compute in this
        step, 0 unless "now".
    """
    answers = []
    blocked = False
    for n_prompt in waiting:
        needed = -(-(n_prompt + 1) // block_size)
        if needed > n_blocks:
            answers.append(Admission("never", 0))
        elif blocked or needed > n_free or token_budget == 0:
            blocked = True
            answers.append(Admission("later", 0))
        else:
            chunk = min(n_prompt, token_budget)
            n_free -= needed
            token_budget -= chunk
            answers.append(Admission("now", chunk))
    return answers


def verify(draft: Sequence[int], p: np.ndarray, q: np.ndarray, rng: np.random.Generator) -> tuple[list[int], int]:
    """Judge the tokens that a draft model proposed, and say how much of the cache stays valid.

    The one target pass has written the keys and values of the last known token and of all drafts. Those of rejected
    drafts are garbage: the sequence's cached length must go back behind the last accepted one.
    (Leviathan et al. 2023, arXiv:2211.17192, algorithm 1.)

    Args:
        draft: γ proposed tokens, token i drawn from q[i].
        p: target probabilities, shape (γ + 1, V).
        q: draft probabilities, shape (γ, V).
        rng: source of the acceptance draws.

    Returns:
        The tokens to emit (accepted drafts and one more), and how many drafts keep their place in the cache.
    """
    for i, token in enumerate(draft):
        if rng.random() * q[i, token] >= p[i, token]:
            residual = np.maximum(p[i] - q[i], 0)
            law = residual / residual.sum() if residual.sum() > 0 else p[i]
            return [*draft[:i], int(rng.choice(len(law), p=law))], i
    return [*draft, int(rng.choice(p.shape[1], p=p[-1] / p[-1].sum()))], len(draft)
