"""Answers to the capstone's parts, right and wrong."""

from __future__ import annotations

import numpy as np
import torch

from lessonlib.check.capstone import ADMIT_MISTAKES, ATTENTION_MISTAKES, SLOT_MISTAKES, SPEED_MISTAKES
from lessonlib.records import Admission
from lessonlib.reference import decode_step
from lessonlib.reference.capstone import admit, expected_speed, paged_attention, slot_mapping, verify, write_kv
from tests.answers import Answers, Wrong

# --- expected_speed -------------------------------------------------------------------------------------


def speed_by_hand(B, C, cfg, machine):
    k = 2 * cfg.n_layers * cfg.n_kv_heads * cfg.head_dim * cfg.bytes_per_kv
    read = (cfg.n_params * cfg.bytes_per_weight + B * C * k) / machine.bandwidth
    work = (2 * cfg.n_params * B + 4 * B * C * cfg.n_layers * cfg.n_heads * cfg.head_dim) / machine.peak_flops
    return B / max(read, work), "memory" if read >= work else "compute"


def speed_as_list(B, C, cfg, machine):
    return [np.float64(expected_speed(B, C, cfg, machine)[0]), expected_speed(B, C, cfg, machine)[1]]


def speed_by_intensity(B, C, cfg, machine):
    step = decode_step(B, C, cfg, machine)
    if step.flops / step.n_bytes > machine.ridge_point:
        return B * machine.peak_flops / step.flops, "compute"
    return B * machine.bandwidth / step.n_bytes, "memory"


SPEED = Answers(
    right=[speed_by_hand, speed_as_list, speed_by_intensity],
    wrong={m.slug: Wrong(m.wrong, m.slug) for m in SPEED_MISTAKES}
    | {
        "speed alone": Wrong(lambda *a: expected_speed(*a)[0]),
        "bound in capitals": Wrong(lambda *a: (expected_speed(*a)[0], "Memory")),
    },
    least_right=3,
)

# --- slot_mapping ---------------------------------------------------------------------------------------


def slots_by_loop(block_table, start, n_tokens, block_size):
    slots = []
    for i in range(n_tokens):
        block, offset = divmod(start + i, block_size)
        slots.append(block_size * block_table[block] + offset)
    return slots


