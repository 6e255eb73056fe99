"""The rules of prefix caching and preemption, on top of those of a block allocator.

The rules follow which block holds which part of a prompt. Where the same content stands in two blocks, systems
differ in which they serve and which they can still find once one of the two is reused: there both answers pass.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lessonlib.check.block_rules import WHY, BlockRules, BrokenRule, Fault, State, is_whole, show_pair
from lessonlib.check.harness import show
from lessonlib.check.objects import Call, Seen

Prefix = tuple[int, ...]  # all tokens of a prompt up to the end of a block

PREFIX_WHY = {
    "no-sharing": "Another sequence holds a full block with these tokens and the same tokens before: map it.",
    "stops-too-early": "The search stopped too early: go on to the last full block before the prompt's last token.",
    "forgotten-when-freed": (
        "The block was forgotten when it was freed. Its content stays until the block is reused, and so must its key."
    ),
    "stale-hit": "The block has been reused since: it holds other tokens now. Forget a key when its block is taken.",
    "not-chained": (
        "The block holds the same tokens after another beginning. Keys and values depend on everything before, so the "
        "key must, too."
    ),
    "weak-key": (
        "The block holds other tokens. The key must tell any two beginnings apart: all tokens count, and their order."
    ),
    "shares-partial-block": "Only full blocks are shared by content: a partial block is still written.",
    "whole-prompt-cached": (
        "The last token must be computed, since its output gives the next token: at most len(tokens) - 1 tokens count "
        "as cached, and the block of the last token is a new one."
    ),
    "counts-blocks": "That is the number of blocks. Return the number of tokens that prefill can skip.",
    "no-count": "Return how many tokens are cached, 0 if none: the scheduler must know what is left to prefill.",
    "wrong-count": "The number returned must be that of the tokens in the cached blocks that were mapped.",
    "hits-counted-as-new": (
        "Blocks that others hold anyway are no new ones: count only those that must come from the free ones."
    ),
    "hit-on-free-block": (
        "A cached block that nobody holds is a free block: mapping it uses one up. Take it out of the free ones."
    ),
    "hits-without-counts": "The new sequence holds the cached blocks too: each count goes up by 1.",
    "evicts-most-recent": (
        "A block was reused that had been free for a shorter time than another: the least recently used goes first."
    ),
    "evicts-prefix-first": (
        "The start of a prompt was reused before its end. Free a table from its last block to its first, so that what "
        "many prompts share lives longest."
    ),
    "evicts-before-unused": "Cached content was thrown away while a block was free that had never been used.",
    "preempts-oldest": "The newest sequence goes first: the oldest keep the progress that they have made.",
    "preempts-another": "The newest sequence is the one that was allocated or forked last.",
    "prompt-only": "Generated tokens are in the cache too: to go on, prompt and generated tokens must come back.",
}


class PrefixRules(BlockRules):
    """Follows one allocator with a prefix cache through its calls."""

    why: ClassVar[dict[str, str]] = {**WHY, **PREFIX_WHY}

    def __init__(self, n_blocks: int, block_size: int) -> None:
        super().__init__(n_blocks, block_size)
        self.content: dict[int, Prefix] = {}  # findable blocks
        self.ever: set[tuple[int, Prefix]] = set()
        self.doubtful: set[Prefix] = set()  # one of several blocks with this content is gone
        self.never_used = set(range(n_blocks))
        self.freed: dict[int, tuple[int, int]] = {}  # block -> when, and how far from the end of its table
        self.order: list[Any] = []
        self.clock = 0

    # --- what is in the cache ---------------------------------------------------------------------------

    def prefixes(self, tokens: list[int]) -> list[Prefix]:
        return [tuple(tokens[:end]) for end in range(self.block_size, len(tokens) + 1, self.block_size)]

    def blocks_with(self, prefix: Prefix) -> list[int]:
        return [block for block, content in self.content.items() if content == prefix]

    def hits(self, tokens: list[int]) -> tuple[int, int]:
        """How many leading blocks must be found, and how many may be."""
        must = may = 0
        for prefix in self.prefixes(tokens[:-1]):
            if not self.blocks_with(prefix):
                break
            must += must == may and prefix not in self.doubtful
            may += 1
        return must, may

    def n_needed(self, tokens: Any) -> int:
        return super().n_needed(self.length_of(tokens))

    def length_of(self, tokens: Any) -> int:
        return len(tokens) if isinstance(tokens, list) else tokens

    def _range_needed(self, tokens: list[int]) -> tuple[int, int]:
        """The fewest and the most free blocks that an allocation may use up."""
        must, may = self.hits(tokens)
        held = [[self.state.counts[b] > 0 for b in self.blocks_with(p)] for p in self.prefixes(tokens)[:may]]
        n = self.n_needed(tokens)
        return n - sum(map(any, held)), n - sum(map(all, held[:must]))

    # --- calls that must fail ---------------------------------------------------------------------------

    def refusal(self, call: Call) -> tuple[str, ...]:
        if call.method == "preempt":
            return () if self.order else ("ValueError", "LookupError", "OutOfBlocks")
        if call.method != "allocate" or not isinstance(call.args[1], list):
            return super().refusal(call)
        ids = ("KeyError", "ValueError") if self._is_repeated(call) else ()
        return (*ids, "OutOfBlocks") if self._range_needed(call.args[1])[0] > self.state.n_free else ids

    def _judge_error(self, call: Call, seen: Seen, after: State, wanted: tuple[str, ...]) -> None:
        if not wanted and call.method == "allocate" and isinstance(call.args[1], list):
            most = self._range_needed(call.args[1])[1]
            wanted = ("OutOfBlocks",) if most > self.state.n_free else ()
        super()._judge_error(call, seen, after, wanted)

    def _lost_blocks(self, call: Call, seen: Seen) -> str | None:
        if call.method == "allocate" and self.n_needed(call.args[1]) > self.state.n_free:
            return "hits-counted-as-new"
        return super()._lost_blocks(call, seen)

    # --- calls that must succeed ------------------------------------------------------------------------

    def judge(self, call: Call, seen: Seen) -> Fault | None:
        before = self.state
        fault = super().judge(call, seen)
        if fault is None and not seen.errors:
            self._follow(call, before, self.state)
        return fault

    def judge_result(self, call: Call, value: Any, after: State) -> None:
        if call.method == "preempt":
            self._judge_preempt(value, after)
            call = Call("free", (self.order[-1],))
        super().judge_result(call, value, after)
        self._judge_eviction(call, after)

    def _judge_allocate(self, call: Call, value: Any, after: State) -> None:
        seq_id, tokens = call.args
        if not isinstance(tokens, list):
            super()._judge_allocate(call, value, after)
            if value not in (None, 0):
                raise BrokenRule(f"returned {show(value)}", "0: without token ids nothing can be found", "wrong-count")
            return
        table = after.tables[seq_id]
        self.judge_length(table, seq_id, len(tokens), self.n_needed(tokens))
        n_hits = self._judge_count(tokens, table, value)
        shown = f"returned {value}, and block_tables[{seq_id!r}] = {show(table)}"
        self._judge_hits(tokens, table[:n_hits], shown)
        self._judge_new(tokens, table, n_hits, shown)
        self.judge_new_blocks(table, table[n_hits:], seq_id)
        must, _ = self.hits(tokens)
        if n_hits < must:
            blocks = self.blocks_with(self.prefixes(tokens)[n_hits])
            idle = not any(self.state.counts[block] for block in blocks)
            slug = "forgotten-when-freed" if idle else "stops-too-early" if n_hits else "no-sharing"
            why = f"{must * self.block_size} cached tokens: block {blocks[0]} holds tokens {self._span(n_hits)}, too"
            raise BrokenRule(shown, why, slug)

    def _span(self, i: int) -> str:
        return f"{i * self.block_size} to {(i + 1) * self.block_size - 1}"

    def _judge_count(self, tokens: list[int], table: list[int], value: Any) -> int:
        """Judge the number of cached tokens that came back, and return it in blocks."""
        cap, expected = (len(tokens) - 1) // self.block_size, f"{self.hits(tokens)[0] * self.block_size} cached tokens"
        mapped = [block in self.blocks_with(p) for block, p in zip(table, self.prefixes(tokens), strict=False)]
        n_mapped = [*mapped, False].index(False)
        came = f"returned {show_pair(value)}, and the table is {show(table)}"
        if value is None:
            raise BrokenRule(came, expected, "no-count")
        if not is_whole(value):
            raise BrokenRule(came, expected)
        count = int(value)
        if count < 0 or count % self.block_size or count > cap * self.block_size:
            whole = count >= len(tokens) - 1 and n_mapped > cap
            slug = "whole-prompt-cached" if whole else "counts-blocks" if count == n_mapped > 0 else "wrong-count"
            raise BrokenRule(came, expected, slug)
        if 0 < count == min(n_mapped, cap) and count // self.block_size < self.hits(tokens)[0]:
            raise BrokenRule(came, expected, "counts-blocks")
        return count // self.block_size

    def _judge_hits(self, tokens: list[int], hits: list[int], shown: str) -> None:
        for i, (block, prefix) in enumerate(zip(hits, self.prefixes(tokens), strict=False)):
            content = self.content.get(block)
            if content == prefix:
                continue
            slug = "wrong-count"
            if (block, prefix) in self.ever:
                slug = "stale-hit"
            elif content is not None:
                alike = content[-self.block_size :] == prefix[-self.block_size :]
                slug = "not-chained" if alike else "weak-key"
            elif 0 <= block < self.n_blocks and self.state.counts[block]:
                slug = "shares-partial-block"
            expected = f"{self.hits(tokens)[1] * self.block_size} cached tokens: no block holds tokens {self._span(i)}"
            raise BrokenRule(shown, f"{expected} and all before them", slug)

    def _judge_new(self, tokens: list[int], table: list[int], n_hits: int, shown: str) -> None:
        prefixes = self.prefixes(tokens)
        for i, block in enumerate(table[n_hits:], start=n_hits):
            if block in table[:n_hits]:
                raise BrokenRule(shown, "each block once", "hit-on-free-block")
            if not 0 <= block < self.n_blocks or not self.state.counts[block]:
                continue
            if i >= len(prefixes):
                why = f"a block of its own for tokens from {i * self.block_size} on: they do not fill one"
                raise BrokenRule(shown, why, "shares-partial-block")
            if block in self.blocks_with(prefixes[i]):
                slug = "whole-prompt-cached" if i == (len(tokens) - 1) // self.block_size else "wrong-count"
                raise BrokenRule(
                    shown, f"a block of its own for tokens {self._span(i)}, or a count that has them", slug
                )

    def _wrong_count(self, call: Call, block: int, came: int, right: int) -> str:
        if call.method == "allocate" and came < right and block in self.content and right > 1:
            return "hits-without-counts"
        return super()._wrong_count(call, block, came, right)

    def _wrong_n_free(self, call: Call, came: int, right: int) -> str:
        if call.method == "allocate" and came > right and isinstance(call.args[1], list) and self.hits(call.args[1])[1]:
            return "hit-on-free-block"
        return super()._wrong_n_free(call, came, right)

    def _judge_preempt(self, value: Any, after: State) -> None:
        newest = self.order[-1]
        expected = (newest, self.state.lengths[newest])
        gone = [seq_id for seq_id in self.state.tables if seq_id not in after.tables]
        came = f"returned {show_pair(value)}, and the tables of {show(list(after.tables))} are left"
        if gone != [newest]:
            slug = "preempts-oldest" if gone == self.order[:1] else "preempts-another"
            raise BrokenRule(came, f"{expected}: {newest!r} is the newest", slug)
        if value != list(expected):
            shorter = isinstance(value, list) and value[:1] == [newest] and len(value) == 2 and value[1] < expected[1]
            raise BrokenRule(f"returned {show_pair(value)}", str(expected), "prompt-only" if shorter else None)

    # --- what is thrown away ----------------------------------------------------------------------------

    def _taken(self, call: Call, before: State, after: State) -> list[int]:
        """Blocks that were free and got new content."""
        taken = [b for b in range(self.n_blocks) if after.counts[b] and not before.counts[b]]
        if call.method == "allocate" and isinstance(call.args[1], list):
            table, prefixes = after.tables[call.args[0]], self.prefixes(call.args[1][:-1])
            hits = {b for b, prefix in zip(table, prefixes, strict=False) if self.content.get(b) == prefix}
            taken = [block for block in taken if block not in hits]
        return taken

    def _is_certain(self, block: int) -> bool:
        """Whether a block is the only one with its content, so that every allocator can find it."""
        prefix = self.content.get(block)
        return prefix is not None and prefix not in self.doubtful and len(self.blocks_with(prefix)) == 1

    def _judge_eviction(self, call: Call, after: State) -> None:
        taken = self._taken(call, self.state, after)
        evicted = [block for block in taken if self._is_certain(block)]
        spared = [
            b for b in range(self.n_blocks) if not after.counts[b] and not self.state.counts[b] and self._is_certain(b)
        ]
        if not evicted:
            return
        came = f"took block {evicted[0]}, which holds tokens {show(list(self.content[evicted[0]]))}"
        if self.never_used - set(taken):
            unused = sorted(self.never_used - set(taken))
            raise BrokenRule(came, f"one of the blocks {show(unused)}, never used before", "evicts-before-unused")
        for block in evicted:
            for other in spared:
                if self.freed[other] < self.freed[block]:
                    same_call = self.freed[other][0] == self.freed[block][0]
                    came = f"took block {block}, which holds tokens {show(list(self.content[block]))}"
                    why = "of the same table, and nearer to its end" if same_call else "free for longer"
                    slug = "evicts-prefix-first" if same_call else "evicts-most-recent"
                    raise BrokenRule(came, f"block {other} first: {why}", slug)

    def _follow(self, call: Call, before: State, after: State) -> None:
        """Bring the picture of the cache up to date."""
        self.clock += 1
        for block in self._taken(call, before, after):
            old = self.content.pop(block, None)
            if old is not None:
                (self.doubtful.add if self.blocks_with(old) else self.doubtful.discard)(old)
        if call.method == "allocate" and isinstance(call.args[1], list):
            for block, prefix in zip(after.tables[call.args[0]], self.prefixes(call.args[1]), strict=False):
                if self.content.get(block) != prefix:
                    self.content[block] = prefix
                    self.ever.add((block, prefix))
                    self.doubtful.discard(prefix)
        self.never_used -= {block for block, count in enumerate(after.counts) if count}
        for seq_id in set(before.tables) - set(after.tables):
            self.order.remove(seq_id)
            for i, block in enumerate(before.tables[seq_id]):
                if not after.counts[block]:
                    self.freed[block] = (self.clock, -i)
        self.order += [seq_id for seq_id in after.tables if seq_id not in before.tables]
