"""The shapes of real language models: what their KV caches and decode steps are computed from.

Shapes are from the `config.json` that each model's authors published on the Hugging Face hub; parameter
counts are counted from those shapes. The one exception is Llama-3-8B, whose 8,030,261,248 parameters
the lessons round to 8.03e9.
"""

from __future__ import annotations

from dataclasses import dataclass

KV_FORMATS = (4, 2, 1, 0.5)  # bytes per cached number: fp32, bf16, fp8 or int8, int4


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a decoder-only transformer, and the number formats that it is served in.

    Args:
        name: what the model is called.
        n_layers: L, the number of layers.
        n_heads: a, query heads per layer.
        n_kv_heads: n_kv, key/value heads per layer: a for MHA, fewer for GQA, 1 for MQA.
        head_dim: d_h, the width of one head. Its own field, since it is not always hidden_size / n_heads.
        hidden_size: h, the model width.
        intermediate_size: width of the MLP (of one expert, in a mixture of experts).
        vocab_size: number of tokens in the vocabulary.
        n_params: Ψ, the number of parameters.
        bytes_per_weight: bytes per stored weight: 2 for bf16, 1 for fp8 or int8, 0.5 for int4.
        bytes_per_kv: bytes per cached number, likewise.
        kv_latent_dim: for multi-head latent attention (MLA), numbers in the latent that is cached per
            token and layer in place of K and V; None for every other model.
        rope_head_dim: with MLA, numbers of the key's rotary part, cached beside the latent.
        sliding_window: tokens that a sliding-window layer attends to; None where no layer has a window.
        n_sliding_layers: how many of the layers have that window.

    Raises:
        ValueError: a field is out of range, or two fields contradict each other.
    """

    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    n_params: float
    bytes_per_weight: float = 2
    bytes_per_kv: float = 2
    kv_latent_dim: int | None = None
    rope_head_dim: int = 0
    sliding_window: int | None = None
    n_sliding_layers: int = 0

    def __post_init__(self) -> None:
        sizes = (
            "n_layers",
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "hidden_size",
            "intermediate_size",
            "vocab_size",
        )
        for field in (*sizes, "kv_latent_dim", "sliding_window"):
            value = getattr(self, field)
            if value is None and field in ("kv_latent_dim", "sliding_window"):
                continue
            if not _is_int(value) or value < 1:
                raise ValueError(f"{field} must be a whole number of at least 1, got {value!r}")
        for field in ("rope_head_dim", "n_sliding_layers"):
            value = getattr(self, field)
            if not _is_int(value) or value < 0:
                raise ValueError(f"{field} must be a whole number of at least 0, got {value!r}")
        for field in ("n_params", "bytes_per_weight", "bytes_per_kv"):
            value = getattr(self, field)
            if isinstance(value, (str, bool)) or not 0 < value < float("inf"):
                raise ValueError(f"{field} must be a positive number, got {value!r}")
        if self.bytes_per_kv not in KV_FORMATS:
            raise ValueError(f"bytes_per_kv must be 4, 2, 1 or 0.5 (bytes, not bits), got {self.bytes_per_kv!r}")
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads must divide n_heads = {self.n_heads}, got {self.n_kv_heads}")
        if self.n_sliding_layers > self.n_layers:
            raise ValueError(
                f"n_sliding_layers must be at most n_layers = {self.n_layers}, got {self.n_sliding_layers}"
            )
        if (self.sliding_window is None) != (self.n_sliding_layers == 0):
            raise ValueError(
                "sliding_window and n_sliding_layers go together, "
                f"got {self.sliding_window!r} and {self.n_sliding_layers!r}"
            )
        if self.rope_head_dim and self.kv_latent_dim is None:
            raise ValueError(
                f"rope_head_dim is only for MLA: set kv_latent_dim too, got rope_head_dim = {self.rope_head_dim}"
            )

    @property
    def group_size(self) -> int:
        """g = a / n_kv, query heads that share one KV head."""
        return self.n_heads // self.n_kv_heads


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _models(*configs: ModelConfig) -> dict[str, ModelConfig]:
    return {cfg.name: cfg for cfg in configs}


# fmt: off
MODELS: dict[str, ModelConfig] = _models(
    # meta-llama. Llama-2-7B is the catalogue's plain multi-head attention (MHA).
    ModelConfig("Llama-2-7B", 32, 32, 32, 128, 4096, 11008, 32000, 6738415616),
    ModelConfig("Llama-2-70B", 80, 64, 8, 128, 8192, 28672, 32000, 68976648192),
    ModelConfig("Llama-3-8B", 32, 32, 8, 128, 4096, 14336, 128256, 8.03e9),
    ModelConfig("Llama-3-70B", 80, 64, 8, 128, 8192, 28672, 128256, 70553706496),
    ModelConfig("Llama-3.1-8B", 32, 32, 8, 128, 4096, 14336, 128256, 8030261248),
    ModelConfig("Llama-3.1-405B", 126, 128, 8, 128, 16384, 53248, 128256, 405853388800),
    ModelConfig("Llama-3.2-1B", 16, 32, 8, 64, 2048, 8192, 128256, 1235814400),
    ModelConfig("Llama-3.2-3B", 28, 24, 8, 128, 3072, 8192, 128256, 3212749824),
    # mistralai. Every layer of the first Mistral 7B has a window of 4,096 tokens.
    ModelConfig("Mistral-7B-v0.1", 32, 32, 8, 128, 4096, 14336, 32000, 7241732096,
                sliding_window=4096, n_sliding_layers=32),
    ModelConfig("Mistral-Small-24B", 40, 32, 8, 128, 5120, 32768, 131072, 23572403200),
    ModelConfig("Mixtral-8x7B", 32, 32, 8, 128, 4096, 14336, 32000, 46702792704),
    # Qwen. In Qwen3 the heads are wider than hidden_size / n_heads.
    ModelConfig("Qwen2.5-7B", 28, 28, 4, 128, 3584, 18944, 152064, 7615616512),
    ModelConfig("Qwen3-0.6B", 28, 16, 8, 128, 1024, 3072, 151936, 596049920),
    ModelConfig("Qwen3-4B", 36, 32, 8, 128, 2560, 9728, 151936, 4022468096),
    ModelConfig("Qwen3-8B", 36, 32, 8, 128, 4096, 12288, 151936, 8190735360),
    ModelConfig("Qwen3-32B", 64, 64, 8, 128, 5120, 25600, 151936, 32762123264),
    ModelConfig("Qwen3-30B-A3B", 48, 32, 4, 128, 2048, 768, 151936, 30532122624),
    # google. Gemma 2 alternates windowed and full layers; in Gemma 3 five of six have the window.
    ModelConfig("Gemma-2B", 18, 8, 1, 256, 2048, 16384, 256000, 2506172416),  # MQA
    ModelConfig("Gemma-7B", 28, 16, 16, 256, 3072, 24576, 256000, 8537680896),
    ModelConfig("Gemma-2-2B", 26, 8, 4, 256, 2304, 9216, 256000, 2614341888,
                sliding_window=4096, n_sliding_layers=13),
    ModelConfig("Gemma-2-9B", 42, 16, 8, 256, 3584, 14336, 256000, 9241705984,
                sliding_window=4096, n_sliding_layers=21),
    ModelConfig("Gemma-3-4B", 34, 8, 4, 256, 2560, 10240, 262208, 3880263168,
                sliding_window=1024, n_sliding_layers=29),
    ModelConfig("Gemma-3-27B", 62, 32, 16, 128, 5376, 21504, 262208, 27009346304,
                sliding_window=1024, n_sliding_layers=52),
    # openai. Every second layer keeps 128 tokens.
    ModelConfig("gpt-oss-20B", 24, 64, 8, 64, 2880, 2880, 201088, 20914757184,
                sliding_window=128, n_sliding_layers=12),
    # microsoft, tiiuae (MQA), HuggingFaceTB
    ModelConfig("Phi-4", 40, 40, 10, 128, 5120, 17920, 100352, 14659507200),
    ModelConfig("Falcon-7B", 32, 71, 1, 64, 4544, 18176, 65024, 6921720704),
    ModelConfig("SmolLM2-135M", 30, 9, 3, 64, 576, 1536, 49152, 134515008),
    ModelConfig("SmolLM2-360M", 32, 15, 5, 64, 960, 2560, 49152, 361821120),
    ModelConfig("SmolLM2-1.7B", 24, 32, 32, 64, 2048, 8192, 49152, 1711376384),
    # deepseek-ai. MLA: the heads are rebuilt from one cached latent of 512 numbers and 64 rotary ones.
    ModelConfig("DeepSeek-V2", 60, 128, 128, 128, 5120, 12288, 102400, 235741434880,
                kv_latent_dim=512, rope_head_dim=64),
    ModelConfig("DeepSeek-V3", 61, 128, 128, 128, 7168, 18432, 129280, 671026404352,
                kv_latent_dim=512, rope_head_dim=64),
)
# fmt: on
