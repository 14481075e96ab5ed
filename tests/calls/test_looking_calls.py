"""Scores, comparisons and looks from Python, and how objects show themselves in a notebook."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.calls.events import TrainingEvent
from headway.decode import DecodingOptions
from headway.errors import ConfigError, DataError
from headway.evaluation import (
    ClassificationReport,
    compare_labels,
    compare_translations,
    evaluate_classes,
    tokenization_for,
)
from headway.evaluation import evaluate as score_outputs
from headway.notebook_html import tree_diagram
from headway.predict import Candidate, Classifier, LanguageModel, Translation, Translator

TEXTS = ["das rote Haus", "ein Baum", "und der grüne Baum"] * 4
REFERENCES = ["the red house <&>", "a tree", "and the green tree"] * 4
SHORT = DecodingOptions(max_length=4, beam_size=1)


@pytest.fixture(scope="module")
def translator(make_translator: Callable[..., Translator]) -> Translator:
    return make_translator("bpe")


@pytest.fixture(scope="module")
def classifier(make_classifier: Callable[..., Classifier]) -> Classifier:
    return make_classifier()


@pytest.fixture(scope="module")
def language_model(make_language_model: Callable[..., LanguageModel]) -> LanguageModel:
    return make_language_model()


def test_translations_are_scored_as_by_hand(translator: Translator) -> None:
    evaluation = headway.evaluate(translator, TEXTS, REFERENCES, options=SHORT, bootstrap=0)
    outputs = [translation.text for translation in translator.translate(TEXTS, SHORT)]
    tokenization = tokenization_for(translator.bundle.task.target_language)
    assert list(evaluation.outputs) == outputs
    assert list(evaluation.scores) == score_outputs(outputs, REFERENCES, bootstrap=0, tokenization=tokenization)
    same = headway.evaluate(outputs, None, REFERENCES, bootstrap=0, metrics=["chrf"])
    assert same["chrf"].value == same["chrF2"].value == evaluation["chrf"].value
    with pytest.raises(ConfigError, match="no metric 'bleu'"):
        same["bleu"]


def test_classifiers_and_language_models_have_their_own_scores(
    classifier: Classifier, language_model: LanguageModel
) -> None:
    truth = [classifier.labels[0]] * len(TEXTS)
    report = headway.evaluate(classifier, TEXTS, truth, bootstrap=0)
    results = classifier.classify(TEXTS)
    predicted, confidences = [result.label for result in results], [result.probability for result in results]
    assert report == evaluate_classes(predicted, truth, classifier.labels, confidences=confidences, bootstrap=0)
    assert headway.evaluate(language_model, TEXTS) == language_model.perplexity(TEXTS)


def test_language_models_are_scored_on_pairs_and_questions(language_model: LanguageModel) -> None:
    pairs = [("das rote Haus", "Haus rote das", "order"), ("ein Baum", "ein ein", "word"), ("der", "r", "word")]
    totals = [[sum(language_model.score([text])[0].token_log_probabilities) for text in pair[:2]] for pair in pairs]
    report = headway.evaluate(language_model, pairs=pairs)
    assert report.overall.value == pytest.approx(100 * sum(good > bad for good, bad in totals) / 3)
    assert report.counts == {"order": 1, "word": 2}
    questions = [{"question": "das", "choices": ["Haus", "Baum"], "answer": answer} for answer in ("Haus", 1)]
    answered = headway.evaluate(language_model, questions=questions)
    # One of the two answers is right in both questions, so exactly one of the two questions is answered rightly.
    assert (answered.by_sum.value, answered.by_mean.value, answered.chance) == (50, 50, 50)
    with pytest.raises(DataError, match=r"questions\[1\]: field 'answer' is missing"):
        headway.evaluate(language_model, questions=[questions[0], {"question": "a", "choices": ["b", "c"]}])


def test_two_systems_are_compared_as_by_hand(translator: Translator, classifier: Classifier) -> None:
    outputs = [translation.text for translation in translator.translate(TEXTS, SHORT)]
    few: dict[str, Any] = {"samples": 100, "trials": 100}
    table = headway.compare(translator, REFERENCES, REFERENCES, sources=TEXTS, options=SHORT, metrics=["chrf"], **few)
    systems = {"a": outputs, "b": REFERENCES}
    assert table == compare_translations(systems, REFERENCES, metrics=["chrf"], max_differences=5, **few)
    labels = (list(classifier.labels) * 6)[: len(TEXTS)]
    compared = headway.compare(classifier, labels, labels, sources=TEXTS, samples=100, names=("model", "truth"))
    predicted = [result.label for result in classifier.classify(TEXTS)]
    assert compared == compare_labels({"model": predicted, "truth": labels}, labels, samples=100, max_differences=5)


def test_language_models_are_compared_by_bits_per_byte(language_model: LanguageModel) -> None:
    table = headway.compare(language_model, language_model, TEXTS, samples=100, trials=100)
    assert [row.metric for row in table.rows] == ["bits per byte"] * 2
    assert table.rows[1].delta == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t, c, m: headway.evaluate(t, TEXTS, TEXTS[1:]), DataError, "12 sources but 11 references"),
        (lambda t, c, m: headway.evaluate(t, TEXTS[0], TEXTS), DataError, "sources: got one string; expected a list"),
        (lambda t, c, m: headway.evaluate(t, TEXTS), DataError, "references: got none"),
        (lambda t, c, m: headway.evaluate(t, [*TEXTS, None], REFERENCES), DataError, r"sources\[12\]: got None"),
        (lambda t, c, m: headway.evaluate(3, TEXTS, TEXTS), DataError, "outputs: got int"),
        (lambda t, c, m: headway.evaluate(TEXTS, TEXTS, TEXTS), ConfigError, "sources does not apply"),
        (lambda t, c, m: headway.evaluate(m, TEXTS, TEXTS), ConfigError, "references does not apply"),
        (lambda t, c, m: headway.evaluate(c, pairs=[("a", "b")]), ConfigError, "pairs does not apply"),
        (lambda t, c, m: headway.evaluate(m, pairs=[]), DataError, "no pairs"),
        (lambda t, c, m: headway.evaluate(m, TEXTS, pairs=[("a", "b")]), ConfigError, "sources does not apply"),
        (lambda t, c, m: headway.compare(t, c, TEXTS, sources=TEXTS), ConfigError, "do different things"),
        (lambda t, c, m: headway.compare(m, TEXTS, TEXTS), ConfigError, "do different things"),
        (lambda t, c, m: headway.compare(t, t, TEXTS), DataError, "sources: got none"),
        (lambda t, c, m: headway.compare(t, t, TEXTS, names=("a", "a")), ConfigError, "two different names"),
        (lambda t, c, m: headway.tokenize(c, "a", side="target"), ConfigError, "has no target text"),
        (lambda t, c, m: headway.average("no-run", last=0), ConfigError, "last = 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    call: Callable[..., object],
    error: type[Exception],
    message: str,
    translator: Translator,
    classifier: Classifier,
    language_model: LanguageModel,
) -> None:
    with pytest.raises(error, match=message):
        call(translator, classifier, language_model)


def test_a_text_is_tokenized_as_by_the_model(translator: Translator) -> None:
    result = headway.tokenize(translator, TEXTS[0])
    tokenizer = translator.bundle.source_tokenizer
    assert result.ids == tuple(tokenizer.encode(TEXTS[0]))
    assert result.tokens == tuple(tokenizer.tokens(TEXTS[0]))
    assert list(result.merges) == tokenizer.merge_steps(TEXTS[0])


class _Checked(HTMLParser):
    """Collects the text of well-formed HTML, and refuses what loads or runs anything outside of a frame of its own."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self._open = "", list[str]()
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "style")
        assert tag != "iframe" or {"sandbox": "allow-scripts"}.items() <= dict(attrs).items()
        assert not [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = '<script>alert("1")</script>\u202e & \n'


def test_every_object_shows_itself(
    translator: Translator,
    classifier: Classifier,
    language_model: LanguageModel,
    make_run: Callable[[], headway.Run],
) -> None:
    candidate = Candidate(HOSTILE, -1.0, -1.0, ("<b>", "\n"), (-0.1, -2.0, -0.5), flags=("copied",))
    references = [HOSTILE, *REFERENCES[1:]]
    few: dict[str, Any] = {"samples": 100, "trials": 100, "max_differences": 12}
    table = headway.compare(TEXTS, REFERENCES, references, metrics=["chrf"], **few)
    inspection = headway.inspect(translator, TEXTS[0], TEXTS[1])
    report = evaluate_classes(["x", "<y>"], ["x", "x"], ["x", "<y>"], bootstrap=0)
    evaluation = headway.evaluate(TEXTS, None, references, bootstrap=100)
    shown: dict[Any, str] = {}
    for value, in_html, one_line in (
        (Translation(HOSTILE, (candidate, candidate), True), '<script>alert("1")', "score -1.00 [copied] [unlikely]"),
        (evaluation, "BLEU", "12 sentences>"),
        (evaluation.scores[0], "nrefs:1", "<Score: BLEU"),
        (table, '<script>alert("1")', "<ComparisonTable with a: b chrF2"),
        (inspection.maps[0], "rows attend to columns", "<AttentionMap: "),
        (inspection, "das rote Haus", "<Inspection of model: "),
        (translator, "Translator de → en", "<Translator de → en: transformer, "),
        (classifier, "Classifier of ", "<Classifier of "),
        (language_model, "LanguageModel", "<LanguageModel: "),
        (language_model.perplexity(TEXTS[:2]), "bits per byte", "<Perplexity: "),
        (language_model.generate("a", max_new_tokens=2)[0], "", "<Continuation: "),
        (translator.search_tree(TEXTS[0], SHORT), "finished hypothesis", "<SearchTree: beam 1, "),
        (headway.tokenize(translator, TEXTS[0]), "das", "<TokenizedText: "),
        (report, "predicted <y>", "<ClassificationReport: accuracy 50.0"),
        (classifier.classify(TEXTS[0]), classifier.labels[0], "<Classification: "),
        (classifier.explain(TEXTS[0]), "das rote Haus", "<Explanation of "),
        (make_run(), "interrupted step 1", "interrupted at step 1"),
    ):
        html = value._repr_html_()
        assert in_html in re.sub(r"\s+", " ", _Checked(html).text), type(value)
        assert one_line in repr(value)
        assert "\n" not in repr(value)
        assert len(repr(value)) < 250
        shown[type(value)] = html
    assert "rgba(" in shown[Translation]
    assert "Content-Security-Policy" in shown[type(inspection)]  # the page of headway inspect, which loads nothing
    assert isinstance(report, ClassificationReport)


@pytest.mark.parametrize("level", ["model", "block"])
def test_a_diagram_is_one_line_and_a_picture(level: Any) -> None:
    drawing = headway.diagram("transformer:tiny", level=level)
    assert repr(drawing).startswith("<Diagram: ")
    assert "\n" not in repr(drawing)
    assert drawing._repr_svg_().startswith("<svg")


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[[], headway.Run]:
    def make() -> headway.Run:
        def stop(event: TrainingEvent) -> None:
            event.stop()

        return headway.train(
            task={"kind": "language_model"},
            data={"max_tokens": 64},
            tokenizer={"kind": "characters"},
            model={"d_model": 8, "num_heads": 2, "d_ff": 8, "decoder_layers": 1, "max_length": 16},
            training={"steps": 3, "device": "cpu", "log_every": 1},
            checkpoints={"average": 0},
            train=TEXTS,
            run=tmp_path / "run",
            on_progress=stop,
        )

    return make


def test_the_nodes_of_a_tree_are_beside_their_parents() -> None:
    """A first child is on the line of its parent; each other child begins a line below it, in the next column."""
    html = tree_diagram([("a", None, ""), ("b", 0, ""), ("cc", 0, ""), ("d", 2, ""), ("<e>", 0, "p")], marked=[2])
    places = re.findall(r'<text x="(\d+)" y="(\d+)"[^>]*><title>\w*</title>([^<]*)<', html)
    columns = sorted({int(x) for x, _, _ in places})
    assert [(label, columns.index(int(x)), int(y) // 20) for x, y, label in places] == [
        ("a", 0, 1), ("b", 1, 1), ("cc", 1, 2), ("d", 2, 2), ("&lt;e&gt;", 1, 3),
    ]  # fmt: skip
    assert html.count("bold") == 1


def test_a_model_from_a_folder_shows_its_card(translator: Translator, tmp_path: Path) -> None:
    translator.bundle.save(tmp_path / "model", "# A <model> card\n")
    shown = _Checked(headway.load(tmp_path / "model", device="cpu")._repr_html_()).text
    assert "Model card# A <model> card" in shown
    assert "d_model" in shown
