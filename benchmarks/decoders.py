"""The contestants of ``decoding.py``: each is a process that runs one model in one engine.

A contestant reads orders as JSON lines and answers each with a line:

    {"sentences": B, "beam": W, "source": S, "target": T}    decode B random sentences of S tokens to T tokens each
    {"lines": [...], "beam": W}                              translate text, with natural lengths

The answer contains ``seconds`` (for text including tokenization) and either the number of output ``tokens`` or, for
text, the translations. All engines use Headway's tokens and the same weights. The time for starting and loading is not
included.

    python benchmarks/decoders.py '{"engine": "headway", "model": "FOLDER", "threads": 2, "precision": "int8"}'
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import torch

from headway.bundle import Bundle, read_config
from headway.decode import DecodingOptions, Request, SearchVocabulary, search_all
from headway.engine import SearchTransformer
from headway.hardware import keep_freed_memory
from headway.interop.supported import require_transformer
from headway.interop.tokenizer_exporting import unique_token_names
from headway.predict import Translator, TranslatorPool, load_translator
from headway.text.base import BOS, EOS, NUM_SPECIAL, PAD, UNK

ALPHA = 1.0  # exponent of the length: the only normalization that all three engines support
Tokens = list[list[int]]


class Engine(Protocol):
    """The interface of an engine. Neither sources nor results contain EOS."""

    def decode(self, sources: Tokens, beam: int, target: int) -> Tokens:
        """Decode exactly ``target`` tokens for each source."""

    def translate(self, lines: Sequence[str], beam: int) -> list[str]:
        """Translate text."""


class Headway:
    """Headway with threads in one process, or with ``workers`` processes of one thread each."""

    def __init__(
        self, folder: Path, precision: Any, device: str = "cpu", shortlist: bool = False, workers: int = 1, **_: Any
    ) -> None:
        keep_freed_memory()  # as commands do
        self.precision = precision
        self.tokenizer = read_config(folder).load_tokenizers()[0]
        # The output of a model with random weights is flagged, and would be searched for again with avoid_flagged.
        load = partial(
            load_translator, folder, device=device, precision=precision, shortlist=shortlist, avoid_flagged=False
        )
        self.translator: Translator | TranslatorPool = TranslatorPool(load, workers) if workers > 1 else load()

    @cached_property
    def model(self) -> SearchTransformer:
        """The search model for tokens. For text, the translator creates its own; a contestant uses only one of them."""
        assert isinstance(self.translator, Translator)
        return SearchTransformer(require_transformer(self.translator.bundle, "the benchmark"), self.precision)

    def decode(self, sources: Tokens, beam: int, target: int) -> Tokens:
        """Decode all sentences in one batch, like the translator. For a pool, the tokens are converted to text."""
        options = DecodingOptions(
            beam_size=beam, min_length=target, max_length=target, normalization="average", length_penalty=ALPHA
        )
        if isinstance(self.translator, TranslatorPool):
            translations = self.translator.translate([self.tokenizer.decode(ids) for ids in sources], options)
            return [list(translation.candidates[0].ids) for translation in translations]
        requests = [Request(source=(*ids, EOS), limit=target) for ids in sources]
        found = search_all(
            self.model,
            requests,
            options,
            SearchVocabulary(BOS, EOS, banned=(PAD, BOS, UNK)),
            max_batch_tokens=len(sources) * max(len(ids) + 1 for ids in sources),
            max_sequences=len(sources),
        )
        return [list(hypotheses[0].tokens) for hypotheses in found]

    def translate(self, lines: Sequence[str], beam: int) -> list[str]:
        """Translate text with the translator."""
        options = DecodingOptions(beam_size=beam, normalization="average", length_penalty=ALPHA, stopping="first")
        return [translation.text for translation in self.translator.translate_lines(lines, options)]


class CTranslate2:
    """OpenNMT's C++ engine."""

    def __init__(
        self,
        folder: Path,
        precision: str,
        threads: int,
        device: str = "cpu",
        inter: int = 1,
        batch: int = 64,
        shortlist: bool = False,
        **_: Any,
    ) -> None:
        import ctranslate2

        self.bundle = Bundle.load(folder)
        self.batch = batch
        self.settings = {"disable_unk": True, "use_vmap": shortlist}
        self.names = unique_token_names(self.bundle.source_tokenizer)
        self.ids = {name: at for at, name in enumerate(unique_token_names(self.bundle.target_tokenizer))}
        if not (folder / "ct2" / "shared_vocabulary.json").exists():
            self.names[EOS] = "</s>"  # as in CTranslate2's own folders; a word tokenizer uses another name
        self.engine = ctranslate2.Translator(
            str(folder / "ct2"),
            device=device,
            compute_type=precision,
            inter_threads=inter,
            intra_threads=max(1, threads // inter),
        )

    def decode(self, sources: Tokens, beam: int, target: int) -> Tokens:
        """Decode with both length limits set to ``target``."""
        return self._run(sources, beam, min_decoding_length=target, max_decoding_length=target)

    def translate(self, lines: Sequence[str], beam: int) -> list[str]:
        """Translate text with Headway's tokenizers."""
        sources = self.bundle.source_tokenizer.encode_batch(lines)
        longest = max(map(len, sources)) + 50
        return [
            self.bundle.target_tokenizer.decode(ids) for ids in self._run(sources, beam, max_decoding_length=longest)
        ]

    def _run(self, sources: Tokens, beam: int, **limits: int) -> Tokens:
        named = [[self.names[token] for token in (*ids, EOS)] for ids in sources]
        results = self.engine.translate_batch(
            named, beam_size=beam, length_penalty=ALPHA, max_batch_size=self.batch, **self.settings, **limits
        )
        return [[self.ids[name] for name in result.hypotheses[0]] for result in results]


class Transformers:
    """Hugging Face's generate."""

    def __init__(
        self, folder: Path, precision: str, device: str = "cpu", batch: int = 64, compiled: bool = False, **_: Any
    ) -> None:
        from transformers import AutoModelForSeq2SeqLM

        self.bundle = Bundle.load(folder)
        self.batch = batch
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.device = device
        self.model = AutoModelForSeq2SeqLM.from_pretrained(folder / "huggingface", dtype=dtype).eval().to(device)
        self.model.generation_config.forced_eos_token_id = None  # it would replace the last token at the limit
        # With a static cache, generate compiles the model.
        self.cache = {"cache_implementation": "static"} if compiled else {}

    def decode(self, sources: Tokens, beam: int, target: int) -> Tokens:
        """Decode with both length limits set to ``target`` + 1, because they include BOS."""
        return self._run(sources, beam, min_length=target + 1, max_length=target + 1)

    def translate(self, lines: Sequence[str], beam: int) -> list[str]:
        """Translate text with Headway's tokenizers, in batches of similar length."""
        sources = self.bundle.source_tokenizer.encode_batch(lines)
        order = sorted(range(len(sources)), key=lambda at: len(sources[at]))
        texts = [""] * len(sources)
        for start in range(0, len(order), self.batch):
            part = order[start : start + self.batch]
            longest = max(len(sources[at]) for at in part)
            for at, ids in zip(
                part, self._run([sources[at] for at in part], beam, max_length=longest + 51), strict=True
            ):
                texts[at] = self.bundle.target_tokenizer.decode(ids)
        return texts

    @torch.inference_mode()
    def _run(self, sources: Tokens, beam: int, **limits: int) -> Tokens:
        width = max(map(len, sources)) + 1
        rows = torch.tensor([[*ids, EOS] + [PAD] * (width - len(ids) - 1) for ids in sources], device=self.device)
        out = self.model.generate(
            rows,
            attention_mask=(rows != PAD).long(),
            num_beams=beam,
            early_stopping=beam > 1,  # as in CTranslate2: stop when as many hypotheses as beams are finished
            do_sample=False,
            length_penalty=ALPHA,
            suppress_tokens=[PAD, BOS, UNK],
            **limits,
            **self.cache,
        )
        found = out[:, 1:].tolist()
        return [ids[: ids.index(EOS)] if EOS in ids else [token for token in ids if token != PAD] for ids in found]


ENGINES: dict[str, Callable[..., Engine]] = {
    "headway": Headway,
    "ctranslate2": CTranslate2,
    "transformers": Transformers,
}


def peak_mib() -> float:
    """Return the sum of the peak resident memory of this process and of its children.

    getrusage is not used, because it would return the parent's peak if that is larger.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    statuses = [Path(f"/proc/{process}/status").read_text(encoding="utf-8") for process in ("self", *children)]
    return sum(int(status.split("VmHWM:")[1].split()[0]) for status in statuses) / 1024


def main() -> None:
    """Answer orders until standard input ends."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    keep_freed_memory()
    engine = ENGINES[settings.pop("engine")](Path(settings.pop("model")), **settings)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        if "lines" in order:
            answer: dict[str, Any] = {"texts": engine.translate(order["lines"], order["beam"])}
        else:
            # Random sentences, which are the same for all engines.
            generator = torch.Generator().manual_seed(order["sentences"])
            shape = (order["sentences"], order["source"] - 1)
            sources = torch.randint(NUM_SPECIAL, order["vocabulary"], shape, generator=generator).tolist()
            begin = time.perf_counter()
            found = engine.decode(sources, order["beam"], order["target"])
            answer = {"tokens": sum(map(len, found))}
        answer["seconds"] = time.perf_counter() - begin
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            answer["device_mib"] = torch.cuda.max_memory_reserved() / 2**20
        print(json.dumps({**answer, "peak_mib": peak_mib()}), flush=True)


if __name__ == "__main__":
    main()
