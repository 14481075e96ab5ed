"""Measure how often the flag ``unlikely`` is set for text from a model's own domain and for other text.

    python benchmarks/unlikely.py --data ../shared/data --multi30k MODEL --tatoeba MODEL
    python benchmarks/unlikely.py ... --precision float32 int8 --beam-size 4 --output F.json

The models translate from German. The script never measures a model on the text that calibrated it: it calibrates the
Multi30k model on ``val`` and measures it on the 2016 test set. Tatoeba has no test set, so the script calibrates on the
even lines of ``dev`` and measures on the odd lines, and vice versa. Training text is used only to count tokens. Then
each model translates

- text from its own domain, for which the flag is a false alarm,
- text in other languages and scripts,
- random characters, and the characters or words of its own test sentences (for Tatoeba, the odd lines) shuffled,
- fluent German from the other corpus.

``source alone`` is the number of texts that are flagged without the translation's probabilities, as in sampling.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import random
import string
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from headway.decode import DecodingOptions
from headway.predict import Translator, load_translator
from headway.predict.translation.calibrate import calibrate
from headway.predict.translation.calibration import Calibration

TEXTS = 500  # number of texts of each random kind

SCRIPTS = """\
Собака бежит по траве за красным мячом.
Двое мужчин в касках стоят на крыше дома.
Маленькая девочка ест мороженое в парке.
Я не знаю, где мой ключ.
Ты не мог бы открыть окно?
Завтра мы поедем к бабушке в деревню.
Жінка читає книжку біля вікна.
Где находится ближайшая аптека?
Ο σκύλος τρέχει στην παραλία.
Δύο παιδιά παίζουν με μια μπάλα.
Δεν ξέρω πού είναι το κλειδί μου.
Η γυναίκα πίνει καφέ στον κήπο.
Πότε φεύγει το επόμενο τρένο;
一个男人在街上骑自行车。
两只狗在雪地里奔跑。
我不知道我的钥匙在哪里。
你明天有时间吗?
小女孩在公园里吃冰淇淋。
请问最近的药店在哪里?
男の人が道で自転車に乗っています。
二匹の犬が雪の中を走っている。
鍵がどこにあるか分かりません。
明日は時間がありますか。
ここで写真を撮ってもいいですか。
한 남자가 거리에서 자전거를 타고 있다.
두 마리의 개가 눈 속을 달린다.
열쇠가 어디에 있는지 모르겠어요.
내일 시간이 있으세요?
رجل يركب دراجة في الشارع.
كلبان يركضان في الثلج.
لا أعرف أين مفتاحي.
هل لديك وقت غدا؟
فتاة صغيرة تأكل المثلجات في الحديقة.
גבר רוכב על אופניים ברחוב.
שני כלבים רצים בשלג.
אני לא יודע איפה המפתח שלי.
एक आदमी सड़क पर साइकिल चला रहा है।
दो कुत्ते बर्फ में दौड़ रहे हैं।
मुझे नहीं पता कि मेरी चाबी कहाँ है।
क्या आपके पास कल समय है?
ชายคนหนึ่งขี่จักรยานบนถนน
สุนัขสองตัววิ่งในหิมะ
ฉันไม่รู้ว่ากุญแจของฉันอยู่ที่ไหน
კაცი ქუჩაში ველოსიპედს ატარებს.
Տղամարդը փողոցում հեծանիվ է վարում։
""".splitlines()


def read(path: Path) -> list[str]:
    """Return the lines of a file."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def random_kinds(sentences: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, texts) of each kind of random characters. ``sentences`` are in the model's own domain."""
    dice = random.Random(1)
    letters = "".join(filter(str.isalpha, "".join(sentences)))

    def words(alphabet: str, longest: int) -> str:
        return " ".join("".join(dice.choices(alphabet, k=dice.randint(1, longest))) for _ in range(dice.randint(3, 12)))

    def characters(alphabet: str) -> str:
        return "".join(dice.choices(alphabet, k=dice.randint(10, 70))).strip() or "x"

    def shuffled(text: str) -> str:
        return "".join(dice.sample(text, len(text))).strip()

    everything = "".join(map(chr, [*range(0xA1, 0xD800), *range(0xE000, 0xFFFE)]))
    makers: dict[str, Callable[[str], str]] = {
        "words of random letters": lambda _: words(string.ascii_lowercase, 10),
        "words of random letters, as frequent as in German": lambda _: words(letters, 10),
        "numbers": lambda _: words(string.digits, 6),
        "digits and punctuation": lambda _: characters(string.digits + string.punctuation + " "),
        "printable ASCII": lambda _: characters(string.printable[:95]),
        "Unicode characters": lambda _: characters(everything),
        "characters of a sentence, shuffled": shuffled,
        "letters of each word, shuffled": lambda text: " ".join(map(shuffled, text.split())),
    }
    for name, make in makers.items():
        yield name, [make(sentence) for sentence in sentences[:TEXTS]]


