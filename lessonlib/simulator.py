"""A serving simulator in seconds: scheduler, paged KV memory and a cost model, one step after the other.

It joins the lessons: step times from the roofline (lesson 2), blocks and preemption (lesson 3), scheduling policies
(lesson 5). `serve(requests, server)` runs requests on a server and returns when each token came. The policies:

    static         a batch runs until its longest request ends (FasterTransformer)
    continuous     finished requests leave and waiting ones join before every step, whole prompts at once (Yu et al.,
                   Orca, OSDI 2022)
    chunked        as continuous, but a step has a token budget: decodes first, then a chunk of the oldest prompts
                   (Agrawal et al., Sarathi-Serve, OSDI 2024, arXiv:2403.02310)
    disaggregated  prompts are prefilled on GPUs of their own, and their caches sent to the one that decodes (Zhong et
                   al., DistServe, OSDI 2024, arXiv:2401.09670; Patel et al., Splitwise, ISCA 2024, arXiv:2311.18677)

Requests are served first come, first served. Where blocks run short, the newest running request is preempted (Kwon
et al. 2023, arXiv:2309.06180, section 4.5). All requests that decode gain one token in every step; so their lengths
follow from one counter of steps, and runs of steps in which nothing else happens are taken at once.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from lessonlib.gpus import Gpu
from lessonlib.models import ModelConfig
from lessonlib.reference.kv_cache import kv_bytes_per_sequence
from lessonlib.roofline import decode_flops, prefill_flops, step_seconds, weight_bytes

ServingPolicy = Literal["static", "continuous", "chunked", "disaggregated"]
POLICIES: tuple[ServingPolicy, ...] = ("static", "continuous", "chunked", "disaggregated")
Chunk = tuple[int, int]  # tokens to prefill, and tokens of the same sequence that are cached already


# --- what a step costs ----------------------------------------------------------------------------------


class CostModel(Protocol):
    """Seconds of a step. `cached` counts the cached tokens of all decoding sequences, the new ones included."""

    def step(self, n_decodes: int, cached: int, chunks: Sequence[Chunk]) -> float:
        """Seconds of one step of n_decodes decodes, with prefill chunks beside them."""

    def decode_run(self, n_decodes: int, cached: int, n_steps: int) -> np.ndarray:
        """Seconds of each of n_steps steps in a row without prefill; `cached` is that of the first of them."""


@dataclass(frozen=True)
class RooflineCost:
    """The roofline bound of lesson 2 as the cost of a step.

    Cached tokens are charged in all layers (sliding windows are not used), as by an engine with pages of one size.

    Args:
        cfg: the model.
        gpu: the GPU.
        share_of_peak: share of the peak FLOP/s that kernels reach.
    """

    cfg: ModelConfig
    gpu: Gpu
    share_of_peak: float = 1.0

    def step(self, n_decodes: int, cached: int, chunks: Sequence[Chunk]) -> float:
        n_bytes = weight_bytes(self.cfg) + cached * self.bytes_per_token
        flops = decode_flops(n_decodes, cached, self.cfg)
        for n_tokens, before in chunks:
            n_bytes += (before + n_tokens) * self.bytes_per_token
            flops += prefill_flops(n_tokens, self.cfg, before)
        return step_seconds(n_bytes, flops, self.gpu, self.share_of_peak)

    def decode_run(self, n_decodes: int, cached: int, n_steps: int) -> np.ndarray:
        cached_in_step = cached + n_decodes * np.arange(n_steps)
        n_bytes = weight_bytes(self.cfg) + cached_in_step * self.bytes_per_token
        # Both times are linear in the step, so the longer one can be taken element by element.
        flops = 2 * self.cfg.n_params * n_decodes + cached_in_step * decode_flops(0, 1, self.cfg)
        return np.maximum(n_bytes / self.gpu.bandwidth, flops / (self.share_of_peak * self.gpu.peak_flops))

    @property
    def bytes_per_token(self) -> float:
        return kv_bytes_per_sequence(1, self.cfg)


@dataclass(frozen=True)
class LinearCost:
    """Seconds = fixed + per_token · (tokens computed) + per_cached · (cached tokens read): for a measured machine.

    Args:
        fixed: seconds of every step: the weights are read, kernels are launched.
        per_token: seconds per token that the step computes, decode or prefill.
        per_cached: seconds per cached token that the step reads.
    """

    fixed: float
    per_token: float
    per_cached: float

    @classmethod
    def fitted(cls, measured: Sequence[tuple[int, int, float]]) -> LinearCost:
        """The cost model through measured steps: exactly through three, by least squares through more.

        Args:
            measured: (tokens computed, cached tokens read, seconds) of each step.

        Raises:
            ValueError: the steps do not determine the three numbers.
        """
        rows = np.array([(1, n_tokens, cached) for n_tokens, cached, _ in measured], dtype=float)
        if len(rows) < 3 or np.linalg.matrix_rank(rows) < 3:
            raise ValueError(f"need three steps that differ in tokens and in cached tokens, got {list(measured)!r}")
        fixed, per_token, per_cached = np.linalg.lstsq(rows, [seconds for *_, seconds in measured], rcond=None)[0]
        return cls(float(fixed), float(per_token), float(per_cached))

    def step(self, n_decodes: int, cached: int, chunks: Sequence[Chunk]) -> float:
        n_tokens = n_decodes + sum(n for n, _ in chunks)
        return self.fixed + self.per_token * n_tokens + self.per_cached * (cached + sum(before for _, before in chunks))

    def decode_run(self, n_decodes: int, cached: int, n_steps: int) -> np.ndarray:
        cached_in_step = cached + n_decodes * np.arange(n_steps)
        return self.fixed + self.per_token * n_decodes + self.per_cached * cached_in_step


# --- what comes in, and on what it runs -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """A request of the serving simulator.

    Args:
        arrival: seconds, at least 0.
        prompt: prompt tokens, at least 1.
        output: tokens to generate, at least 1. (A real server does not know this number; the simulated one does not
            use it before it is reached, except under the static policy.)
        prefix: names of the prompt's leading full blocks, for prefix caching. A name stands for the block's tokens and
            for everything before it: two prompts start alike as far as their names agree.

    Raises:
        ValueError: a number is out of range.
    """

    arrival: float
    prompt: int
    output: int
    prefix: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.arrival < float("inf"):
            raise ValueError(f"arrival must be a time of at least 0 seconds, got {self.arrival!r}")
        if self.prompt < 1 or self.output < 1:
            raise ValueError(f"prompt and output must be at least 1 token, got {self.prompt!r} and {self.output!r}")

    @property
    def longest(self) -> int:
        """Tokens cached at most: the last output token is never fed back."""
        return self.prompt + self.output - 1


def requests_of(arrivals: Iterable[float], prompts: Iterable[int], outputs: Iterable[int]) -> list[ServingRequest]:
    """Requests from arrays, such as those of `lessonlib.traces`."""
    return [ServingRequest(float(t), int(p), int(o)) for t, p, o in zip(arrivals, prompts, outputs, strict=True)]


@dataclass(frozen=True)
class Server:
    """The machine and its policy.

    Args:
        cost: seconds of a step.
        n_blocks: blocks of the KV pool (of the GPU that decodes).
        policy: one of POLICIES.
        block_size: tokens per block.
        n_slots: requests that may run at the same time.
        token_budget: tokens computed per step at most (decodes always run). "chunked" needs one. With "continuous" it
            limits the prompts that join in one step, and a prompt above it is refused. None: no limit.
        restore: how a preempted request comes back: "recompute" (prefill of prompt and generated tokens) or "swap".
        swap_seconds: seconds to move one cached token to the host, and as many for the way back.
        prefix_caching: reuse the blocks of equal prompt starts.
        n_prefill: with "disaggregated", GPUs that prefill.
        transfer_seconds: with "disaggregated", seconds to send one cached token.

    Raises:
        ValueError: a number is out of range, or a name unknown.
    """

    cost: CostModel
    n_blocks: int
    policy: ServingPolicy = "continuous"
    block_size: int = 16
    n_slots: int = 256
    token_budget: int | None = None
    restore: Literal["recompute", "swap"] = "recompute"
    swap_seconds: float = 0.0
    prefix_caching: bool = False
    n_prefill: int = 1
    transfer_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.restore not in ("recompute", "swap"):
            raise ValueError(f'restore must be "recompute" or "swap", got {self.restore!r}')
        for name in ("n_blocks", "block_size", "n_slots", "n_prefill"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")
        if self.prefix_caching and self.policy == "disaggregated":
            raise ValueError(f"prefix caching needs prefill and decode on one GPU, got policy {self.policy!r}")
        if self.token_budget is None and self.policy == "chunked":
            raise ValueError("chunked prefill needs a token_budget, got None")
        if self.token_budget is not None and self.token_budget < 1:
            raise ValueError(f"token_budget must be at least 1 token, got {self.token_budget!r}")

    def blocks(self, n_tokens: int) -> int:
        """Blocks that n_tokens cached tokens take."""
        return -(-n_tokens // self.block_size)

    def refuses(self, request: ServingRequest) -> bool:
        """Whether the request can never run here: larger than the pool, or a prompt above a budget without chunks."""
        too_long = self.policy == "continuous" and self.token_budget is not None and request.prompt > self.token_budget
        return self.blocks(request.longest) > self.n_blocks or too_long


def llm_server(
    cfg: ModelConfig,
    gpu: Gpu,
    m_kv: float,
    policy: ServingPolicy = "continuous",
    share_of_peak: float = 1.0,
    swap_bandwidth: float = 50e9,
    link_bandwidth: float = 50e9,
    block_size: int = 16,
    **settings: object,
) -> Server:
    """A server of a model on a GPU, by the roofline.

    Args:
        cfg: the model.
        gpu: the GPU (each of them, where the policy uses several).
        m_kv: bytes of memory for the KV cache.
        policy: one of POLICIES.
        share_of_peak: share of the peak FLOP/s that kernels reach.
        swap_bandwidth: bytes/s between GPU and host, each way.
        link_bandwidth: bytes/s between the GPUs that prefill and the one that decodes.
        block_size: tokens per block.
        settings: further fields of `Server`.
    """
    cost = RooflineCost(cfg, gpu, share_of_peak)
    k = cost.bytes_per_token
    return Server(
        cost,
        n_blocks=int(m_kv // (k * block_size)),
        policy=policy,
        block_size=block_size,
        swap_seconds=k / swap_bandwidth,
        transfer_seconds=k / link_bandwidth,
        **settings,  # type: ignore[arg-type]
    )


# --- what comes out -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timeline:
    """Steps in order; a row stands for n_steps steps in a row of the same requests. All arrays have one entry per row.

    Args:
        start: seconds at which the first of the steps starts.
        end: seconds at which the last of them ends.
        n_steps: how many steps.
        longest: seconds of the longest of the steps.
        n_decodes: requests that decode in each of the steps.
        prefill_tokens: prompt tokens computed in the step.
        used_blocks: blocks in use at the end, without blocks that are only kept for prefix caching.
        n_waiting: requests that had arrived and waited when the steps started.
    """

    start: np.ndarray
    end: np.ndarray
    n_steps: np.ndarray
    longest: np.ndarray
    n_decodes: np.ndarray
    prefill_tokens: np.ndarray
    used_blocks: np.ndarray
    n_waiting: np.ndarray


@dataclass(frozen=True)
class ServingResult:
    """When each request got its tokens. Arrays have one entry per request, in the order of the list given.

    Args:
        requests: the requests.
        refused: the requests that can never run on this server; their times are nan.
        first_token: seconds at which the first output token came.
        finish: seconds at which the last one came.
        worst_gap: the longest wait between two tokens of the request, seconds; 0 where it has one token.
        n_preempted: how often the request was preempted.
        cached_tokens: prompt tokens that were found in the prefix cache when it started.
        timeline: the steps of the (decoding) GPU.
    """

    requests: Sequence[ServingRequest]
    refused: np.ndarray
    first_token: np.ndarray
    finish: np.ndarray
    worst_gap: np.ndarray
    n_preempted: np.ndarray
    cached_tokens: np.ndarray
    timeline: Timeline

    @property
    def ttft(self) -> np.ndarray:
        """Time to first token of each request, seconds."""
        return self.first_token - np.array([request.arrival for request in self.requests])

    @property
    def tpot(self) -> np.ndarray:
        """Mean time per output token after the first, seconds; 0 for requests of one token."""
        gaps = np.array([request.output - 1 for request in self.requests])
        return (self.finish - self.first_token) / np.maximum(gaps, 1)

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last token; 0 where every request was refused."""
        if self.refused.all():
            return 0.0
        return float(np.nanmax(self.finish) - min(request.arrival for request in self.requests))

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        served = [request.output for request, no in zip(self.requests, self.refused, strict=True) if not no]
        return sum(served) / self.duration if served else 0.0

    def goodput(self, ttft: float, tpot: float) -> float:
        """Requests per second that meet both limits.

        Args:
            ttft: longest time to first token, seconds.
            tpot: longest mean time per output token, seconds.
        """
        met = self.attained(ttft, tpot) * len(self.requests)
        return met / self.duration if met else 0.0

    def attained(self, ttft: float, tpot: float) -> float:
        """Share of all requests that meet both limits; refused ones do not."""
        return float(np.mean((self.ttft <= ttft) & (self.tpot <= tpot)))

    def percentiles(self, what: Literal["ttft", "tpot", "worst_gap"], percent: Sequence[float]) -> np.ndarray:
        """Percentiles over the served requests, seconds."""
        return np.percentile(getattr(self, what)[~self.refused], percent)


