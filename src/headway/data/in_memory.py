"""Write examples from memory (lists, generators, data frames or datasets) to a corpus file for training.

An *example* is a text, or a tuple or mapping with one value per column. The data may be

    an iterable of examples                     read only once, so it may be a generator
    a mapping of column names to iterables      such as {"source": [...], "target": [...]}
    a tuple of lists, one for each column       such as (sources, targets)
    a data frame (pandas, polars)               anything with ``columns`` whose columns ``frame[name]`` are iterable
    a Hugging Face dataset                      anything with ``column_names`` that yields mappings

Data frames and datasets are recognized by these attributes; their packages are never imported. The texts are written
unchanged, as one JSON object per line (:mod:`headway.data.readers`).
"""

from __future__ import annotations

import filecmp
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from numbers import Integral
from pathlib import Path
from typing import Any

from headway.config import format_list
from headway.errors import CheckpointError, DataError
from headway.storage import atomic_write

_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
_SHOWN = 40  # maximum number of characters of a bad value in an error message
_MISSING = object()
_NESTED = "translation"  # the only column (of dictionaries) in many datasets on the Hugging Face Hub


def write_examples(
    data: Any, path: Path, columns: Sequence[str], origin: str, *, languages: Sequence[str] = (), keep: bool = False
) -> None:
    """Write examples atomically to the .jsonl file ``path``, unless it already has this content.

    Args:
        data: The examples; see the module docstring.
        path: The output file.
        columns: Names of an example's values, in the order of tuples; also the names of the fields in the file. Values
            of "label" may also be numbers, which a Hugging Face dataset may map to names.
        origin: Name of the data in error messages, such as "train".
        languages: Alternative names for the columns, in the same order, such as language codes.
        keep: Whether to raise an error if the file exists with different content, instead of replacing it.

    Raises:
        DataError: The data have an unsupported form, contain no examples, or contain a value that is not text. The
            message begins with the origin and the index of the example, counted from 0.
        CheckpointError: ``keep`` is True, and the file has different content.
    """
    examples = _examples(data, tuple(columns), origin, tuple(languages))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new")
    try:
        with atomic_write(aside) as new, new.open("w", encoding="utf-8", newline="\n") as file:
            count = 0
            for values in examples:
                file.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False) + "\n")
                count += 1
        if not count:
            raise DataError("no examples", where=origin, accepted="at least one")
        if path.exists() and filecmp.cmp(aside, path, shallow=False):
            return
        if keep and path.exists():
            raise CheckpointError(
                f"{path.parent.parent}: {origin} differs from the data with which the run started (the content has "
                "changed), so scores before and after would not be comparable; pass the same data to resume, choose "
                "another folder with run=..., or start over with fresh=True"
            )
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _examples(data: Any, columns: tuple[str, ...], origin: str, languages: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the checked values of each example."""
    rows, label_names = _rows(data, columns, origin, languages), _label_names(data)
    for index, row in enumerate(rows):
        values = _values(row, columns, languages)
        if isinstance(values, str):
            raise _bad(origin, index, values, columns)
        texts = []
        for name, value in zip(columns, values, strict=True):
            text = _text(value, label_names if name == "label" else None)
            if text is None:
                fault = f"the {name} is {_shown(value)}" if len(columns) > 1 or isinstance(row, Mapping) else None
                raise _bad(origin, index, fault or f"got {_shown(value)}", columns)
            if match := _NO_CHARACTER.search(text):
                fault = f"the {name} contains {match[0].encode('unicode_escape').decode()}, an invalid character"
                raise DataError(fault, where=f"{origin}[{index}]", accepted="text", hint="remove it")
            texts.append(text)
        yield texts


def _bad(origin: str, index: int, fault: str, columns: tuple[str, ...]) -> DataError:
    return DataError(fault, where=f"{origin}[{index}]", accepted=_accepted(columns))


def _accepted(columns: tuple[str, ...]) -> str:
    return "a string" if len(columns) == 1 else f"a pair ({', '.join(columns)}) of strings"


def _rows(data: Any, columns: tuple[str, ...], origin: str, languages: tuple[str, ...]) -> Iterable[Any]:
    """Return an iterable over the examples, whatever the form of the data."""
    plural = "an iterable of " + ("strings" if len(columns) == 1 else f"pairs ({', '.join(columns)})")
    if isinstance(data, (str, bytes, Path)):
        advice = "set file names in the recipe, as data.train or data.dev, instead of passing them here"
        raise DataError(f"got {_shown(data)}", where=origin, accepted=plural, hint=advice)
    if isinstance(data, Mapping) and any(hasattr(part, "column_names") for part in data.values()):
        advice = f"choose one, such as {origin}=dataset[{next(iter(data))!r}]"
        raise DataError(f"several splits ({format_list(list(map(str, data)))})", where=origin, hint=advice)
    if isinstance(data, Mapping):
        return _zipped(data.__getitem__, list(data), columns, origin, languages)
    if hasattr(data, "columns") and not hasattr(data, "column_names"):
        return _zipped(data.__getitem__, list(data.columns), columns, origin, languages)
    if (names := getattr(data, "column_names", None)) is not None:
        _selected(list(names), columns, origin, (*languages, _NESTED))
    if isinstance(data, tuple) and len(data) == len(columns) > 1 and all(isinstance(part, list) for part in data):
        return _zipped(dict(zip(columns, data, strict=True)).__getitem__, list(columns), columns, origin, ())
    try:
        rows: Iterator[Any] = iter(data)
    except TypeError:
        raise DataError(f"got {_shown(data)}", where=origin, accepted=plural) from None
    return rows


def _zipped(
    column: Callable[[Any], Iterable[Any]],
    names: list[Any],
    columns: tuple[str, ...],
    origin: str,
    languages: tuple[str, ...],
) -> Iterator[tuple[Any, ...]]:
    """Return an iterator over the rows of a table. The function ``column`` returns a column by name."""
    selected = _selected(names, columns, origin, languages)

    def rows() -> Iterator[tuple[Any, ...]]:
        for index, values in enumerate(zip_longest(*map(column, selected), fillvalue=_MISSING)):
            if ended := [name for name, value in zip(selected, values, strict=True) if value is _MISSING]:
                longer = next(name for name in selected if name not in ended)
                raise DataError(
                    f"{ended[0]} ends, but {longer} does not", where=f"{origin}[{index}]", accepted="equal lengths"
                )
            yield values

    return rows()


def _selected(names: list[Any], columns: tuple[str, ...], origin: str, languages: tuple[str, ...]) -> list[str]:
    """Select the columns of a table that contain the values of examples."""
    for wanted in (columns, languages[: len(columns)]):
        if wanted and len(wanted) == len(columns) and set(wanted) <= set(names):
            return list(wanted)
    if _NESTED in languages and _NESTED in names:
        return [_NESTED]
    others = f" or {' and '.join(languages[: len(columns)])}" if languages[: len(columns)] else ""
    raise DataError(
        f"the columns are {format_list(list(map(str, names))) or 'none'}",
        where=origin,
        accepted=f"{' and '.join(columns)}{others}",
        hint="rename them",
    )


def _values(row: Any, columns: tuple[str, ...], languages: tuple[str, ...]) -> Sequence[Any] | str:
    """Return the values of an example, or an error message."""
    if isinstance(row, Mapping):
        inner = row.get(_NESTED)
        row = inner if isinstance(inner, Mapping) and len(columns) > 1 else row
        for wanted in (columns, languages):
            if len(wanted) == len(columns) and all(name in row for name in wanted):
                return [row[name] for name in wanted]
        return f"the keys are {format_list(list(map(str, row))) or 'none'}"
    if len(columns) == 1:
        # The rows of a table are tuples, even if the table has a single column.
        return row if isinstance(row, tuple) and len(row) == 1 else [row]
    if isinstance(row, (str, bytes)) or not isinstance(row, Iterable):
        return f"got {_shown(row)}"
    values = list(row)
    return values if len(values) == len(columns) else f"got {len(values)} values, {_shown(row)}"


def _text(value: Any, label_names: Sequence[str] | None) -> str | None:
    """Return a value as text, or None if it is not text. For labels, ``label_names`` maps numbers to names."""
    if isinstance(value, str):
        return str(value)
    if label_names is None:
        return None
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's name depends on its version
        return str(bool(value))
    if not isinstance(value, Integral):
        return None
    number = int(value)
    return label_names[number] if 0 <= number < len(label_names) else str(number)


def _label_names(data: Any) -> Sequence[str]:
    """Return the names of numeric labels in a Hugging Face dataset; empty for other data."""
    features = getattr(data, "features", None)
    feature = features.get("label") if isinstance(features, Mapping) else None
    return list(getattr(feature, "names", None) or ())


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
