"""A Llama-family decoder on a flat list of tokens; where they attend to is the caller's business."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lessonlib.serving.config import DecoderConfig

# attend(layer, q, k, v) -> output: q and output (T, a, d_h), k and v of the same new tokens (T, n_kv, d_h)
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def packed(weight: Tensor) -> Tensor:
    """A matrix in the layout that `linear` reads fastest: on a GPU as it is, on a CPU as its maker's library likes it.

    Measured at 1 to 32 rows, float32, against row by row. On Intel's CPUs MKL reads a matrix that lies column by
    column at the speed of memory, and 8 rows take half the time. On others MKL has slow paths, and oneDNN's own layout
    is two to three times as fast.
    """
    if weight.device.type != "cpu":
        return weight
    if intel():
        return weight.t().contiguous().t()
    return torch.ops.mkldnn._reorder_linear_weight(weight) if ONEDNN else weight


@functools.cache
def intel() -> bool:
    """Whether this machine's CPU is Intel's, where that can be told."""
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "GenuineIntel" in cpuinfo.read_text()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, for x of shape (T, D) and a weight of shape (F, D) that may be packed."""
    if weight.is_mkldnn:
        # oneDNN reads a float32 matrix a fifth faster for four rows than for one.
        rows = x.expand(4, -1) if len(x) == 1 and x.dtype == torch.float32 else x
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")[: len(x)]
    return F.linear(x, weight, bias)