# --- memory ---------------------------------------------------------------------------------------------


class _Pool:
    """Counts of blocks, and the named ones that prefix caching can find again.

    A named block is held by so many sequences. Without holders it stays findable until its room is needed, the one
    that has been free for longest first.
    """

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.private = 0
        self.holders: dict[Hashable, int] = {}
        self.idle: OrderedDict[Hashable, None] = OrderedDict()

    @property
    def used(self) -> int:
        return self.private + len(self.holders)

    @property
    def available(self) -> int:
        return self.n_blocks - self.used

    def found(self, names: Sequence[Hashable]) -> int:
        """How many leading names are in the cache."""
        for i, name in enumerate(names):
            if name not in self.holders and name not in self.idle:
                return i
        return len(names)

    def take(self, n: int) -> None:
        """Take n private blocks; idle ones make room for them."""
        assert n <= self.available, "the scheduler checks first"
        self.private += n
        self._make_room()

    def hold(self, names: Sequence[Hashable]) -> None:
        """Become a holder of cached blocks."""
        for name in names:
            self.idle.pop(name, None)
            self.holders[name] = self.holders.get(name, 0) + 1

    def publish(self, names: Sequence[Hashable]) -> list[Hashable]:
        """Give names to private blocks that are now full; a name that exists already stays with its block."""
        new = [name for name in names if name not in self.holders and name not in self.idle]
        self.private -= len(new)
        self.holders.update(dict.fromkeys(new, 1))
        return new

    def release(self, n_private: int, names: Sequence[Hashable]) -> None:
        """Give blocks back; the deepest named block becomes idle first, so that starts of prompts live longest."""
        self.private -= n_private
        for name in reversed(names):
            self.holders[name] -= 1
            if self.holders[name] == 0:
                del self.holders[name]
                self.idle[name] = None

    def _make_room(self) -> None:
        while self.used + len(self.idle) > self.n_blocks:
            self.idle.popitem(last=False)


