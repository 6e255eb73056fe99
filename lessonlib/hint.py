"""Hints, one at a time: each call of `hint.kv_bytes_per_token()` shows the next one."""

from __future__ import annotations

from collections.abc import Callable

# Part -> its hints, from a nudge to the last step before the answer.
HINTS: dict[str, tuple[str, ...]] = {
    "kv_bytes_per_token": (
        "What does attention need from an earlier token? Its key and its value, in every layer.",
        "One key of one layer is n_kv_heads · head_dim numbers wide. Count the keys and values over all layers.",
        "Multiply by bytes_per_kv at the end: numbers become bytes.",
    ),
    "max_batch": (
        "How many bytes does one sequence of C tokens hold? You have the size of one token already.",
        "How many such sequences fit, if the last one must fit whole?",
        "m_kv may be a float, and the result must be an int: int(m_kv // …) does both.",
    ),
    "kv_bytes_per_sequence": (
        "Two questions, one at a time: how many numbers does a token leave in one layer, and how many tokens does each "
        "layer keep?",
        "Numbers: 2 · n_kv_heads · head_dim, or with MLA kv_latent_dim + rope_head_dim. MLA has no factor 2.",
        "Tokens: n_sliding_layers layers keep min(C, sliding_window), the other layers keep C.",
    ),
    "decode_step": (
        "Two sums: what does the step read, and what does it compute? Ask of each term whether it grows with B.",
        "Read: the weights once, and the cache of every sequence. Compute: 2 FLOPs per weight and sequence, and "
        "attention, 4 · C · d_h FLOPs per sequence, layer and query head.",
        "Divide the bytes by gpu.bandwidth and the FLOPs by gpu.peak_flops. The step takes the longer of the two, and "
        "every sequence gains one token in it.",
    ),
    "largest_batch": (
        "Two limits. Memory gives a largest batch at once: you have max_batch. Does a larger batch make a step longer "
        "or shorter?",
        "Longer, never shorter. So find the last B whose t_step is at most tpot, among those that fit.",
        "Start from what fits and go down until decode_step(B, C, cfg, gpu).t_step <= tpot; or halve the range each "
        "time. Return 0 where no B is left.",
    ),
    "block_allocator": (
        "Keep four things in step: the tables, the lengths, a count per block, and which blocks are free. Write two "
        "small helpers first: one takes a free block (count 1), one drops a holder (count - 1, and free again at 0).",
        "append has three cases, from the length and the last block's count: the block is full; it has room and is "
        "shared; it has room and is private. Only the first two need a block.",
        "Before anything is changed, check the id and count the blocks that the call needs. Then a failure has "
        "nothing to undo. And fork needs list(parent's table), not the table itself.",
    ),
    "prefix_caching": (
        "Give every full block of a prompt a key that stands for its tokens and for all tokens before it: "
        "key = hash((key of the block before, its tokens)). Keep key -> block.",
        "A new prompt walks its keys from the front and stops at the first that is not found. Leave out the block of "
        "the last token. Take the blocks that were found out of the free ones before you take new ones.",
        "Forget a block's key when the block is taken for something new, not when it is freed. Free a table from its "
        "end, and take the block that has been free for longest.",
    ),
    "speculative_round": (
        "Walk through the drafts from the front. For each: draw it from q[i], draw a uniform number, and keep the "
        "token or end the round.",
        "Draft x is kept with probability min(1, p[i][x] / q[i][x]). Where it is rejected, the round ends with a token "
        "of the residual, np.maximum(p[i] - q[i], 0) over its sum.",
        "Keep where rng.random() * q[i][x] < p[i][x]: no division, so zeros are safe. If the loop ends without a "
        "rejection, add rng.choice(V, p=p[gamma]). Guard the residual's sum against 0.",
    ),
    "expected_tokens": (
        "When is there a second token? When the first draft was accepted. And a third?",
        "Token j + 1 is emitted with probability α^j. The mean of a count is the sum of these probabilities.",
        "Sum alpha**j for j from 0 to gamma, both included. The closed form of the sum needs a case of its own for "
        "α = 1.",
    ),
    "speedup": (
        "Tokens per round over time per round, with a target step as the unit of time.",
        "A round has γ draft steps, one after the other, and one target pass.",
        "A draft step takes c target steps, so a round takes 1 + gamma * c. What does γ = 0 give? It must be 1.",
    ),
    "expected_speed": (
        "You have written all of it in lesson 2: which function gives time, speed and bound of a decode step?",
        "decode_step(B, C, cfg, machine): a machine is a Gpu whose numbers were measured.",
        "Return its tokens_per_s and its bound.",
    ),
    "simulate": (
        "Walk through time: one turn of a loop is one step. A turn fills slots, writes down who is in them, and lets "
        "go of those that are done. The two policies differ only in when slots may be filled.",
        "Continuous: fill every free slot. Static: fill slots only if all of them are free. In both, from the front of "
        "one queue, sorted by arrival (sorted keeps the list order of ties), as long as its head has arrived.",
        "Go on while anything runs or waits, also through steps in which nothing can run yet. A request that has "
        "steps_left 0 after step t has latency t + 1 - arrival, and its slot is free in step t + 1.",
    ),
    "slot_mapping": (
        "The token at position p is in logical block p // block_size. Which physical block is that?",
        "block_table[p // block_size] is the block. Inside it, the token stands at p % block_size.",
        "A slot counts tokens through the pool: block · block_size + p % block_size.",
    ),
    "write_kv": (
        "Seen as one long row of slots, the pool has shape (n_blocks · block_size, n_kv_heads, head_dim).",
        "cache.view(-1, *cache.shape[2:]) is that row, and shares its memory with the pool.",
        "Assign to row[slots] at once: row[slots] = k.",
    ),
    "paged_attention": (
        "Start simple: one block at a time, only its first min(block_size, tokens left) slots.",
        "Keep three running things per head: the highest score, the sum of exp(score − highest), and the values mixed "
        "by these weights.",
        "When a block raises the highest score from m to m', first multiply the sum and the mix by exp(m − m').",
    ),
    "admit": (
        "A request needs blocks for its prompt and for one token more. How many blocks is that, rounded up?",
        "Go through the queue in order. The first one that must wait makes everyone behind it wait as well, except "
        "those that can never run.",
        "Each admitted request lowers n_free and token_budget for the next. Its chunk is min(prompt, budget).",
    ),
    "verify": (
        "Compare with your speculative_round: only the drafting has been done by someone else.",
        "Accept draft i when u · q[i, x] < p[i, x]. At the first refusal draw from max(0, p[i] − q[i]), normalised.",
        "The second result counts the accepted drafts: their keys are right. The last token was not in the pass yet.",
    ),
}

_shown: dict[str, int] = {}


def _next_hint(part: str) -> None:
    hints = HINTS[part]
    number = min(_shown.get(part, 0) + 1, len(hints))
    _shown[part] = number
    more = "Call again for the next one." if number < len(hints) else "That was the last hint."
    print(f"Hint {number} of {len(hints)}: {hints[number - 1]}\n{more}")


def __getattr__(part: str) -> Callable[[], None]:
    if part not in HINTS:
        raise AttributeError(f"there is no hint for {part!r}; there are hints for {', '.join(HINTS)}")
    return lambda: _next_hint(part)


def __dir__() -> list[str]:
    return sorted(HINTS)
