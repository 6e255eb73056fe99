"""The engine: requests in, tokens out, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lessonlib.serving.attention import PagedAttention
from lessonlib.serving.block_manager import Allocator, BlockManager, blocks_needed
from lessonlib.serving.kv_cache import slot_mapping, write_kv
from lessonlib.serving.metrics import Metrics, StepRecord
from lessonlib.serving.model import Decoder
from lessonlib.serving.request import RequestOutput, SamplingParams, Sequence, as_token_ids, is_whole
from lessonlib.serving.runner import Runner, SlotMapping, Work, WriteKV
from lessonlib.serving.sampler import next_token, probabilities
from lessonlib.serving.scheduler import Admit, Scheduler, Step, admit
from lessonlib.serving.speculative import Draft, Drafter, SpeculativeRound, Verify, from_round, verify
from lessonlib.serving.tokenizer import Tokenizer
from lessonlib.serving.weights import load_model

Prompt = str | Seq[int]
Result = tuple[Sequence, list[int], int]  # a sequence, the tokens that it gained, and how many of those were drafts

NOT_FINITE = "the logits are inf or nan: with float16 the model has overflowed, so serve it in bfloat16 or float32"


class LLM:
    """Serves a model: paged KV cache, continuous batching, prefix caching, speculative decoding.

    Every part that the course's exercises build can be replaced by an answer to them.

    Args:
        model: the decoder.
        tokenizer: for text prompts and text output; without it, prompts are token ids.
        n_blocks: blocks in the KV pool.
        block_size: tokens per block.
        max_batch_tokens: token budget of a step.
        max_sequences: most sequences that run at a time.
        chunked_prefill, prefix_caching, continuous: features, to turn off for comparison.
        drafter: where drafts come from; None decodes one token per step.
        n_drafts: γ, most drafts per sequence and step.
        block_manager: makes the block manager from n_blocks and block_size; an answer to exercise 3 finds no prefixes.
        slot_mapping, write_kv, paged_attention, admit, verify: replace those of the engine (capstone).
        speculative_round: an answer to exercise 4, in place of verify.

    Raises:
        ValueError: a size is below 1, or two arguments contradict each other.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer | None = None,
        *,
        n_blocks: int = 1024,
        block_size: int = 16,
        max_batch_tokens: int = 512,
        max_sequences: int = 64,
        chunked_prefill: bool = True,
        prefix_caching: bool = True,
        continuous: bool = True,
        drafter: Drafter | None = None,
        n_drafts: int = 4,
        block_manager: Callable[[int, int], Allocator] = BlockManager,
        slot_mapping: SlotMapping = slot_mapping,
        write_kv: WriteKV = write_kv,
        paged_attention: PagedAttention | None = None,
        admit: Admit = admit,
        verify: Verify | None = None,
        speculative_round: SpeculativeRound | None = None,
    ) -> None:
        sizes = {"n_blocks": n_blocks, "block_size": block_size, "max_sequences": max_sequences}
        for name, value in {**sizes, "max_batch_tokens": max_batch_tokens, "n_drafts": n_drafts}.items():
            if not is_whole(value) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        self.model, self.tokenizer, self.n_blocks, self.block_size = model, tokenizer, n_blocks, block_size
        self.manager = block_manager(n_blocks, block_size)
        if isinstance(self.manager, BlockManager):
            self.manager.prefix_caching = prefix_caching
        self.scheduler = Scheduler(
            self.manager, n_blocks, block_size, max_batch_tokens, max_sequences, chunked_prefill, continuous, admit
        )
        self.runner = Runner(model, n_blocks, block_size, self.manager, paged_attention, write_kv, slot_mapping)
        self.drafter, self.n_drafts = drafter, n_drafts
        draft_runner = drafter.attach(self.runner) if drafter is not None else None
        self._caches = [self.runner.cache] + ([draft_runner.cache] if draft_runner is not None else [])
        self.verify = _judge(verify, speculative_round)
        self.metrics = Metrics()
        self._next_id = 0
        self._waiting_outputs: list[RequestOutput] = []

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = "SmolLM2-135M",
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        **options: Any,
    ) -> LLM:
        """Load a model as `load_model` does, and serve it; `options` are those of the class."""
        model, tokenizer = load_model(name, dtype, device)
        return cls(model, tokenizer, **options)

    # --- requests -----------------------------------------------------------------------------------------

    def generate(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Seq[SamplingParams | None] | None = None
    ) -> list[RequestOutput]:
        """Run prompts to their ends.

        Args:
            prompts: texts or lists of token ids.
            params: one for all, or one for each.

        Returns:
            One output per sequence, in the order of the prompts; a bad request has its `error` set.
        """
        finished = [output for output in self.stream(prompts, params) if output.finished]
        return sorted(finished, key=lambda output: (output.request_id, output.index))

    def stream(
        self, prompts: Prompt | Iterable[Prompt], params: SamplingParams | Seq[SamplingParams | None] | None = None
    ) -> Iterator[RequestOutput]:
        """Like `generate`, and gives what every sequence has after each step, as soon as it has it.

        Requests that were added before run along; the next `step` returns what they gave. Closing the stream drops its
        own requests.
        """
        each = _as_prompts(prompts)
        params = [params] * len(each) if isinstance(params, SamplingParams | None) else params
        if len(params) != len(each):
            raise ValueError(f"need one SamplingParams or one per prompt, got {len(params)} for {len(each)} prompts")
        own = {self.add_request(prompt, p) for prompt, p in zip(each, params, strict=True)}
        others: list[RequestOutput] = []
        try:
            while self.has_unfinished:
                for output in self.step():
                    if output.request_id in own:
                        yield output
                    else:
                        others.append(output)
        finally:  # also where the caller stops listening
            for request_id in own:
                self.abort(request_id)
            self._waiting_outputs += others

    def add_request(self, prompt: Prompt, params: SamplingParams | None = None) -> int:
        """Queue a request.

        A bad one does not raise: the next step returns its error, and the others go on.

        Returns:
            The request's id.
        """
        request_id, self._next_id = self._next_id, self._next_id + 1
        params = params or SamplingParams()
        try:
            tokens = self._checked(prompt, params)
        except ValueError as error:
            self._waiting_outputs.append(RequestOutput(request_id, finish_reason="error", error=str(error)))
            return request_id
        rng = np.random.default_rng(params.seed)
        seq = Sequence((request_id, 0), tokens, params, rng, list(tokens), forks_to_make=params.n - 1)
        self.scheduler.waiting.append(seq)
        return request_id

    def abort(self, request_id: int) -> None:
        """Drop all sequences of a request; unknown or finished ones are left alone."""
        for seq in [*self.scheduler.running, *self.scheduler.waiting]:
            if seq.seq_id[0] == request_id:
                self.scheduler.finish(seq)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._waiting_outputs)

    def _checked(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("this engine has no tokenizer: give the prompt as token ids")
            prompt = self.tokenizer.encode(prompt)
        vocab_size = self.model.cfg.shape.vocab_size
        tokens = as_token_ids(prompt, vocab_size)
        for stop in params.stop_ids:
            if not is_whole(stop) or not 0 <= stop < vocab_size:
                raise ValueError(f"unknown stop token {stop!r}: token ids are from 0 to {vocab_size - 1}")
        length, limit = len(tokens) + params.max_tokens, self.model.cfg.max_positions
        if length > limit:
            raise ValueError(
                f"{len(tokens)} prompt tokens and max_tokens = {params.max_tokens} are {length}, more than the model's "
                f"{limit} positions: shorten the prompt or lower max_tokens"
            )
        if blocks_needed(length, self.block_size) > self.n_blocks:
            raise ValueError(
                f"{length} tokens need {blocks_needed(length, self.block_size)} blocks, more than the whole pool of "
                f"{self.n_blocks}: raise n_blocks or lower max_tokens"
            )
        if params.n > self.scheduler.max_sequences:
            raise ValueError(f"n = {params.n} samples need as many seats, and there are {self.scheduler.max_sequences}")
        return tokens

    # --- one step -----------------------------------------------------------------------------------------

    def step(self) -> list[RequestOutput]:
        """Schedule, compute, sample.

        Returns:
            An output for every sequence that gained tokens or failed in this step.
        """
        start = time.perf_counter()
        outputs, self._waiting_outputs = self._waiting_outputs, []
        step = self.scheduler.schedule()
        outputs += [self._fail(seq, "its tokens can never fit in the block pool") for seq in step.refused]
        scheduled = time.perf_counter()
        if step.sequences:
            drafts = self._draft(step)
            n_context = sum(seq.n_computed + n for seq, n in zip(step.sequences, step.n_tokens, strict=True))
            results = self._take_in(step, drafts, self._forward(step, drafts))
            self._record(step, drafts, results, n_context, scheduled - start, time.perf_counter() - start)
            outputs += [RequestOutput.of(seq, len(new), self._text(seq)) for seq, new, _ in results if new]
            outputs += [self._fail(seq, NOT_FINITE) for seq, new, _ in results if not new]
        return outputs

    def _draft(self, step: Step) -> list[Draft]:
        """Reserve room for drafts where no one has to give way for it, copy blocks, and let the drafter propose."""
        drafts = [Draft() for _ in step.sequences]
        budget = self.scheduler.max_tokens - sum(step.n_tokens)
        chosen, limits = [], []
        for i, seq in enumerate(step.sequences if self.drafter is not None else ()):
            limit = min(self.n_drafts, seq.n_left - 1, budget)
            if seq.n_uncomputed == 1 and seq.forks_to_make == 0 and limit > 0:
                self.scheduler.reserve(seq, len(seq.tokens) + limit, step.copies)
                limit = min(limit, self.manager.lengths[seq.seq_id] - len(seq.tokens))
                chosen.append(i)
                limits.append(limit)
                budget -= limit
        for source, copy in step.copies:
            for cache in self._caches:
                cache.copy_block(source, copy)
        if chosen and self.drafter is not None:
            proposed = self.drafter.propose([step.sequences[i] for i in chosen], limits)
            for i, draft in zip(chosen, proposed, strict=True):
                drafts[i] = draft
        return drafts

    def _forward(self, step: Step, drafts: list[Draft]) -> Tensor:
        work, n_wanted = [], []
        for seq, n, draft in zip(step.sequences, step.n_tokens, drafts, strict=True):
            tokens = seq.tokens[seq.n_computed : seq.n_computed + n] + draft.tokens
            work.append(Work(seq.seq_id, tokens, seq.n_computed))
            n_wanted.append(1 + len(draft.tokens) if n == seq.n_uncomputed else 0)
        return self.runner.logits(work, n_wanted)

    def _take_in(self, step: Step, drafts: list[Draft], logits: Tensor) -> list[Result]:
        """Move every sequence on by what was computed, and sample where its last token was."""
        greedy, finite = logits.argmax(-1).tolist(), torch.isfinite(logits.sum(-1)).tolist()
        results: list[Result] = []
        row = 0
        for seq, n, draft in zip(step.sequences, step.n_tokens, drafts, strict=True):
            ready = n == seq.n_uncomputed
            seq.n_computed += n
            if not ready:
                self._register(seq)
                continue
            rows = slice(row, row := row + 1 + len(draft.tokens))
            for each in self._with_forks(seq):
                if not all(finite[rows]):
                    results.append((each, [], 0))
                    continue
                emitted, n_accepted = self._choose(each, draft, logits[rows], greedy[rows])
                each.n_computed += n_accepted
                results.append((each, self._extend(each, emitted), n_accepted))
        return results

    def _choose(self, seq: Sequence, draft: Draft, logits: Tensor, greedy: list[int]) -> tuple[Seq[int], int]:
        """The tokens that a sequence gains, and how many drafts among them are in the cache already."""
        if not draft.tokens:
            return [next_token(logits[0], greedy[0], seq.params, seq.rng)], 0
        if seq.params.temperature == 0 and self.verify is verify:
            n = 0
            while n < len(draft.tokens) and draft.tokens[n] == greedy[n]:
                n += 1
            return greedy[: n + 1], n
        p = probabilities(logits.double(), seq.params).cpu().numpy()
        return self.verify(draft.tokens, p, draft.laws(p.shape[1]), seq.rng)

    def _with_forks(self, seq: Sequence) -> list[Sequence]:
        """A sequence whose prompt is computed, and the further samples of the prompt that start from it."""
        family = [seq]
        while seq.forks_to_make > 0:
            seq.forks_to_make -= 1
            seed = None if seq.params.seed is None else seq.params.seed + len(family)
            seq_id = (seq.seq_id[0], len(family))
            child = Sequence(seq_id, seq.prompt, seq.params, np.random.default_rng(seed), list(seq.tokens))
            child.arrived = seq.arrived
            self.scheduler.fork(family[-1], child)
            family.append(child)
        return family

    def _extend(self, seq: Sequence, emitted: Seq[int]) -> list[int]:
        """Append emitted tokens up to the first one that ends the sequence; returns those."""
        stops = {*seq.params.stop_ids, *(() if seq.params.ignore_eos else self.model.cfg.eos_ids)}
        now, new = time.perf_counter(), []
        for token in emitted:
            new.append(int(token))
            if token in stops:
                seq.finish_reason = "stop"
            elif len(new) == seq.n_left:
                seq.finish_reason = "length"
            if seq.finish_reason is not None:
                break
        seq.tokens += new
        seq.token_times += [now] * len(new)
        seq.n_computed = min(seq.n_computed, len(seq.tokens) - 1)
        seq.n_draft_computed = min(seq.n_draft_computed, seq.n_computed)  # what was rejected is to be written over
        self._register(seq)
        if seq.finish_reason is not None:
            self.scheduler.finish(seq)
        return new

    def _register(self, seq: Sequence) -> None:
        if self.scheduler.prefix_cache is not None:
            self.scheduler.prefix_cache.register(seq.seq_id, seq.tokens, seq.n_computed)

    def _fail(self, seq: Sequence, error: str) -> RequestOutput:
        seq.finish_reason = "error"
        self.scheduler.finish(seq)
        return RequestOutput(*seq.seq_id, token_ids=seq.output, finish_reason="error", error=error)

    def _text(self, seq: Sequence) -> str:
        return self.tokenizer.decode(seq.output) if self.tokenizer is not None else ""

    def _record(
        self,
        step: Step,
        drafts: list[Draft],
        results: list[Result],
        n_context: int,
        schedule_seconds: float,
        seconds: float,
    ) -> None:
        n_decode = sum(len(seq.output) > len(new) for seq, new, _ in results)
        self.metrics.add(
            StepRecord(
                seconds=seconds,
                schedule_seconds=schedule_seconds,
                n_decode=n_decode,
                n_prefill_tokens=sum(step.n_tokens) - n_decode,
                n_context=n_context,
                n_running=len(self.scheduler.running),
                n_waiting=len(self.scheduler.waiting),
                kv_use=1 - self.manager.n_free / self.n_blocks,
                n_admitted_tokens=step.n_admitted,
                n_cached_tokens=step.n_cached,
                n_new_tokens=sum(len(new) for _, new, _ in results),
                n_drafted=sum(len(draft.tokens) for draft in drafts),
                n_accepted=sum(accepted for _, _, accepted in results),
                n_preempted=step.n_preempted,
            ),
            [seq for seq, _, _ in results],
        )


def _judge(verify_drafts: Verify | None, speculative_round: SpeculativeRound | None) -> Verify:
    """What judges the drafts: one of the two, or the engine's own."""
    if verify_drafts is not None and speculative_round is not None:
        raise ValueError("verify and speculative_round both judge the drafts: give one of them")
    if speculative_round is not None:
        return from_round(speculative_round)
    return verify if verify_drafts is None else verify_drafts


def _as_prompts(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt alone, a text or token ids, counts as a list of one."""
    if isinstance(prompts, str) or getattr(prompts, "ndim", None) == 1:
        return [prompts]  # type: ignore[list-item]
    each = list(prompts)
    return [each] if each and is_whole(each[0]) else each  # type: ignore[list-item, return-value]