# --- the scheduler --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request on the server.

    Args:
        index: its place in the list.
        request: the request.
        ready: seconds from which it may run here.
        generated: output tokens so far (while it decodes: when it began to).
        cached: tokens in the cache (likewise). Above 0 while it waits: they come over a link, or back from the host.
        to_prefill: tokens that must be cached before it decodes.
        since: the step counter when it began to decode; None while it does not.
        end: the step counter when its last token will have come.
        names: named blocks that it holds.
        last_token: seconds of its last token, where it does not decode.
        swapped: its cache is on the host.
        first_row: the timeline's row of its first step since it began to decode.
    """

    index: int
    request: ServingRequest
    ready: float
    generated: int = 0
    cached: int = 0
    to_prefill: int = 0
    since: int | None = None
    end: int = 0
    names: list[Hashable] = field(default_factory=list)
    last_token: float = float("nan")
    swapped: bool = False
    first_row: int = 0


class _Run:
    """One simulation: the clock, the queue, the running sequences, and the pool."""

    def __init__(self, server: Server, sequences: Sequence[_Sequence], result: ServingResult, skip: bool) -> None:
        self.server, self.result, self.skip = server, result, skip
        self.pool = _Pool(server.n_blocks)
        self.coming = deque(sorted(sequences, key=lambda s: s.ready))  # stable: ties by place in the list
        self.waiting: deque[_Sequence] = deque()
        self.running: dict[int, _Sequence] = {}  # oldest first, since service is first come, first served
        self.prefilling: list[_Sequence] = []
        self.ends: list[tuple[int, int, _Sequence]] = []  # heap: (counter at the last token, index, sequence)
        self.now = 0.0
        self.counter = 0  # steps so far
        self.n_decodes = 0
        self.cached = 0  # cached tokens of all decoding sequences
        self.fills_at = [0] * server.block_size  # sequences that need a block when counter % block_size is this
        self.extra_seconds = 0.0  # swapping, charged to the coming step
        self.resumed: list[_Sequence] = []  # those that begin to decode in the coming step, without prefill
        self.spans: list[tuple[int, int, int]] = []  # (index, first row, row after the last) of decoding
        self.rows: list[tuple[float, float, int, float, int, int, int, int]] = []

    def run(self) -> None:
        while self.coming or self.waiting or self.running:
            if not self.running and not self.waiting:
                self.now = max(self.now, self.coming[0].ready)
            while self.coming and self.coming[0].ready <= self.now:
                self.waiting.append(self.coming.popleft())
            if not self._preempt_for_growth():
                self._admit()
            chunks = self._chunks()
            n_steps = 1 if chunks or self.extra_seconds or not self.skip else self._steps_until_something_happens()
            self._advance(chunks, n_steps)

    # Before a step: blocks for those that run, then places for those that wait.

    def _preempt_for_growth(self) -> bool:
        """Preempt the newest until the others can take their next token; whether any was preempted."""
        preempted = False
        while self._growth() > self.pool.available:
            self._preempt(next(reversed(self.running.values())))
            preempted = True
        return preempted

    def _growth(self) -> int:
        """Blocks that the coming step needs for decoding."""
        return self.fills_at[self.counter % self.server.block_size]

    def _preempt(self, sequence: _Sequence) -> None:
        swap = self.server.restore == "swap" and sequence.since is not None
        if sequence.since is not None:
            self._stop_decoding(sequence)
            sequence.last_token = self.now
        else:
            self.prefilling.remove(sequence)
        self._leave(sequence)
        self.result.n_preempted[sequence.index] += 1
        if swap:
            self.extra_seconds += sequence.cached * self.server.swap_seconds
        else:
            sequence.cached = 0
        sequence.swapped = swap
        self.waiting.appendleft(sequence)

    def _admit(self) -> None:
        """Let waiting requests in, first come first served, as long as the first of them fits."""
        if self.server.policy == "static":
            if not self.running:
                self._admit_batch()
            return
        room = self._prefill_room()
        while self.waiting and len(self.running) < self.server.n_slots:
            sequence = self.waiting[0]
            tokens = self._tokens_to_prefill(sequence)
            # A whole prompt above the budget runs only by itself: a preempted one may have grown above it.
            whole = self.server.policy == "continuous" and len(self.prefilling) > 0
            over_budget = tokens > 0 and (room <= 0 or (whole and tokens > room))
            if over_budget or not self._fits(sequence):
                return
            self._enter(self.waiting.popleft())
            room -= tokens

    def _admit_batch(self) -> None:
        reserved = 0
        while self.waiting and len(self.running) < self.server.n_slots:
            reserved += self.server.blocks(self.waiting[0].request.longest)
            if reserved > self.server.n_blocks:
                return
            self._enter(self.waiting.popleft())

    def _prefill_room(self) -> float:
        """Tokens of the budget that are left for new prompts in the coming step."""
        if self.server.token_budget is None:
            return float("inf")
        left = sum(sequence.to_prefill - sequence.cached for sequence in self.prefilling)
        return self.server.token_budget - self.n_decodes - left

    def _needs(self, sequence: _Sequence) -> int:
        """Tokens that must be cached when it starts to decode; its last generated token is not yet."""
        if sequence.cached:  # its cache comes over a link, or back from the host
            return sequence.cached
        return sequence.request.prompt + sequence.generated

    def _hits(self, sequence: _Sequence) -> Sequence[Hashable]:
        """Names of cached blocks that its prompt starts with; the last token is always computed."""
        if not self.server.prefix_caching or sequence.cached:
            return ()
        names = sequence.request.prefix[: (sequence.request.prompt - 1) // self.server.block_size]
        return names[: self.pool.found(names)]

    def _tokens_to_prefill(self, sequence: _Sequence) -> int:
        if sequence.cached:
            return 0
        return self._needs(sequence) - len(self._hits(sequence)) * self.server.block_size

    def _fits(self, sequence: _Sequence) -> bool:
        """Whether its blocks are there, beside those that the coming step needs for decoding."""
        n_tokens, hits = self._needs(sequence), self._hits(sequence)
        held = sum(name in self.pool.holders for name in hits)
        grows = bool(sequence.cached) and n_tokens % self.server.block_size == 0  # decodes in the coming step
        needed = self.server.blocks(n_tokens) - held + grows + self._growth()
        return needed <= self.pool.available

    def _enter(self, sequence: _Sequence) -> None:
        n_tokens, hits = self._needs(sequence), list(self._hits(sequence))
        self.pool.hold(hits)
        self.pool.take(self.server.blocks(n_tokens) - len(hits))
        sequence.names, sequence.to_prefill = hits, n_tokens
        self.running[sequence.index] = sequence
        if sequence.cached:
            self.extra_seconds += sequence.cached * self.server.swap_seconds * sequence.swapped
            self._start_decoding(sequence)
            self.resumed.append(sequence)
            return
        sequence.cached = len(hits) * self.server.block_size
        if not sequence.generated:
            self.result.cached_tokens[sequence.index] = sequence.cached
        self.prefilling.append(sequence)

    def _chunks(self) -> list[tuple[_Sequence, int]]:
        """Prompt tokens of the coming step: whole prompts, or what the budget leaves, the oldest first."""
        room = float("inf")
        if self.server.policy == "chunked":
            room = self._prefill_room() + sum(s.to_prefill - s.cached for s in self.prefilling)
        chunks = []
        for sequence in self.prefilling:
            n_tokens = int(min(room, sequence.to_prefill - sequence.cached))
            if n_tokens <= 0:
                break
            chunks.append((sequence, n_tokens))
            room -= n_tokens
        return chunks

    # The step itself.

    def _steps_until_something_happens(self) -> int:
        """Steps in which the same requests decode, nobody ends before the last of them, and no block is missing."""
        n_steps = self.ends[0][0] - self.counter
        available, size = self.pool.available, self.server.block_size
        cycles = min(available // self.n_decodes, n_steps // size)
        affordable, spent = cycles * size, cycles * self.n_decodes
        while affordable < n_steps:
            spent += self.fills_at[(self.counter + affordable) % size]
            if spent > available:
                break
            affordable += 1
        return min(n_steps, affordable)

    def _advance(self, chunks: list[tuple[_Sequence, int]], n_steps: int) -> None:
        seconds = self._seconds(chunks, n_steps)
        if self.coming and not self.waiting:  # stop after the step in which the next request arrives
            n_steps = min(n_steps, int(np.searchsorted(self.now + np.cumsum(seconds), self.coming[0].ready)) + 1)
            seconds = seconds[:n_steps]
        start, self.now = self.now, self.now + float(seconds.sum())
        for sequence in self.resumed:
            self._count_gap(sequence, start + float(seconds[0]))
        self.resumed.clear()
        n_decodes, n_prefill = self.n_decodes, sum(n_tokens for _, n_tokens in chunks)
        self._grow(n_steps)
        for sequence, n_tokens in chunks:
            self._prefilled(sequence, n_tokens)
        longest = float(seconds.max())
        self.rows.append((start, self.now, n_steps, longest, n_decodes, n_prefill, self.pool.used, len(self.waiting)))
        while self.ends and self.ends[0][0] <= self.counter:
            end, _, sequence = heapq.heappop(self.ends)
            if sequence.since is not None and sequence.end == end:  # not an entry from before a preemption
                self._stop_decoding(sequence)
                self._finish(sequence)

    def _seconds(self, chunks: list[tuple[_Sequence, int]], n_steps: int) -> np.ndarray:
        """Seconds of each of the coming steps; swapping is charged to the first."""
        cached = self.cached + self.n_decodes  # the new tokens are read, too
        if n_steps > 1:
            return self.server.cost.decode_run(self.n_decodes, cached, n_steps)
        parts = [(n_tokens, sequence.cached) for sequence, n_tokens in chunks]
        seconds = self.server.cost.step(self.n_decodes, cached, parts) + self.extra_seconds
        self.extra_seconds = 0.0
        return np.array([seconds])

    def _grow(self, n_steps: int) -> None:
        """Every decoding sequence gains n_steps tokens, and the blocks for them."""
        size = self.server.block_size
        cycles, rest = divmod(n_steps, size)
        needed = cycles * self.n_decodes + sum(self.fills_at[(self.counter + i) % size] for i in range(rest))
        self.pool.take(needed)
        self.counter += n_steps
        self.cached += n_steps * self.n_decodes

    def _prefilled(self, sequence: _Sequence, n_tokens: int) -> None:
        sequence.cached += n_tokens
        if self.server.prefix_caching:
            full = min(sequence.cached, sequence.request.prompt) // self.server.block_size
            sequence.names += self.pool.publish(sequence.request.prefix[len(sequence.names) : full])
        if sequence.cached < sequence.to_prefill:
            return
        self.prefilling.remove(sequence)
        if sequence.generated:
            self._count_gap(sequence, self.now)
        else:
            self.result.first_token[sequence.index] = self.now
        sequence.generated += 1
        if sequence.generated == sequence.request.output:
            self._finish(sequence)
        else:
            self._start_decoding(sequence)
            sequence.first_row += 1  # its first step of decoding is the next one

    def _start_decoding(self, sequence: _Sequence) -> None:
        sequence.since, sequence.first_row = self.counter, len(self.rows)
        sequence.end = self.counter + sequence.request.output - sequence.generated
        heapq.heappush(self.ends, (sequence.end, sequence.index, sequence))
        self.n_decodes += 1
        self.cached += sequence.cached
        self.fills_at[(self.counter - sequence.cached) % self.server.block_size] += 1

    def _stop_decoding(self, sequence: _Sequence) -> None:
        assert sequence.since is not None
        self.spans.append((sequence.index, sequence.first_row, len(self.rows)))
        self.fills_at[(sequence.since - sequence.cached) % self.server.block_size] -= 1
        n_steps = self.counter - sequence.since
        sequence.generated += n_steps
        sequence.cached += n_steps
        sequence.since = None
        self.n_decodes -= 1
        self.cached -= sequence.cached

    def _count_gap(self, sequence: _Sequence, token: float) -> None:
        """A token came after a wait: after a preemption, or a transfer."""
        gaps = self.result.worst_gap
        gaps[sequence.index] = max(gaps[sequence.index], token - sequence.last_token)

    def _leave(self, sequence: _Sequence) -> None:
        del self.running[sequence.index]
        n_blocks = self.server.blocks(max(sequence.cached, sequence.to_prefill))
        self.pool.release(n_blocks - len(sequence.names), sequence.names)
        sequence.names = []

    def _finish(self, sequence: _Sequence) -> None:
        self._leave(sequence)
        self.result.finish[sequence.index] = self.now


# --- the front door -------------------------------------------------------------------------------------


def serve(requests: Sequence[ServingRequest], server: Server, skip_ahead: bool = True) -> ServingResult:
    """Serve requests, first come, first served (by arrival, then by place in the list).

    The result follows from the arguments alone. A request that can never run is refused: one larger than the pool, or
    under "continuous" with a token budget a prompt above it.

    Args:
        requests: at least one.
        server: machine and policy.
        skip_ahead: take runs of steps in which nothing but decoding happens at once. False goes step by step, with the
            same result up to rounding, and slower.

    Raises:
        ValueError: there are no requests.
    """
    if not requests:
        raise ValueError(f"there must be at least one request, got {requests!r}")
    n = len(requests)
    nan, none = np.full(n, np.nan), np.zeros(n, dtype=int)
    refused = np.array([server.refuses(request) for request in requests])
    first_token, finish, worst_gap = nan.copy(), nan.copy(), np.where(refused, np.nan, 0.0)
    result = ServingResult(requests, refused, first_token, finish, worst_gap, none.copy(), none.copy(), _timeline([]))
    order = sorted(np.flatnonzero(~refused).tolist(), key=lambda i: requests[i].arrival)
    sequences = [_Sequence(i, requests[i], requests[i].arrival) for i in order]
    if server.policy == "disaggregated":
        sequences = _prefill_elsewhere(sequences, server, result)
    run = _Run(server, sequences, result, skip_ahead)
    run.run()
    timeline = _timeline(run.rows)
    for index, first, after in run.spans:
        if after > first:
            worst_gap[index] = max(worst_gap[index], timeline.longest[first:after].max())
    return replace(result, timeline=timeline)


def _prefill_elsewhere(sequences: list[_Sequence], server: Server, result: ServingResult) -> list[_Sequence]:
    """Prefill on GPUs of their own, one prompt at a time each; gives what goes on to decode, with its cache."""
    free_at = [0.0] * server.n_prefill  # a heap
    decode = []
    for sequence in sequences:
        prompt = sequence.request.prompt
        start = max(sequence.ready, heapq.heappop(free_at))
        done = start + server.cost.step(0, 0, [(prompt, 0)])
        heapq.heappush(free_at, done)
        result.first_token[sequence.index] = sequence.last_token = done
        if sequence.request.output == 1:
            result.finish[sequence.index] = done
            continue
        sequence.generated, sequence.cached = 1, prompt
        sequence.ready = done + prompt * server.transfer_seconds
        decode.append(sequence)
    return decode


def _timeline(rows: list[tuple[float, float, int, float, int, int, int, int]]) -> Timeline:
    columns = zip(*rows, strict=True) if rows else [[]] * 8
    return Timeline(*(np.array(column) for column in columns))