def shuffle_words(sentences: list[str]) -> list[str]:
    """Return sentences with their words in random order."""
    dice = random.Random(2)
    return [" ".join(dice.sample(words, len(words))) for words in map(str.split, sentences[:TEXTS])]


Judged = tuple[str, list[int], tuple[float, ...]]  # a text, its tokens, and the log-probabilities of its translation


def translate(translator: Translator, given: list[str], options: DecodingOptions) -> list[Judged]:
    """Return the values from which the flag is computed, for each text."""
    texts = [text for text in given if text.strip()]
    ids = translator.bundle.source_tokenizer.encode_batch(texts)
    found = translator.translate(texts, options)
    return [
        (text, tokens, each.candidates[0].token_log_probabilities)
        for text, tokens, each in zip(texts, ids, found, strict=True)
    ]


def judge(calibration: Calibration, group: str, kind: str, texts: list[Judged]) -> dict[str, Any]:
    """Return the number of flagged texts."""
    flagged = sum(calibration.is_unlikely(*text) for text in texts)
    alone = sum(calibration.is_unlikely(text, ids, ()) for text, ids, _ in texts)
    print(f"  {group:15} {kind:50} {flagged:5} of {len(texts):5}, source alone {alone:5}", flush=True)
    return {"group": group, "kind": kind, "texts": len(texts), "flagged": flagged, "source_alone": alone}


def main() -> None:
    """Measure both models in each precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with multi30k and tatoeba-de-en")
    parser.add_argument("--multi30k", type=Path, help="a model trained on Multi30k, de-en")
    parser.add_argument("--tatoeba", type=Path, help="a model trained on Tatoeba, de-en")
    parser.add_argument("--precision", nargs="+", default=["float32"], help="precisions; the first one calibrates")
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument(
        "--note", default="", help="a note for readers of the results, such as how the models were trained"
    )
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    multi30k, tatoeba = given.data / "multi30k", given.data / "tatoeba-de-en"
    captions, val = read(multi30k / "test_2016_flickr.de"), read(multi30k / "val.de")
    dev = read(tatoeba / "dev.de")
    foreign = [
        ("other language", "French (Multi30k)", read(multi30k / "test_2016_flickr.fr")),
        ("other language", "English (Multi30k)", read(multi30k / "test_2016_flickr.en")),
        ("other language", "English (Tatoeba)", read(tatoeba / "dev.en")[:1000]),
        ("other language", "other scripts", SCRIPTS),
    ]
    corpora: dict[str, tuple[Path | None, Path, list[tuple[str, list[str], list[str]]], tuple[str, list[str]]]] = {
        "Multi30k": (given.multi30k, multi30k, [("val", val, captions)], ("German (Tatoeba)", dev)),
        "Tatoeba": (
            *(given.tatoeba, tatoeba),
            [("dev, even lines", dev[1::2], dev[::2]), ("dev, odd lines", dev[::2], dev[1::2])],
            ("German (Multi30k)", captions),
        ),
    }
    options = DecodingOptions(beam_size=given.beam_size)
    results = []
    for name, (folder, corpus, splits, other) in corpora.items():
        if folder is None:
            continue
        training, first = read(corpus / "train.de"), splits[0][2]
        translators = {precision: load_translator(folder, precision=precision) for precision in given.precision}
        calibrations = {
            split: calibrate(next(iter(translators.values())), texts, training) for split, texts, _ in splits
        }
        others = [*foreign, *(("random", *kind) for kind in random_kinds(first))]
        others += [("fluent", *other), ("fluent", "own domain, words shuffled", shuffle_words(first))]
        for precision, translator in translators.items():
            judged = [(group, kind, translate(translator, texts, options)) for group, kind, texts in others]
            for split, _, held_out in splits:
                calibration = calibrations[split]
                assert calibration is not None
                print(f"{name}, calibrated on {split}, {precision}:")
                own = ("own domain", "German, not used to calibrate", translate(translator, held_out, options))
                rows = [judge(calibration, *kind) for kind in (own, *judged)]
                setting = {"model": name, "calibrated_on": split, "precision": precision, "beam_size": given.beam_size}
                results.append({**setting, "texts": calibration.texts, "rows": rows})
    if given.output:
        about = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": platform.machine(),
            "headway": importlib.metadata.version("headway"),
            "torch": torch.__version__,
            "calibrated_in": given.precision[0],
            "note": given.note,
        }
        given.output.write_text(json.dumps({**about, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
