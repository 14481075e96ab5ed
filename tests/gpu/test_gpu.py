"""On a GPU: models learn, runs resume exactly, and results equal those of the CPU. Run with ``make test-gpu``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import headway
from headway import kernels
from headway.data.batching import PaddedBatch
from headway.decode.request import DecodingOptions
from headway.engine.accelerate import accelerate
from headway.errors import ConfigError
from headway.inspection.inspect_text import inspect
from headway.models.registry import build_model
from headway.models.transformer import TransformerConfig
from headway.nn import Causal, DocumentMask, MultiHeadAttention, causal_mask
from headway.predict import LanguageModel, MaskedLanguageModel, Translator, load_translator
from headway.predict.classification.classifier import Classifier
from headway.tasks import parse_recipe, train
from headway.tasks.classification import ClassificationObjective
from headway.tasks.translation import TranslationObjective
from headway.text.base import EOS, NUM_SPECIAL, PAD
from headway.training.recipe import Recipe
from headway.training.stream import to_device
from headway.weights import read_weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; run with make test-gpu")

WORDS = [f"wort{number}" for number in range(40)]
LENGTHS = range(1, 30)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences of many lengths, and as their translations the same words in capitals."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(1)
    for name, count in (("train", 600), ("dev", 40)):
        lines = [" ".join(rng.choices(WORDS, k=rng.choice(LENGTHS))) for _ in range(count)]
        (folder / f"{name}.de").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        (folder / f"{name}.en").write_text("".join(line.upper() + "\n" for line in lines), encoding="utf-8")
    return folder


def recipe(corpus: Path, steps: int, compiles: str = "off", precision: str = "auto") -> Recipe:
    """Train a model with dropout, in micro-batches of many shapes."""
    sections = {
        "data": {
            "folder": str(corpus),
            "train": [{"files": ["train.de", "train.en"]}],
            "dev": {"files": ["dev.de", "dev.en"]},
            "max_tokens": 800,
        },
        "tokenizer": {"kind": "whitespace"},
        "model": {"preset": "tiny", "dropout": 0.1},
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 20},
        "training": {
            "steps": steps,
            "accumulate": 2,
            "device": "cuda",
            "precision": precision,
            "compile": compiles,
            "log_every": 10,
        },
        "validation": {"every": 20, "metric": "loss"},
        "checkpoints": {"every": 10, "keep": 2, "average": 0},
    }
    return parse_recipe(sections, "test")


def weights(run: Path) -> dict[str, Tensor]:
    newest = max((run / "checkpoints").glob("step-*"), key=lambda folder: int(folder.name[5:]))
    return {**read_weights(newest / "model.safetensors"), **read_weights(newest / "optimizer.safetensors")}


# Both warnings come from PyTorch, when torch.compile is imported and when it traces.
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
@pytest.mark.parametrize(
    ("compiles", "precision"),
    [("off", "float32"), ("off", "bfloat16"), pytest.param("on", "bfloat16", marks=pytest.mark.slow)],
)
def test_a_resumed_run_equals_an_undisturbed_one(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: str, precision: str
) -> None:
    if compiles == "on":
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # torch.compile cannot trace its checks
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    train(recipe(corpus, 40, compiles, precision), straight)
    train(recipe(corpus, 20, compiles, precision), resumed)
    train(recipe(corpus, 40, compiles, precision), resumed)
    mine, yours = weights(straight), weights(resumed)
    assert mine.keys() == yours.keys()
    different = [name for name in mine if not torch.equal(mine[name], yours[name])]
    assert not different


def test_a_model_learns_and_translates_as_on_the_cpu(corpus: Path, tmp_path: Path) -> None:
    train(recipe(corpus, 500), tmp_path)
    lines = (corpus / "dev.de").read_text(encoding="utf-8").splitlines()
    there, here = (load_translator(tmp_path / "best", device=device, precision="float32") for device in ("cuda", "cpu"))
    for beam_size in (1, 4):
        options = DecodingOptions(beam_size=beam_size)
        for mine, yours in zip(there.translate(lines, options), here.translate(lines, options), strict=True):
            assert mine.text == yours.text
            assert mine.score == pytest.approx(yours.score, abs=1e-3)
    assert sum(each.text == line.upper() for each, line in zip(here.translate(lines), lines, strict=True)) > 20


def padded_batch() -> PaddedBatch:
    """Return five sentences of different lengths, with padding at the end."""
    rows = np.full((5, 24), PAD)
    for row, length in zip(rows, (3, 17, 9, 1, 24), strict=True):
        row[:length] = np.random.default_rng(length).integers(NUM_SPECIAL, 50, length)
    return PaddedBatch(rows, rows)


def test_the_loss_and_its_gradient_equal_those_of_the_cpu() -> None:
    config = TransformerConfig.preset("tiny").model_copy(update={"dropout": 0.0})
    model = accelerate(build_model(config, 50, 50))
    found = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        moved = deepcopy(model).to(device)
        loss = TranslationObjective(moved, 0.1)(to_device(padded_batch(), device))
        torch.autograd.backward(loss)
        gradients = {name: each.grad.cpu() for name, each in moved.named_parameters() if each.grad is not None}
        found.append((loss.detach().cpu(), gradients))
    (mine, my_gradients), (yours, your_gradients) = found
    torch.testing.assert_close(mine, yours, rtol=1e-4, atol=1e-4)
    assert my_gradients.keys() == your_gradients.keys()
    for name, gradient in my_gradients.items():
        torch.testing.assert_close(gradient, your_gradients[name], rtol=1e-3, atol=1e-3)


TEXTS = ["ein rotes Haus", "der", "das grüne Haus und der Baum"]


def test_a_classifier_answers_as_on_the_cpu(make_classifier: Callable[..., Classifier]) -> None:
    here = make_classifier()
    there = Classifier(deepcopy(here.bundle), device="cuda")
    for mine, yours in zip(there.classify(TEXTS), here.classify(TEXTS), strict=True):
        assert mine.probabilities == pytest.approx(yours.probabilities, abs=1e-5)


def test_class_weights_are_on_the_model_s_device(make_classifier: Callable[..., Classifier]) -> None:
    network = deepcopy(make_classifier().bundle.model).to("cuda")
    tokens = to_device(PaddedBatch(np.array([[5, 6, EOS], [8, EOS, PAD]]), np.array([[1], [3]])), torch.device("cuda"))
    assert torch.isfinite(ClassificationObjective(network, 0.0, class_weights=[1.0, 2.0, 3.0])(tokens))


def test_a_language_model_scores_and_continues_as_on_the_cpu(make_language_model: Callable[..., LanguageModel]) -> None:
    here = make_language_model()
    there = LanguageModel(deepcopy(here.bundle), device="cuda")
    for mine, yours in zip(there.score(TEXTS), here.score(TEXTS), strict=True):
        assert mine.log_probability == pytest.approx(yours.log_probability, rel=1e-4)
    for beam_size in (1, 3):
        options = {"temperature": 0, "beam_size": beam_size, "max_new_tokens": 8}
        assert [each[0].text for each in there.generate(TEXTS, **options)] == [
            each[0].text for each in here.generate(TEXTS, **options)
        ]


def test_a_masked_model_fills_as_on_the_cpu(make_masked_language_model: Callable[..., MaskedLanguageModel]) -> None:
    here = make_masked_language_model()
    there = MaskedLanguageModel(deepcopy(here.bundle), device="cuda")
    mine, yours = (model.fill("ein [MASK] Haus", top=3) for model in (there, here))
    assert [each.text for each in mine] == [each.text for each in yours]
    assert [each.probability for each in mine] == pytest.approx([each.probability for each in yours], abs=1e-5)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_causal_attention_is_flash_attention(num_kv_heads: int) -> None:
    """PyTorch raises an error if attention needs any other form, as with a mask tensor or repeated heads in float32."""
    torch.manual_seed(0)
    plain = MultiHeadAttention(256, 4, num_kv_heads=num_kv_heads).cuda()
    layer, x = accelerate(deepcopy(plain)), torch.randn(2, 64, 256, device="cuda")
    expected = plain(x, mask=causal_mask(64, "cuda"))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]), torch.autocast("cuda", torch.bfloat16):
        found = layer(x, mask=Causal())
        found.float().sum().backward()
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_attention_within_documents_equals_the_plain_form(num_kv_heads: int) -> None:
    torch.manual_seed(0)
    plain = MultiHeadAttention(64, 4, num_kv_heads=num_kv_heads).cuda()
    layer, x = accelerate(deepcopy(plain)), torch.randn(3, 33, 64, device="cuda")
    documents = DocumentMask.from_starts(torch.rand(3, 33, device="cuda") < 0.2)
    for mask in (documents, documents.with_tensor()):
        torch.testing.assert_close(layer(x, mask=mask), plain(x, mask=documents.to_tensor()), rtol=1e-3, atol=1e-3)


def test_every_model_is_loaded_on_the_gpu_and_answers_as_on_the_cpu(
    tmp_path: Path,
    make_translator: Callable[..., Translator],
    make_classifier: Callable[..., Classifier],
    make_language_model: Callable[..., LanguageModel],
    make_masked_language_model: Callable[..., MaskedLanguageModel],
) -> None:
    makers: Any = (make_translator, make_classifier, make_language_model, make_masked_language_model)
    for number, make in enumerate(makers):
        folder = tmp_path / str(number)
        make().bundle.save(folder, "# A model\n")
        there, here = headway.load(folder), headway.load(folder, device="cpu")
        assert (there.device.type, here.device.type) == ("cuda", "cpu")
        seen = [json.loads(inspect(each, "das rote Haus", None, name="a model").as_json()) for each in (there, here)]
        assert seen[0].keys() == seen[1].keys()
    language_model, copy = headway.load(tmp_path / "2"), headway.load(tmp_path / "2", device="cpu")
    assert language_model.perplexity(TEXTS).loss == pytest.approx(copy.perplexity(TEXTS).loss, rel=1e-4)


def test_int8_and_the_caller_s_model_stay_on_the_cpu(
    make_translator: Callable[..., Translator], tmp_path: Path
) -> None:
    bundle = make_translator().bundle
    before = [(parameter.device, parameter.data_ptr()) for parameter in bundle.model.parameters()]
    there = Translator(bundle, device="cuda", precision="float32")
    for one, other in zip(there.score(TEXTS, TEXTS), Translator(bundle).score(TEXTS, TEXTS), strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4)
    assert [(parameter.device, parameter.data_ptr()) for parameter in bundle.model.parameters()] == before
    assert len(list(there.bundle.model.parameters())) == len(before), "tied weights stay tied"
    bundle.save(tmp_path / "model", "# A model\n")
    if kernels.is_available():
        assert headway.load(tmp_path / "model", precision="int8").device.type == "cpu"
    with pytest.raises(
        ConfigError, match="precision int8 is not supported on cuda; use --device cpu or --precision auto"
    ):
        headway.load(tmp_path / "model", precision="int8", device="cuda")


def test_the_service_starts_on_the_cpu_and_says_so(make_translator: Callable[..., Translator], tmp_path: Path) -> None:
    make_translator().bundle.save(tmp_path / "model", "# A model\n")
    command = [sys.executable, "-m", "headway", "serve", str(tmp_path / "model"), "--workers", "1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            lines = [next(service.stderr) for _ in range(2)]
            assert "serving model on http://" in lines[0], lines
            assert lines[1] == "headway: the service computes on the CPU; the GPU of this machine is not used\n"
            url = lines[0].split(" on ")[1].split()[0]
            body = json.dumps({"q": "das rote Haus", "source": "de", "target": "en"}).encode()
            request = urllib.request.Request(f"{url}/translate", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                assert "translatedText" in json.load(reply)
        finally:
            service.kill()
