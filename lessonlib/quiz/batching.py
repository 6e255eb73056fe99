"""Quick checks of lesson 5. The keys are computed from the reference answers, the roofline and the simulator."""

from __future__ import annotations

from lessonlib.gpus import GPUS
from lessonlib.models import MODELS
from lessonlib.quiz.question import Choice, Question
from lessonlib.records import Request
from lessonlib.reference import simulate
from lessonlib.roofline import transfer_seconds
from lessonlib.simulator import RooflineCost

_LLAMA, _H100 = MODELS["Llama-3-8B"], GPUS["H100-SXM"]


def who_waits() -> Question:
    """When the fourth request of the small example starts under continuous batching."""
    requests = [Request(0, n) for n in (3, 1, 2, 4)]
    starts = {p: int((simulate(requests, 2, p).schedule == 3).any(axis=1).argmax()) for p in ("static", "continuous")}
    return Question(
        "Requests of 3, 1, 2 and 4 steps arrive at once, and there are two slots. In which step, counted from 0, does "
        "request 3 start under continuous batching?",
        [
            Choice("1", "Request 1 leaves after step 0, but request 2 is ahead in the queue and takes its slot."),
            Choice("2", "In step 2 both slots are taken: request 0 runs its third step, request 2 its second."),
            Choice(
                f"{starts['continuous']}",
                "Requests 0 and 2 both end with step 2, and both slots are free. Static batching starts it in step "
                f"{starts['static']} as well: the batch of requests 0 and 1 has ended then.",
                right=starts["continuous"] == 3,
            ),
        ],
    )


def which_number() -> Question:
    """Which number shows that users are unhappy."""
    return Question(
        "A server's throughput is 2,400 tokens/s today, as it was yesterday. Users complain that answers stall. Which "
        "number shows it first?",
        [
            Choice("Mean throughput", "It is the same. A stall of one second moves tokens, it does not lose them."),
            Choice("Mean TPOT", "A stall of one second in an answer of 400 tokens adds 2.5 ms to its mean."),
            Choice(
                "The 99th percentile of the gap between two tokens",
                "A stall is one long gap. Percentiles over gaps keep it; means over tokens wash it out.",
                right=True,
            ),
            Choice("Slot use", "Slots are busy during a stall. They wait for a step that takes long."),
        ],
    )


def pasted_documents() -> Question:
    """The remedy for TPOT spikes when long documents are pasted."""
    cost, cached = RooflineCost(_LLAMA, _H100), 64 * 1024
    whole, first, last = (cost.step(64, cached, [c]) * 1e3 for c in ((32768, 0), (512, 0), (512, 32768 - 512)))
    return Question(
        "Every few minutes someone pastes a document of 32,768 tokens, and for 64 other users the text stops. TTFT of "
        "the document may grow a little. What do you change?",
        [
            Choice(
                "Prefill in chunks beside the decodes",
                f"In chunks of 512 tokens no step is longer than {last:.0f} ms (the first is {first:.1f} ms), against "
                f"{whole:.0f} ms in one piece. The document's TTFT grows by less than a tenth.",
                right=True,
            ),
            Choice("A larger batch", "The long step then stops even more users."),
            Choice(
                "Hold long prompts back until nobody decodes",
                "On a busy server that moment never comes: TTFT grows without bound.",
            ),
            Choice("An fp8 cache", "The spike is compute: FLOPs of the prefill. A smaller cache reads faster only."),
        ],
    )


def which_link() -> Question:
    """What a hand-over between the pools costs, against a decode step."""
    step = RooflineCost(_LLAMA, _H100).step(64, 64 * 1024, []) * 1e3
    slow, fast = (transfer_seconds(2048, _LLAMA, bandwidth) * 1e3 for bandwidth in (50e9, 450e9))
    return Question(
        f"Prefill and decode run on separate GPUs. A decode step takes {step:.1f} ms. The cache of a 2,048-token "
        f"prompt is sent at 50 GB/s in {slow:.1f} ms, or over NVLink in {fast:.1f} ms. Who waits for it?",
        [
            Choice("All of them", "The decoding GPU goes on with its steps while the cache arrives."),
            Choice(
                "The new one alone, once",
                "Its second token comes later by the transfer. Everybody's steps stay as they were.",
                right=True,
            ),
            Choice(
                "The new one, at every token", "The cache is sent once. Later tokens are appended where it lies now."
            ),
        ],
    )
