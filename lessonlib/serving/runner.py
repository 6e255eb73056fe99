"""Runs a model over the new tokens of many sequences, against one paged cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessonlib.serving import kv_cache
from lessonlib.serving.attention import Group, PagedAttention, group
from lessonlib.serving.block_manager import Allocator, blocks_needed
from lessonlib.serving.cuda_graphs import DecodeGraphs
from lessonlib.serving.kv_cache import KVCache, slot_mapping, write_kv
from lessonlib.serving.model import Decoder

SlotMapping = Callable[[Sequence[int], int, int, int], Sequence[int]]
WriteKV = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


@dataclass(frozen=True, slots=True)
class Work:
    """New tokens of one sequence, and the position of the first of them."""

    seq_id: Hashable
    tokens: list[int]
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class Runner:
    """A model and its cache.

    Args:
        model: what to run.
        n_blocks, block_size: of the cache.
        manager: whose block tables say where each sequence's blocks are.
        paged_attention: replaces the fast path, one call per layer and token.
        write_kv, slot_mapping: replace those of `kv_cache`.
    """

    def __init__(
        self,
        model: Decoder,
        n_blocks: int,
        block_size: int,
        manager: Allocator,
        paged_attention: PagedAttention | None = None,
        write_kv: WriteKV = write_kv,
        slot_mapping: SlotMapping = slot_mapping,
    ) -> None:
        self.model, self.n_blocks, self.block_size, self.manager = model, n_blocks, block_size, manager
        on_gpu = model.device.type == "cuda"
        # On a GPU one more block takes what the padding rows of a captured graph write.
        self.cache = KVCache(model.cfg.shape, n_blocks + on_gpu, block_size, model.dtype, model.device)
        replaced = paged_attention is not None or write_kv is not kv_cache.write_kv
        self.graphs = DecodeGraphs(model, self.cache) if on_gpu and not replaced else None
        self.paged_attention, self.write_kv, self.slot_mapping = paged_attention, write_kv, slot_mapping

    def logits(self, work: list[Work], n_wanted: list[int], n_layers: int | None = None) -> Tensor:
        """Compute new tokens, store their keys and values, and give the logits after the last ones.

        Args:
            work: new tokens of each sequence.
            n_wanted: after how many of a sequence's last tokens to give logits; 0 for none.
            n_layers: stop after so many layers (early exit).

        Returns:
            Shape (sum of n_wanted, V), float32, in the order of work.
        """
        if (
            self.graphs is not None
            and n_layers is None
            and all(len(w.tokens) == 1 for w in work)
            and min(n_wanted) == 1
        ):
            return self._graph_logits(work)
        order = sorted(range(len(work)), key=lambda i: (len(work[i].tokens), work[i].start > 0))
        hidden = self._hidden([work[i] for i in order], n_layers)
        row, ends = 0, [0] * len(work)
        for i in order:
            row = ends[i] = row + len(work[i].tokens)
        wanted = [row for end, n in zip(ends, n_wanted, strict=True) for row in range(end - n, end)]
        if wanted != list(range(len(hidden))):
            hidden = hidden[torch.tensor(wanted, dtype=torch.long, device=hidden.device)]
        return self.model.logits(hidden)

    def _graph_logits(self, work: list[Work]) -> Tensor:
        assert self.graphs is not None
        tables = [self.manager.block_tables[w.seq_id][: blocks_needed(w.end, self.block_size)] for w in work]
        slots = [
            self.slot_mapping(table, w.start, 1, self.block_size)[0] for w, table in zip(work, tables, strict=True)
        ]
        return self.graphs.logits([w.tokens[0] for w in work], [w.start for w in work], slots, tables)

    def _hidden(self, work: list[Work], n_layers: int | None) -> Tensor:
        device = self.model.device
        tables = [self.manager.block_tables[w.seq_id] for w in work]
        slots: list[int] = []
        for w, table in zip(work, tables, strict=True):
            slots.extend(self.slot_mapping(table, w.start, len(w.tokens), self.block_size))
        tokens = torch.tensor([t for w in work for t in w.tokens], device=device)
        positions = torch.tensor([i for w in work for i in range(w.start, w.end)], device=device)
        slots_at = torch.tensor(slots, dtype=torch.long, device=device)
        attend_new = self._one_by_one(work, tables) if self.paged_attention else self._by_groups(work, tables)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k_cache, v_cache = self.cache.k[layer], self.cache.v[layer]
            self.write_kv(k_cache, v_cache, slots_at, k, v)
            return attend_new(q, k, v, k_cache, v_cache)

        return self.model.hidden(tokens, positions, attend, n_layers)

    def _by_groups(self, work: list[Work], tables: list[list[int]]) -> Callable[..., Tensor]:
        used = [table[: blocks_needed(w.end, self.block_size)] for w, table in zip(work, tables, strict=True)]
        groups = group(
            [len(w.tokens) for w in work],
            [w.end for w in work],
            used,
            self.model.cfg.shape,
            self.block_size,
            self.model.final_norm,
        )

        def attend(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
            def one(g: Group) -> Tensor:
                return g.attend(q[g.rows], k[g.rows], v[g.rows], k_cache, v_cache)

            return one(groups[0]) if len(groups) == 1 else torch.cat([one(g) for g in groups])

        return attend

    def _one_by_one(self, work: list[Work], tables: list[list[int]]) -> Callable[..., Tensor]:
        lengths = [(table, i + 1) for w, table in zip(work, tables, strict=True) for i in range(w.start, w.end)]

        def attend(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
            assert self.paged_attention is not None
            return torch.stack(
                [self.paged_attention(q[row], k_cache, v_cache, *lengths[row]) for row in range(len(lengths))]
            )

        return attend