@dataclass(slots=True)
class Layer:
    """The weights of one block. Q, K and V are one matrix, as are gate and up: fewer, longer reads."""

    norm1: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Weights of a decoder and its forward pass.

    Args:
        cfg: the decoder's shape and details.
        weights: tensors by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`).
        dtype: number format to compute in.
        device: where the weights go.

    Raises:
        ValueError: a tensor is missing, or its shape is not that of cfg.
    """

    def __init__(
        self,
        cfg: DecoderConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> None:
        self.cfg, self.dtype, self.device = cfg, dtype, torch.device(device)
        s = cfg.shape
        self._source = weights
        self.embedding = self._take("model.embed_tokens.weight", s.vocab_size, s.hidden_size)
        self.layers = [self._layer(f"model.layers.{i}.") for i in range(s.n_layers)]
        self.final_norm = self._take("model.norm.weight", s.hidden_size)
        head = self.embedding if cfg.tied_embeddings else self._take("lm_head.weight", s.vocab_size, s.hidden_size)
        self.head = packed(head)
        del self._source
        self.cos, self.sin = (t.to(self.device, dtype) for t in rotary_tables(cfg))

    @property
    def n_bytes(self) -> int:
        """Bytes of weights that one step reads: everything, an untied embedding table left out."""
        read = [self.head, self.final_norm]
        for layer in self.layers:
            read += [t for t in (getattr(layer, name) for name in Layer.__slots__) if t is not None]
        return sum(t.numel() * t.element_size() for t in read)

    @torch.inference_mode()
    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend, n_layers: int | None = None) -> Tensor:
        """Run the blocks.

        Args:
            tokens: shape (T,), the new tokens of all sequences, one after the other.
            positions: shape (T,), each token's place in its own sequence, from 0.
            attend: stores the new keys and values and returns what the queries see; see `attention`.
            n_layers: stop after so many blocks (early exit); all of them by default.

        Returns:
            Shape (T, h), before the final norm.
        """
        eps = self.cfg.norm_eps
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        x = F.embedding(tokens, self.embedding)
        for i, layer in enumerate(self.layers[:n_layers]):
            q, k, v = self._qkv(layer, F.rms_norm(x, x.shape[-1:], layer.norm1, eps), cos, sin)
            x = x + linear(attend(i, q, k, v).flatten(1), layer.out)
            normed = F.rms_norm(x, x.shape[-1:], layer.norm2, eps)
            gate, up = linear(normed, layer.gate_up).chunk(2, dim=1)
            x = x + linear(F.silu(gate) * up, layer.down)
        return x

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and output matrix: (n, h) to (n, vocabulary), in float32."""
        x = F.rms_norm(hidden, hidden.shape[-1:], self.final_norm, self.cfg.norm_eps)
        return linear(x, self.head).float()

    @torch.inference_mode()
    def dense_logits(self, tokens: list[int]) -> Tensor:
        """Logits at every position of one sequence, without any cache: what the paged engine must agree with."""
        ids = torch.tensor(tokens, device=self.device)
        hidden = self.hidden(ids, torch.arange(len(tokens), device=self.device), _attend_densely)
        return self.logits(hidden)

    def _qkv(self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s = self.cfg.shape
        heads = linear(x, layer.qkv, layer.qkv_bias).unflatten(1, (-1, s.head_dim))
        n_rotated = s.n_heads + s.n_kv_heads
        qk, v = heads[:, :n_rotated], heads[:, n_rotated:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk[:, : s.n_heads], qk[:, s.n_heads :]
            q = F.rms_norm(q, q.shape[-1:], layer.q_norm, self.cfg.norm_eps)
            k = F.rms_norm(k, k.shape[-1:], layer.k_norm, self.cfg.norm_eps)
            qk = torch.cat((q, k), dim=1)
        qk = qk * cos + qk.roll(s.head_dim // 2, -1) * sin
        return qk[:, : s.n_heads], qk[:, s.n_heads :], v

    def _layer(self, prefix: str) -> Layer:
        cfg, s = self.cfg, self.cfg.shape
        h, d, mlp = s.hidden_size, s.head_dim, s.intermediate_size
        rows = {"q_proj": s.n_heads * d, "k_proj": s.n_kv_heads * d, "v_proj": s.n_kv_heads * d}
        attn = prefix + "self_attn."
        gate_up = torch.cat([self._take(f"{prefix}mlp.{name}.weight", mlp, h) for name in ("gate_proj", "up_proj")])
        return Layer(
            norm1=self._take(prefix + "input_layernorm.weight", h),
            qkv=packed(torch.cat([self._take(f"{attn}{name}.weight", n, h) for name, n in rows.items()])),
            qkv_bias=torch.cat([self._take(f"{attn}{p}.bias", n) for p, n in rows.items()]) if cfg.qkv_bias else None,
            q_norm=self._take(attn + "q_norm.weight", d) if cfg.qk_norm else None,
            k_norm=self._take(attn + "k_norm.weight", d) if cfg.qk_norm else None,
            out=packed(self._take(attn + "o_proj.weight", h, s.n_heads * d)),
            norm2=self._take(prefix + "post_attention_layernorm.weight", h),
            gate_up=packed(gate_up),
            down=packed(self._take(prefix + "mlp.down_proj.weight", h, mlp)),
        )

    def _take(self, name: str, *shape: int) -> Tensor:
        tensor = self._source.get(name)
        if tensor is None or tuple(tensor.shape) != shape:
            found = "is missing" if tensor is None else f"has shape {tuple(tensor.shape)}"
            raise ValueError(f"weight {name} should have shape {shape}, and {found}")
        return tensor.detach().to(self.device, self.dtype).contiguous()


def rotary_tables(cfg: DecoderConfig) -> tuple[Tensor, Tensor]:
    """cos and signed sin of every position's angles, each of shape (max_positions, d_h).

    RoPE turns the pair (x_i, x_{i + d_h/2}) by position · θ^(-2i/d_h). With the sign of the first half of the sines
    turned, that is x · cos + (x, its halves swapped) · sin.
    """
    half = cfg.shape.head_dim // 2
    freq = cfg.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    if cfg.rope_scaling is not None:
        freq = _stretch_slow_rotations(freq, cfg.rope_scaling)
    angles = torch.outer(torch.arange(cfg.max_positions, dtype=torch.float64), freq).float()
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=1), torch.cat((-sin, sin), dim=1)


def _stretch_slow_rotations(freq: Tensor, scaling: Mapping[str, float]) -> Tensor:
    """Llama 3.1's rotary scaling: rotations slower than the old context are slowed by `factor`, fast ones are kept."""
    old = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = old * freq / (2 * math.pi)  # full turns within the old context
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * freq + (1 - kept) * freq / scaling["factor"]


def _attend_densely(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def weight_shapes(cfg: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors, by their Hugging Face names."""
    s = cfg.shape
    q, kv, h, mlp = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim, s.hidden_size, s.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (s.vocab_size, h), "model.norm.weight": (h,)}
    if not cfg.tied_embeddings:
        shapes["lm_head.weight"] = (s.vocab_size, h)
    for i in range(s.n_layers):
        attn, rest = f"model.layers.{i}.self_attn.", f"model.layers.{i}."
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{attn}{name}_proj.weight"] = (rows, h)
            if cfg.qkv_bias:
                shapes[f"{attn}{name}_proj.bias"] = (rows,)
            if cfg.qk_norm and name != "v":
                shapes[f"{attn}{name}_norm.weight"] = (s.head_dim,)
        shapes |= {attn + "o_proj.weight": (h, q), rest + "mlp.down_proj.weight": (h, mlp)}
        shapes |= {f"{rest}mlp.{name}_proj.weight": (mlp, h) for name in ("gate", "up")}
        shapes |= {f"{rest}{name}_layernorm.weight": (h,) for name in ("input", "post_attention")}
    return shapes


def random_weights(cfg: DecoderConfig, seed: int = 0, scale: float = 0.05) -> dict[str, Tensor]:
    """Weights of a model that knows nothing, by their Hugging Face names: for tests and for measuring speed."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(shape, generator=rng) + (1.0 if "norm" in name else 0.0)
        for name, shape in weight_shapes(cfg).items()
    }