def slots_by_torch(block_table, start, n_tokens, block_size):
    positions = torch.arange(start, start + n_tokens)
    return torch.tensor(block_table)[positions // block_size] * block_size + positions % block_size


def slots_by_numpy(block_table, start, n_tokens, block_size):
    everything = np.arange(block_size) + block_size * np.array(block_table)[:, None]
    return everything.ravel()[start : start + n_tokens]


def slots_by_list(block_table, start, n_tokens, block_size):
    every = [block * block_size + offset for block in block_table for offset in range(block_size)]
    return tuple(every[start : start + n_tokens])


SLOTS = Answers(
    right=[slots_by_loop, slots_by_torch, slots_by_numpy, slots_by_list, lambda *a: iter(slot_mapping(*a))],
    wrong={m.slug: Wrong(m.wrong, m.slug) for m in SLOT_MISTAKES}
    | {
        "floats": Wrong(lambda *a: [float(slot) for slot in slot_mapping(*a)]),
        "texts": Wrong(lambda *a: list(map(str, slot_mapping(*a)))),
        "infinite": Wrong(lambda *a: [float("inf")]),
        "raises while it is read": Wrong(lambda *a: (slot // 0 for slot in slot_mapping(*a))),
        "one slot": Wrong(lambda t, s, n, b: slot_mapping(t, s, n, b)[0]),
        "one too few": Wrong(lambda t, s, n, b: slot_mapping(t, s, n, b)[:-1]),
        "None": Wrong(lambda t, s, n, b: None),
    },
    least_right=4,
)

# --- write_kv -------------------------------------------------------------------------------------------


def write_by_loop(k_cache, v_cache, slots, k, v):
    for i, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, k_cache.shape[1])
        k_cache[block, offset] = k[i]
        v_cache[block, offset] = v[i]


def write_by_index_copy(k_cache, v_cache, slots, k, v):
    where = torch.as_tensor(slots)
    k_cache.flatten(0, 1).index_copy_(0, where, k)
    v_cache.flatten(0, 1).index_copy_(0, where, v)


def write_by_two_indices(k_cache, v_cache, slots, k, v):
    where = torch.as_tensor(slots)
    size = k_cache.size(1)
    k_cache[where // size, where % size] = k
    v_cache[where // size, where % size] = v
    return k_cache


def write_a_copy(k_cache, v_cache, slots, k, v):
    k_cache = k_cache.clone()
    write_kv(k_cache, v_cache.clone(), slots, k, v)


def write_whole_blocks(k_cache, v_cache, slots, k, v):
    for i, slot in enumerate(slots.tolist()):
        k_cache[slot // k_cache.shape[1]] = k[i]
        v_cache[slot // k_cache.shape[1]] = v[i]


def write_in_order(k_cache, v_cache, slots, k, v):
    write_kv(k_cache, v_cache, slots.sort().values, k, v)


WRITES = Answers(
    right=[write_by_loop, write_by_index_copy, write_by_two_indices],
    wrong={
        "into a copy": Wrong(write_a_copy, "writes-into-a-copy"),
        "swapped": Wrong(lambda kc, vc, s, k, v: write_kv(kc, vc, s, v, k), "keys-and-values-swapped"),
        "keys only": Wrong(lambda kc, vc, s, k, v: write_kv(kc, vc.clone(), s, k, v), "one-cache-only"),
        "whole blocks": Wrong(write_whole_blocks, "whole-block-written"),
        "sorted slots": Wrong(write_in_order, "tokens-in-wrong-order"),
        "writes, then clears k": Wrong(
            lambda kc, vc, s, k, v: (write_kv(kc, vc, s, k, v), k.zero_()), "changes-its-input"
        ),
        "slots as blocks": Wrong(lambda kc, vc, s, k, v: kc.__setitem__(s, k)),
    },
    least_right=3,
)

# --- paged_attention ------------------------------------------------------------------------------------


def attention_by_sdpa(q, k_cache, v_cache, block_table, length):
    group = q.shape[0] // k_cache.shape[2]
    k, v = (c[block_table].flatten(0, 1)[:length].repeat_interleave(group, 1) for c in (k_cache, v_cache))
    return torch.nn.functional.scaled_dot_product_attention(q[:, None], k.transpose(0, 1), v.transpose(0, 1))[:, 0]


def attention_token_by_token(q, k_cache, v_cache, block_table, length):
    size, n_kv = k_cache.shape[1:3]
    out = torch.zeros_like(q)
    for head in range(q.shape[0]):
        kv = head // (q.shape[0] // n_kv)
        keys = torch.stack([k_cache[block_table[t // size], t % size, kv] for t in range(length)])
        values = torch.stack([v_cache[block_table[t // size], t % size, kv] for t in range(length)])
        out[head] = torch.softmax(keys @ q[head] / q.shape[1] ** 0.5, 0) @ values
    return out


def attention_log_sum_exp(q, k_cache, v_cache, block_table, length):
    """Partial results per block, merged at the end by their log-sum-exp, as split-KV decoding does."""
    n_heads, d_h = q.shape
    size, n_kv = k_cache.shape[1:3]
    outs, sums = [], []
    for first in range(0, length, size):
        block = block_table[first // size]
        n = min(size, length - first)
        k = k_cache[block, :n].repeat_interleave(n_heads // n_kv, 1)
        v = v_cache[block, :n].repeat_interleave(n_heads // n_kv, 1)
        scores = (k * q).sum(-1) / d_h**0.5
        sums.append(torch.logsumexp(scores, 0))
        outs.append((torch.softmax(scores, 0)[..., None] * v).sum(0))
    shares = torch.softmax(torch.stack(sums), 0)
    return (shares[..., None] * torch.stack(outs)).sum(0)


def attention_by_mask(q, k_cache, v_cache, block_table, length):
    used = torch.tensor(block_table)
    k, v = k_cache[used].flatten(0, 1), v_cache[used].flatten(0, 1)
    group = q.shape[0] // k.shape[1]
    scores = torch.einsum("hgd,nhd->hgn", q.unflatten(0, (-1, group)), k) * q.shape[1] ** -0.5
    scores[..., torch.arange(len(k)) >= length] = -torch.inf
    return torch.einsum("hgn,nhd->hgd", scores.softmax(-1), v).flatten(0, 1)


def attention_overflows(q, k_cache, v_cache, block_table, length):
    n_heads, d_h = q.shape
    size, n_kv = k_cache.shape[1:3]
    total, mixed = torch.zeros(n_heads), torch.zeros_like(q)
    for first in range(0, length, size):
        n = min(size, length - first)
        k, v = (c[block_table[first // size], :n].repeat_interleave(n_heads // n_kv, 1) for c in (k_cache, v_cache))
        weights = torch.exp((k * q).sum(-1) / d_h**0.5)
        total, mixed = total + weights.sum(0), mixed + (weights[..., None] * v).sum(0)
    return mixed / total[:, None]


def attention_changes_the_cache(q, k_cache, v_cache, block_table, length):
    k_cache *= 2
    return paged_attention(q / 2, k_cache, v_cache, block_table, length)


ATTENTION = Answers(
    right=[attention_by_sdpa, attention_token_by_token, attention_log_sum_exp, attention_by_mask],
    wrong={m.slug: Wrong(m.wrong, m.slug) for m in ATTENTION_MISTAKES}
    | {
        "no running maximum": Wrong(attention_overflows, "overflows"),
        "changes the cache": Wrong(attention_changes_the_cache, "changes-its-input"),
        "complex": Wrong(lambda *a: paged_attention(*a).to(torch.complex64)),
        "sparse": Wrong(lambda *a: paged_attention(*a).to_sparse()),
        "flat": Wrong(lambda *a: paged_attention(*a).flatten()),
        "a list": Wrong(lambda *a: paged_attention(*a).tolist()),
        "zeros": Wrong(lambda q, *a: torch.zeros_like(q)),
    },
    least_right=4,
)

# --- admit ----------------------------------------------------------------------------------------------


def admit_as_tuples(waiting, n_free, n_blocks, block_size, token_budget):
    return [(a.answer, a.n_tokens) for a in admit(waiting, n_free, n_blocks, block_size, token_budget)]


def admit_by_deque(waiting, n_free, n_blocks, block_size, token_budget):
    from math import ceil

    queue, out, open_ = list(waiting), [], True
    while queue:
        n = queue.pop(0)
        blocks = ceil((n + 1) / block_size)
        if blocks > n_blocks:
            out.append(Admission("never", 0))
            continue
        open_ = open_ and blocks <= n_free and token_budget > 0
        if open_:
            run = min(n, token_budget)
            n_free, token_budget = n_free - blocks, token_budget - run
        out.append(Admission("now", run) if open_ else Admission("later", 0))
    return out


def admit_recursively(waiting, n_free, n_blocks, block_size, token_budget):
    if not waiting:
        return []
    n, *rest = waiting
    need = n // block_size + 1
    if need > n_blocks:
        return [Admission("never", 0), *admit_recursively(rest, n_free, n_blocks, block_size, token_budget)]
    if need <= n_free and token_budget > 0:
        run = min(n, token_budget)
        return [
            Admission("now", run),
            *admit_recursively(rest, n_free - need, n_blocks, block_size, token_budget - run),
        ]
    return [Admission("later", 0), *admit_recursively(rest, 0, n_blocks, block_size, 0)]


ADMISSIONS = Answers(
    right=[admit_as_tuples, admit_by_deque, admit_recursively],
    wrong={m.slug: Wrong(m.wrong, m.slug) for m in ADMIT_MISTAKES}
    | {
        "no numbers": Wrong(lambda *a: [(x.answer, None) for x in admit(*a)]),
        "parts of tokens": Wrong(lambda *a: [(x.answer, x.n_tokens + 0.5) for x in admit(*a)]),
        "names only": Wrong(lambda *a: [x.answer for x in admit(*a)]),
        "admitted only": Wrong(lambda *a: [x for x in admit(*a) if x.answer == "now"]),
        "empty": Wrong(lambda *a: []),
        "eats the queue": Wrong(lambda waiting, *a: (admit(waiting, *a), waiting.clear())[0], "changes-its-input"),
    },
    least_right=3,
)

# --- verify ---------------------------------------------------------------------------------------------


def verify_by_uniforms_first(draft, p, q, rng):
    """Other order of draws: all acceptance numbers first, the last token by inverting its distribution function."""
    u = rng.random(len(draft) + 1)
    n = 0
    while n < len(draft) and u[n] * q[n, draft[n]] < p[n, draft[n]]:
        n += 1
    law = p[n] if n == len(draft) else np.clip(p[n] - q[n], 0, None)
    law = p[n] if law.sum() == 0 else law
    last = int(np.searchsorted(np.cumsum(law / law.sum()), u[-1], side="right"))
    return [*draft[:n], min(last, len(law) - 1)], n


def verify_with_for_else(draft, p, q, rng):
    out = []
    for x, p_row, q_row in zip(draft, p, q, strict=False):
        if rng.uniform() < min(1.0, p_row[x] / q_row[x]):
            out.append(x)
        else:
            rest = np.where(p_row > q_row, p_row - q_row, 0.0)
            out.append(rng.choice(rest.size, p=rest / rest.sum()))
            return out, len(out) - 1
    out.append(rng.choice(p.shape[1], p=p[-1]))
    return out, len(out) - 1


def verify_gumbel(draft, p, q, rng):
    n = 0
    for i, x in enumerate(draft):
        if rng.random() >= p[i, x] / q[i, x]:
            break
        n += 1
    law = np.maximum(p[n] - q[n], 0) if n < len(draft) else p[n]
    with np.errstate(divide="ignore"):
        last = int(np.argmax(np.log(law) + rng.gumbel(size=len(law))))
    return (*draft[:n], last), n


def verify_variant(accept=None, correct=None, bonus=None, keep=None):
    """A verify step with one of its four decisions replaced."""

    def answer(draft, p, q, rng):
        def draw(law):
            return int(rng.choice(len(law), p=law / law.sum()))

        n = 0
        for i, x in enumerate(draft):
            if rng.random() >= (accept or (lambda p, q: p / q if q else 1))(p[i, x], q[i, x]):
                break
            n += 1
        if n < len(draft):
            residual = np.maximum(p[n] - q[n], 0)
            last = draw((correct or (lambda p, q: residual if residual.sum() else p))(p[n], q[n]))
        else:
            last = draw((bonus or (lambda p, q: p[-1]))(p, q))
        return [*draft[:n], last], (keep or (lambda n, gamma: n))(n, len(draft))

    return answer


def _shifted(weights):
    """Two hundredths of the likeliest token's share go to the next token."""
    law = weights / weights.sum() if weights.sum() else np.full(len(weights), 1 / len(weights))
    top = int(law.argmax())
    law[top] -= 0.02
    law[top - 1] += 0.02
    return law


def verify_changes_p(draft, p, q, rng):
    tokens, kept = verify(draft, p, q, rng)
    if kept < len(draft):
        p[kept] = np.maximum(p[kept] - q[kept], 0)
        p[kept] /= p[kept].sum()
    return tokens, kept


VERIFY = Answers(
    right=[verify_by_uniforms_first, verify_with_for_else, verify_gumbel],
    wrong={
        "inverted": Wrong(verify_variant(accept=lambda p, q: q / p if p else 1), "ratio-inverted"),
        "only if larger": Wrong(verify_variant(accept=lambda p, q: float(p >= q)), "accepts-only-if-larger"),
        "always": Wrong(verify_variant(accept=lambda p, q: 1.0), "accepts-always"),
        "with p": Wrong(verify_variant(accept=lambda p, q: p), "accepts-with-p"),
        "resample p": Wrong(verify_variant(correct=lambda p, q: p), "resamples-from-p"),
        "resample q": Wrong(verify_variant(correct=lambda p, q: q), "resamples-from-q"),
        "bonus from q": Wrong(verify_variant(bonus=lambda p, q: q[-1] if len(q) else p[-1]), "bonus-from-draft"),
        "argmax bonus": Wrong(verify_variant(bonus=lambda p, q: np.eye(p.shape[1])[p[-1].argmax()]), "argmax-bonus"),
        "no roll-back": Wrong(verify_variant(keep=lambda n, gamma: gamma), "cache-not-rolled-back"),
        "counts the extra": Wrong(verify_variant(keep=lambda n, gamma: n + 1)),
        "no extra token": Wrong(lambda d, p, q, rng: (list(d), len(d)), None),
        "accepts 2% too rarely": Wrong(verify_variant(accept=lambda p, q: 0.978 * p / q)),
        "2% more of the first at a rejection": Wrong(
            verify_variant(correct=lambda p, q: _shifted(np.maximum(p - q, 0)))
        ),
        "bonus 2% off": Wrong(verify_variant(bonus=lambda p, q: _shifted(p[-1]))),
        "changes p at a rejection": Wrong(verify_changes_p, "changes-its-input"),
        "Nones": Wrong(lambda *a: ([None], None)),
        "tokens only": Wrong(lambda *a: verify(*a)[0]),
        "own generator": Wrong(lambda d, p, q, rng: verify(d, p, q, np.random.default_rng()), "own-random-state"),
        "global state": Wrong(
            lambda d, p, q, rng: verify(d, p, q, np.random.default_rng(np.random.randint(9))), "global-random-state"
        ),
    },
    least_right=3,
)

PARTS = {
    "expected_speed": SPEED,
    "slot_mapping": SLOTS,
    "write_kv": WRITES,
    "paged_attention": ATTENTION,
    "admit": ADMISSIONS,
    "verify": VERIFY,
}
