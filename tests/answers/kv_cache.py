"""Answers to exercise 1, right and wrong."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from dataclasses import astuple
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from operator import mul

import numpy as np

from lessonlib.reference import kv_bytes_per_sequence, kv_bytes_per_token
from tests.answers import Answers, Wrong

# --- kv_bytes_per_token: right --------------------------------------------------------------------------


def per_token_loop(cfg):
    total = 0
    for _layer in range(cfg.n_layers):
        for _kind in ("key", "value"):
            total += cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv
    return total


def per_token_numpy(cfg):
    return np.prod([2, cfg.n_layers, cfg.n_kv_heads, cfg.head_dim, cfg.bytes_per_kv])


def per_token_reduce(cfg):
    return reduce(mul, (cfg.n_layers, cfg.n_kv_heads, cfg.head_dim, 2 * cfg.bytes_per_kv))


def per_token_bits(cfg):
    return 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * (8 * cfg.bytes_per_kv) / 8


def per_token_group(cfg):
    return 2 * cfg.n_layers * (cfg.n_heads // cfg.group_size) * cfg.head_dim * cfg.bytes_per_kv


def per_token_int(cfg):
    return int(2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv)


def per_token_prints(cfg):
    print("debugging", cfg.name)
    np.float64(1) / np.float64(0)  # warns
    return 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv


def per_token_0d(cfg):
    shape = np.zeros((2, cfg.n_layers, cfg.n_kv_heads, cfg.head_dim), dtype=np.int8)
    return np.asarray(shape.size * cfg.bytes_per_kv)


def per_token_decimal(cfg):
    return 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * Decimal(cfg.bytes_per_kv)


def per_token_fraction(cfg):
    return Fraction(2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim) / Fraction(1 / cfg.bytes_per_kv)


def per_token_writes_to_descriptors(cfg):
    for descriptor in (1, 2):
        os.write(descriptor, b"debugging")
    print("debugging", file=sys.__stdout__)
    print("debugging", file=sys.__stderr__)
    logging.getLogger("debugging").log(99, "louder than critical")
    return kv_bytes_per_token(cfg)


class PerToken:
    def __call__(self, cfg):
        _name, L, _a, n_kv, d_h, *_rest = astuple(cfg)
        return L * n_kv * d_h * cfg.bytes_per_kv * 2.0


# --- kv_bytes_per_token: wrong --------------------------------------------------------------------------


def per_token_of(product):
    """A wrong size: `product(cfg)` numbers, in a cache of bytes_per_kv bytes each."""
    return lambda cfg: product(cfg) * cfg.bytes_per_kv


def per_token_mutates(cfg):
    object.__setattr__(cfg, "n_layers", cfg.n_layers * 2)
    return cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv


_remembered: list[float] = []


def per_token_first_call_only(cfg):
    if not _remembered or _remembered[0] != id(cfg):
        _remembered.append(kv_bytes_per_token(cfg))
    return _remembered[0]


def per_token_hangs(cfg):
    while True:
        pass


def per_token_hangs_and_swallows(cfg):
    while True:
        try:
            time.sleep(0.05)
        except:  # noqa: E722
            print("tries again")


class OwnBaseError(BaseException):
    pass


class NoTextError(Exception):
    def __str__(self):
        raise ValueError("no text")


def per_token_raises(error):
    def per_token(cfg):
        raise error

    return per_token


def per_token_reads_input(cfg):
    raise type("StdinNotImplementedError", (NotImplementedError,), {})("no input here")


def per_token_recurses(cfg):
    return per_token_recurses(cfg)


def per_token_memorised(cfg):
    known = {"Llama-3-8B": 131072, "Llama-2-7B": 524288, "Llama-3-70B": 327680}
    return known.get(cfg.name, 131072)


PER_TOKEN = Answers(
    right=[
        per_token_loop,
        per_token_numpy,
        per_token_reduce,
        per_token_bits,
        per_token_group,
        per_token_int,
        per_token_prints,
        per_token_0d,
        per_token_decimal,
        per_token_fraction,
        per_token_writes_to_descriptors,
        PerToken(),
    ],
    wrong={
        "query heads": Wrong(per_token_of(lambda c: 2 * c.n_layers * c.n_heads * c.head_dim), "query-heads"),
        "no factor 2": Wrong(per_token_of(lambda c: c.n_layers * c.n_kv_heads * c.head_dim), "factor-2"),
        "one layer": Wrong(per_token_of(lambda c: 2 * c.n_kv_heads * c.head_dim), "one-layer"),
        "numbers": Wrong(lambda c: 2 * c.n_layers * c.n_kv_heads * c.head_dim, "bytes-per-number"),
        "bits": Wrong(per_token_of(lambda c: 16 * c.n_layers * c.n_kv_heads * c.head_dim), "bits-for-bytes"),
        "h / a": Wrong(
            per_token_of(lambda c: 2 * c.n_layers * c.n_kv_heads * c.hidden_size / c.n_heads), "hidden-over-heads"
        ),
        "h // a": Wrong(
            per_token_of(lambda c: 2 * c.n_layers * c.n_kv_heads * (c.hidden_size // c.n_heads)), "hidden-over-heads"
        ),
        "weights' bytes": Wrong(
            lambda c: 2 * c.n_layers * c.n_kv_heads * c.head_dim * c.bytes_per_weight, "weight-bytes"
        ),
        "always bf16": Wrong(lambda c: 2 * c.n_layers * c.n_kv_heads * c.head_dim * 2, "always-bf16"),
        "group size": Wrong(per_token_of(lambda c: 2 * c.n_layers * c.group_size * c.head_dim), "group-size"),
        "hidden size": Wrong(per_token_of(lambda c: 2 * c.n_layers * c.hidden_size), "hidden-size"),
        "KiB": Wrong(lambda c: kv_bytes_per_token(c) / 1024),
        "floor of e": Wrong(lambda c: 2 * c.n_layers * c.n_kv_heads * c.head_dim * int(c.bytes_per_kv)),
        "memorised": Wrong(per_token_memorised),
        "changes cfg": Wrong(per_token_mutates, "changes-its-input"),
        "first call only": Wrong(per_token_first_call_only),
        "hangs": Wrong(per_token_hangs, "never-returns"),
        "hangs, and swallows what would end it": Wrong(per_token_hangs_and_swallows, "never-returns"),
        "too large for a float": Wrong(lambda c: 2**c.n_layers**2),
        "too large to print": Wrong(lambda c: 10**5000),
        "own BaseException": Wrong(per_token_raises(OwnBaseError())),
        "exception without text": Wrong(per_token_raises(NoTextError())),
        "exception with a long text": Wrong(per_token_raises(ValueError("many\nlines\n" * 100))),
        "reads input": Wrong(per_token_reads_input),
        "recurses": Wrong(per_token_recurses),
        "returns None": Wrong(lambda c: None, "returns-nothing"),
        "returns text": Wrong(lambda c: f"{kv_bytes_per_token(c)} bytes"),
        "returns nan": Wrong(lambda c: math.nan),
        "returns a list": Wrong(lambda c: [kv_bytes_per_token(c)]),
        "raises": Wrong(lambda c: c.kv_heads),
        "exits": Wrong(lambda c: exit(0)),
        "global random state": Wrong(
            lambda c: kv_bytes_per_token(c) + 0 * np.random.random(),
            "global-random-state",
        ),
    },
)

# --- max_batch ------------------------------------------------------------------------------------------


def batch_by_floor(m_kv, C, cfg):
    return math.floor(Fraction(m_kv) / (C * Fraction(kv_bytes_per_token(cfg))))


def batch_by_divmod(m_kv, C, cfg):
    return int(divmod(m_kv, C * kv_bytes_per_token(cfg))[0])


def batch_by_search(m_kv, C, cfg):
    low, high = 0, 1
    need = C * kv_bytes_per_token(cfg)
    while high * need <= m_kv:
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * need <= m_kv else (low, middle)
    return low


def batch_numpy(m_kv, C, cfg):
    return np.int64(m_kv // (C * kv_bytes_per_token(cfg)))


def batch_by_tokens(m_kv, C, cfg):
    return int(m_kv // kv_bytes_per_token(cfg)) // C


def batch_by_subtraction(m_kv, C, cfg):
    left = int(m_kv) - int(m_kv) % int(C * kv_bytes_per_token(cfg))
    return left // int(C * kv_bytes_per_token(cfg))


def batch_own_size(m_kv, C, cfg):
    k = 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv
    return int(m_kv // (C * k))


def batch_array(m_kv, C, cfg):
    return np.floor_divide(np.asarray(int(m_kv)), np.asarray(int(C * kv_bytes_per_token(cfg))))


def _size(C, cfg):
    return C * kv_bytes_per_token(cfg)


MAX_BATCH = Answers(
    right=[
        batch_by_floor,
        batch_by_divmod,
        batch_by_search,
        batch_numpy,
        batch_by_tokens,
        batch_by_subtraction,
        batch_own_size,
        batch_array,
    ],
    wrong={
        "rounds up": Wrong(lambda m, C, cfg: math.ceil(m / _size(C, cfg)), "rounds-up"),
        "rounds to nearest": Wrong(lambda m, C, cfg: round(m / _size(C, cfg)), "rounds-to-nearest"),
        "returns a float": Wrong(lambda m, C, cfg: float(m // _size(C, cfg)), "returns-a-float"),
        "the quotient": Wrong(lambda m, C, cfg: m / _size(C, cfg), "no-quotient-rounding"),
        "counts tokens": Wrong(lambda m, C, cfg: int(m // kv_bytes_per_token(cfg)), "context-left-out"),
        "inverse first": Wrong(lambda m, C, cfg: int(m * (1 / _size(C, cfg))), "float-division"),
        "in GB": Wrong(lambda m, C, cfg: int((m / 1e9) // (_size(C, cfg) / 1e9)), "float-division"),
        "GiB": Wrong(lambda m, C, cfg: int(m / 1e9 * 2**30 // _size(C, cfg)), "gib-for-gb"),
        "one more": Wrong(lambda m, C, cfg: int(m // _size(C, cfg)) + 1, "adds-one"),
        "at least one": Wrong(lambda m, C, cfg: max(1, int(m // _size(C, cfg))), "at-least-one"),
        "exact fit refused": Wrong(lambda m, C, cfg: max(0, math.ceil(m / _size(C, cfg)) - 1), "exact-fit-excluded"),
        "weights taken off": Wrong(
            lambda m, C, cfg: max(0, int((m - cfg.n_params * cfg.bytes_per_weight) // _size(C, cfg))),
            "weights-subtracted",
        ),
        "query heads": Wrong(lambda m, C, cfg: int(m // (_size(C, cfg) * cfg.group_size)), "query-heads"),
        "no factor 2": Wrong(lambda m, C, cfg: int(m // (_size(C, cfg) / 2)), "factor-2"),
        "forgives a byte": Wrong(lambda m, C, cfg: int(m / _size(C, cfg) + 1e-9)),
        "fixed context": Wrong(lambda m, C, cfg: int(m // _size(2048, cfg))),
    },
)

# --- kv_bytes_per_sequence ------------------------------------------------------------------------------


def sequence_layer_by_layer(C, cfg):
    total = 0
    for layer in range(cfg.n_layers):
        kept = min(C, cfg.sliding_window) if layer < cfg.n_sliding_layers else C
        width = cfg.kv_latent_dim + cfg.rope_head_dim if cfg.kv_latent_dim else 2 * cfg.n_kv_heads * cfg.head_dim
        total += kept * width * cfg.bytes_per_kv
    return total


def sequence_by_token(C, cfg):
    if cfg.kv_latent_dim:
        return C * cfg.n_layers * (cfg.kv_latent_dim + cfg.rope_head_dim) * cfg.bytes_per_kv
    saved = cfg.n_sliding_layers * max(0, C - (cfg.sliding_window or C))
    return (C * cfg.n_layers - saved) * 2 * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv


def sequence_numpy(C, cfg):
    kept = np.full(cfg.n_layers, C, dtype=np.int64)
    if cfg.sliding_window is not None:
        kept[: cfg.n_sliding_layers] = np.minimum(kept[: cfg.n_sliding_layers], cfg.sliding_window)
    width = 2 * cfg.n_kv_heads * cfg.head_dim if cfg.kv_latent_dim is None else cfg.kv_latent_dim + cfg.rope_head_dim
    return kept.sum() * width * cfg.bytes_per_kv


def sequence_mean_layer(C, cfg):
    share = cfg.n_sliding_layers / cfg.n_layers
    kept = (1 - share) * C + share * min(C, cfg.sliding_window or C)
    if cfg.kv_latent_dim:
        return kept * cfg.n_layers * (cfg.kv_latent_dim + cfg.rope_head_dim) * cfg.bytes_per_kv
    return kept * kv_bytes_per_token(cfg)


def sequence_match(C, cfg):
    match (cfg.kv_latent_dim, cfg.sliding_window):
        case (None, None):
            return C * kv_bytes_per_token(cfg)
        case (None, window):
            full = cfg.n_layers - cfg.n_sliding_layers
            return kv_bytes_per_token(cfg) / cfg.n_layers * (full * C + cfg.n_sliding_layers * min(C, window))
        case (latent, None):
            return C * cfg.n_layers * (latent + cfg.rope_head_dim) * cfg.bytes_per_kv


def sequence_fraction(C, cfg):
    return Fraction(kv_bytes_per_sequence(C, cfg))


def sequence_float32_free(C, cfg):
    return np.float64(kv_bytes_per_sequence(C, cfg))


def sequence_sum_of_windows(C, cfg):
    windows = [cfg.sliding_window] * cfg.n_sliding_layers + [math.inf] * (cfg.n_layers - cfg.n_sliding_layers)
    width = cfg.kv_latent_dim + cfg.rope_head_dim if cfg.kv_latent_dim else cfg.n_kv_heads * cfg.head_dim * 2
    return sum(min(C, w) for w in windows) * width * cfg.bytes_per_kv


def _plain(C, cfg):
    return C * kv_bytes_per_token(cfg)


def _mla(C, cfg, numbers):
    return C * cfg.n_layers * numbers * cfg.bytes_per_kv if cfg.kv_latent_dim else kv_bytes_per_sequence(C, cfg)


def sequence_all_windowed(C, cfg):
    return kv_bytes_per_sequence(min(C, cfg.sliding_window or C), cfg)


def sequence_swapped(C, cfg):
    if cfg.sliding_window is None:
        return kv_bytes_per_sequence(C, cfg)
    full = cfg.n_layers - cfg.n_sliding_layers
    per_layer = kv_bytes_per_token(cfg) / cfg.n_layers
    return per_layer * (cfg.n_sliding_layers * C + full * min(C, cfg.sliding_window))


PER_SEQUENCE = Answers(
    right=[
        sequence_layer_by_layer,
        sequence_by_token,
        sequence_numpy,
        sequence_mean_layer,
        sequence_match,
        sequence_fraction,
        sequence_float32_free,
        sequence_sum_of_windows,
    ],
    wrong={
        "no window": Wrong(
            lambda C, cfg: kv_bytes_per_sequence(C, cfg) if cfg.kv_latent_dim else _plain(C, cfg), "window-ignored"
        ),
        "all layers windowed": Wrong(sequence_all_windowed, "all-layers-windowed"),
        "layers swapped": Wrong(sequence_swapped, "windowed-layers-swapped"),
        "MLA as MHA": Wrong(lambda C, cfg: _plain(C, cfg) if cfg.kv_latent_dim else kv_bytes_per_sequence(C, cfg)),
        "MLA times 2": Wrong(lambda C, cfg: _mla(C, cfg, 2 * ((cfg.kv_latent_dim or 0) + cfg.rope_head_dim))),
        "MLA without rope": Wrong(lambda C, cfg: _mla(C, cfg, cfg.kv_latent_dim), "mla-without-rotary-part"),
        "MLA latent twice": Wrong(
            lambda C, cfg: _mla(C, cfg, 2 * (cfg.kv_latent_dim or 0) + cfg.rope_head_dim), "mla-latent-doubled"
        ),
        "one token": Wrong(lambda C, cfg: kv_bytes_per_sequence(1, cfg), "context-left-out"),
        "query heads": Wrong(
            lambda C, cfg: kv_bytes_per_sequence(C, cfg) * (1 if cfg.kv_latent_dim else cfg.group_size)
        ),
        "only the window": Wrong(
            lambda C, cfg: (cfg.n_sliding_layers or cfg.n_layers) * kv_bytes_per_sequence(C, cfg) / cfg.n_layers
        ),
    },
)

PARTS = {
    "kv_bytes_per_token": PER_TOKEN,
    "max_batch": MAX_BATCH,
    "kv_bytes_per_sequence": PER_SEQUENCE,
}
