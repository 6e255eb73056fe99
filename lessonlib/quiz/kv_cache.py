"""Quick checks of lesson 1. The keys are computed from the reference answers."""

from __future__ import annotations

from dataclasses import replace

from lessonlib.models import MODELS
from lessonlib.quiz.question import Choice, Question
from lessonlib.reference import kv_bytes_per_token, max_batch


def bytes_of_70b() -> Question:
    """KV bytes per token of Llama-3-70B."""
    cfg = MODELS["Llama-3-70B"]
    right = kv_bytes_per_token(cfg) / 1024
    return Question(
        f"Llama-3-70B has L = {cfg.n_layers}, a = {cfg.n_heads}, n_kv = {cfg.n_kv_heads}, d_h = {cfg.head_dim}, and a "
        "bf16 cache. What does one token add to the cache?",
        [
            Choice(
                f"{right * cfg.group_size / 1024:g} MiB",
                f"That counts the {cfg.n_heads} query heads. Only the {cfg.n_kv_heads} KV heads are stored: "
                f"{cfg.group_size} times less.",
            ),
            Choice(
                f"{right / 2:g} KiB",
                "That is the keys alone. Attention also needs the value of every earlier token: a factor of 2.",
            ),
            Choice(
                f"{right:g} KiB",
                f"2 · {cfg.n_layers} · {cfg.n_kv_heads} · {cfg.head_dim} · 2 bytes = {right * 1024:,.0f} bytes.",
                right=True,
            ),
            Choice(
                f"{right / cfg.n_layers:g} KiB",
                f"That is one layer. Each of the {cfg.n_layers} layers keeps keys and values of its own.",
            ),
        ],
    )


def which_lever() -> Question:
    """What halves the cache without touching the model's shape."""
    cfg = MODELS["Llama-3-8B"]
    bf16, fp8 = max_batch(50e9, 4096, cfg), max_batch(50e9, 4096, replace(cfg, bytes_per_kv=1))
    return Question(
        f"50 GB are left for the cache of Llama-3-8B and each sequence holds 4,096 tokens, so {bf16} sequences fit. "
        "Which change lets about twice as many fit?",
        [
            Choice(
                "Quantise the weights to int4",
                "That frees memory for the cache once, but a token still takes as many bytes in it. The cache has a "
                "format of its own.",
            ),
            Choice("Store the cache in fp8", f"One byte per number in place of two: {fp8} sequences fit.", right=True),
            Choice(
                "Use half as many query heads",
                "Query heads are not cached. The cache grows with the KV heads alone.",
            ),
            Choice(
                "Buy a GPU with twice the FLOP/s",
                "Arithmetic does not hold bytes. Capacity is a matter of memory alone.",
            ),
        ],
    )


def size_from_prompt() -> Question:
    """Why a batch sized from the prompts overflows."""
    cfg = MODELS["Llama-3-8B"]
    at_start, at_end = max_batch(50e9, 1024, cfg), max_batch(50e9, 1024 + 1024, cfg)
    return Question(
        f"All prompts have 1,024 tokens and {at_start} of them fit. You start {at_start} sequences, and each writes "
        "1,024 tokens more. What happens?",
        [
            Choice(
                "They all finish",
                f"Each written token is cached as well. With 2,048 tokens each, only {at_end} sequences fit.",
            ),
            Choice(
                "Memory runs out on the way",
                f"The cache grows by {at_start} tokens per step. In the end only {at_end} sequences fit: the server "
                "must stop some of them and bring them back later (preemption, lesson 3).",
                right=True,
            ),
            Choice("The oldest tokens are dropped", "Only sliding-window layers do that, and by design of the model."),
        ],
    )
