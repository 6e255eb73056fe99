"""Decode steps as CUDA graphs: a step's hundreds of kernels start with one call, so that a GPU never waits for Python.

A graph replays fixed kernels on fixed tensors. So there is one for each power of two of sequences and of blocks per
sequence, and a step that has fewer fills up with padding rows, which read and write the cache's last block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lessonlib.serving.attention import Group, bias, has_kernel, places
from lessonlib.serving.kv_cache import KVCache, write_kv
from lessonlib.serving.model import Decoder


def bucket(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


class DecodeStep:
    """One shape of a decode step: its input tensors, and the graph once it is captured.

    Args:
        model, cache: what to run; the cache's last block is for padding.
        B: rows.
        n_blocks: blocks per sequence.
    """

    def __init__(self, model: Decoder, cache: KVCache, B: int, n_blocks: int) -> None:
        self.model, self.cache, self.B, self.n_blocks = model, cache, B, n_blocks
        pad_block, self.block_size = cache.k.shape[1] - 1, cache.k.shape[2]
        # token, position, slot, length, table: one buffer, so that a step sends its inputs in one copy.
        padding = [0] * B + [0] * B + [pad_block * self.block_size] * B + [1] * B + [pad_block] * (B * n_blocks)
        self.padding = torch.tensor(padding)
        self.inputs = self.padding.clone().to(model.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.output: Tensor | None = None

    def logits(
        self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int], tables: Sequence[Sequence[int]]
    ) -> Tensor:
        """Logits of at most B sequences, shape (sequences, V)."""
        staged = self.padding.clone()
        head = staged[: 4 * self.B].view(4, self.B)
        head[:, : len(tokens)] = torch.tensor([tokens, positions, slots, [i + 1 for i in positions]])
        rows = [[*table, *[0] * (self.n_blocks - len(table))] for table in tables]
        staged[4 * self.B :].view(self.B, self.n_blocks)[: len(tokens)] = torch.tensor(rows)
        self.inputs.copy_(staged)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.output = self.compute()
        assert self.output is not None
        return self.output[: len(tokens)]

    @torch.inference_mode()
    def compute(self) -> Tensor:
        """The step itself, on the input tensors: no value is looked at, so that it can be captured."""
        tokens, positions, slots, lengths = self.inputs[: 4 * self.B].view(4, self.B)
        group = Group(slice(0, self.B), 1, False, self.inputs[4 * self.B :].view(self.B, self.n_blocks))
        if has_kernel(self.model.device):
            group.lengths = lengths
        else:
            shape, n_keys = self.model.cfg.shape, self.n_blocks * self.block_size
            group.places = places(group.tables, n_keys, self.block_size, shape.n_kv_heads)
            group.bias = bias(lengths, 1, n_keys, shape.group_size, self.model.dtype)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k_cache, v_cache = self.cache.k[layer], self.cache.v[layer]
            write_kv(k_cache, v_cache, slots, k, v)
            return group.attend(q, k, v, k_cache, v_cache)

        return self.model.logits(self.model.hidden(tokens, positions, attend))

    def capture(self) -> None:
        """Run twice on a stream of its own, as the CUDA documentation asks for, then record."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.compute()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = self.compute()


class DecodeGraphs:
    """The decode steps that were needed so far, by their shapes."""

    def __init__(self, model: Decoder, cache: KVCache) -> None:
        self.model, self.cache = model, cache
        self.steps: dict[tuple[int, int], DecodeStep] = {}

    def logits(
        self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int], tables: Sequence[Sequence[int]]
    ) -> Tensor:
        """Logits of one new token of each sequence, shape (sequences, V); captures a graph at a shape's first use."""
        shape = bucket(len(tokens)), bucket(max(map(len, tables)))
        if shape not in self.steps:
            self.steps[shape] = DecodeStep(self.model, self.cache, *shape)
            if self.model.device.type == "cuda":
                self.steps[shape].capture()
        return self.steps[shape].logits(tokens, positions, slots, tables)
