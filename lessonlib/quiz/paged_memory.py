"""Quick checks of lesson 3. The keys are computed from the reference answers."""

from __future__ import annotations

from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.quiz.question import Choice, Question
from lessonlib.reference import BlockAllocator, PrefixCachingAllocator
from lessonlib.roofline import prefill_seconds, transfer_seconds


def what_is_wasted() -> Question:
    """Which waste paging leaves."""
    pool = BlockAllocator(16, 16)
    pool.allocate("A", 33)
    n_slots = 16 * len(pool.block_tables["A"])
    return Question(
        "A sequence of 33 tokens lives in blocks of 16. How many slots are wasted, and where?",
        [
            Choice("None", "Blocks are whole: the last one is started and not filled."),
            Choice(
                f"{n_slots - 33}, in the last block",
                f"ceil(33 / 16) = {len(pool.block_tables['A'])} blocks have {n_slots} slots. Only the last block is "
                "not full, so less than one block is ever wasted per sequence.",
                right=True,
            ),
            Choice("Up to 15 in every block", "Blocks are filled one after the other: all but the last are full."),
            Choice("It depends on the gaps between its blocks", "Any free block will do, so gaps do not matter."),
        ],
    )


def writes_after_fork() -> Question:
    """Four samples of one prompt: copies and blocks after each has written one token."""
    pool = BlockAllocator(64, 16)
    pool.allocate("A", 50)
    for child in "BCD":
        pool.fork("A", child)
    shared = 64 - pool.n_free
    copies = sum(pool.append(seq_id) is not None for seq_id in "ABCD")
    after = 64 - pool.n_free
    return Question(
        f"Four samples share a prompt of 50 tokens in {shared} blocks of 16. Each writes one token. How many blocks "
        "are held then?",
        [
            Choice(str(shared), "The last block has room, but four sequences cannot write into one slot."),
            Choice(
                str(after),
                f"The first three writers copy the last block, {copies} copies. Then its count is 1, and the fourth "
                "writes in place.",
                right=True,
            ),
            Choice(str(after + 1), "The last of the four is alone with the block by then: it needs no copy."),
            Choice(str(4 * shared), "That is four private prompts: the full blocks stay shared."),
        ],
    )


def cached_tokens() -> Question:
    """How many tokens of a prompt that is cached whole are skipped."""
    pool = PrefixCachingAllocator(32, 16)
    prompt = list(range(64))
    pool.allocate("first", prompt)
    cached = pool.allocate("again", prompt)
    return Question(
        f"A prompt of {len(prompt)} tokens comes a second time, and all of its blocks of 16 are cached. For how many "
        "tokens is prefill skipped?",
        [
            Choice(
                str(len(prompt)),
                "Then nothing would be computed, and there would be no output to draw the next token from.",
            ),
            Choice(
                str(cached),
                "The last token must be computed, and it would be written into the last block. That block is made "
                "anew.",
                right=True,
            ),
            Choice(
                str(len(prompt) - 1),
                "Only whole blocks are mapped. The last token would be written into the last block, which others may "
                "hold: that block is made anew.",
            ),
            Choice("0", "Full blocks are found by their chained hash, also after their first owner has left."),
        ],
    )


def who_goes_first() -> Question:
    """Which request is preempted."""
    cfg, gpu = MODELS["Llama-3-8B"], GPUS["H100-SXM"]
    swap, again = transfer_seconds(1500, cfg, 50e9), prefill_seconds(1500, cfg, gpu)
    return Question(
        "No block is free, and every running request needs one more. Which one should give up its blocks, and how many "
        "of them?",
        [
            Choice(
                "The oldest, all of them",
                "It has the most progress to lose, and it came first. The newest would overtake it.",
            ),
            Choice(
                "The newest, all of them",
                "First come, first served. And all of them, since a step needs the whole cache. It comes back by "
                f"swapping ({swap * 1e3:.1f} ms for 1,500 tokens at 50 GB/s) or by prefill ({again * 1e3:.0f} ms).",
                right=True,
            ),
            Choice(
                "Each a few of its blocks",
                "A sequence that lacks one block cannot take a step. Nobody would run.",
            ),
        ],
    )
