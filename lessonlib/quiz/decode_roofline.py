"""Quick checks of lesson 2. The keys are computed from the reference answers."""

from __future__ import annotations

from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.quiz.question import Choice, Question
from lessonlib.reference import decode_step, max_batch
from lessonlib.roofline import intensity, weight_bytes


def step_time() -> Question:
    """The step of 32 sequences at C = 4,096."""
    cfg, gpu, B, C = MODELS["Llama-3-8B"], GPUS["H100-SXM"], 32, 4096
    step = decode_step(B, C, cfg, gpu)
    alone = decode_step(1, C, cfg, gpu)
    weights_only = weight_bytes(cfg) / gpu.bandwidth
    return Question(
        f"Llama-3-8B in bf16 on an H100. How long is a decode step of {B} sequences with {C:,} cached tokens each?",
        [
            Choice(
                f"{weights_only * 1e3:.1f} ms",
                f"That is the weights alone. The {B} caches hold {B * C:,} tokens and bring as many bytes again.",
            ),
            Choice(
                f"{step.t_step * 1e3:.1f} ms",
                f"{step.n_bytes / 1e9:.1f} GB over {gpu.bandwidth / 1e12:g} TB/s: weights once, and {B} caches.",
                right=True,
            ),
            Choice(
                f"{B * alone.t_step * 1e3:.0f} ms",
                f"That reads the weights {B} times. One step reads them once, for all sequences.",
            ),
            Choice(
                f"{step.t_compute * 1e3:.1f} ms",
                "That is the arithmetic at peak speed. It waits for the bytes: the longer of the two times counts.",
            ),
        ],
    )


def intensity_when_batch_doubles() -> Question:
    """What a larger batch does to the intensity at long context."""
    cfg, C = MODELS["Llama-3-8B"], 131072
    now, doubled = intensity(8, C, cfg), intensity(16, C, cfg)
    return Question(
        f"8 sequences of {C:,} tokens decode together, at {now:.1f} FLOP/byte. The batch doubles. What happens to the "
        "intensity?",
        [
            Choice(
                "It doubles",
                "It would if the weights were nearly all of the bytes. Here the caches are, and they double too.",
            ),
            Choice(
                "It hardly changes",
                f"Caches are most of the bytes, and each brings its own work: {doubled:.1f} FLOP/byte, near "
                f"g = {cfg.group_size}. Batching does not make long-context decode compute-bound.",
                right=True,
            ),
            Choice(
                "It halves", "Bytes and FLOPs both grow with the batch; the weights' bytes are even shared by more."
            ),
        ],
    )


def where_batching_helps() -> Question:
    """Which step of the batch gains most."""
    cfg, gpu, C = MODELS["Llama-3-8B"], GPUS["H100-SXM"], 8192
    half, most = 16, max_batch(50e9, C, cfg)
    one, some, many = (decode_step(B, C, cfg, gpu).tokens_per_s for B in (1, half, most))
    return Question(
        f"At C = {C:,}, from 1 to {half} sequences tokens/s grow {some / one:.0f} times. How much more from {half} to "
        f"{most}, the most that fits in 50 GB?",
        [
            Choice(
                f"About {most / half:.1f} times",
                "That is how the batch grows. But by now the caches are most of the bytes, and they are not shared.",
            ),
            Choice(
                f"About {many / some:.1f} times",
                "The weights are paid for already. Each further sequence brings its own cache to read, so the step "
                "gets longer nearly as fast as the batch grows.",
                right=True,
            ),
            Choice("Not at all", "The weights are still a part of the bytes, and more sequences share it."),
        ],
    )


def which_number_to_report() -> Question:
    """Mean throughput hides late requests."""
    return Question(
        "A server writes more tokens per second than before, and users complain. Which number shows why?",
        [
            Choice(
                "The mean throughput",
                "It counts every token alike. A few requests may wait very long while it rises.",
            ),
            Choice(
                "The goodput",
                "It counts only the requests that met their SLO. Percentiles of TTFT and TPOT tell which half of it "
                "was missed.",
                right=True,
            ),
            Choice(
                "The FLOP/s that the GPU reaches",
                "Users feel waiting time, not utilisation. A prefill-heavy mix raises FLOP/s and stalls every decode.",
            ),
        ],
    )
