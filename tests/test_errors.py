"""The fields of an error, and the message that combines them."""

from __future__ import annotations

import inspect
import pickle

import pytest

from headway import errors
from headway.errors import BundleError, ConfigError, HeadwayError, MissingPackageError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConfigError("steps = 0"), "steps = 0"),
        (ConfigError("steps = 0", where="r.toml"), "r.toml: steps = 0"),
        (ConfigError("steps = 0", accepted="at least 1"), "steps = 0; expected at least 1"),
        (ConfigError("a", where="b", accepted="c", hint="d"), "b: a; expected c; d"),
    ],
)
def test_the_message_is_made_of_the_fields(error: HeadwayError, message: str) -> None:
    assert str(error) == message


def test_a_message_controls_no_terminal() -> None:
    """File names and values of configs may come from strangers."""
    error = BundleError("label \x1b]0;owned\x07\x9b2J is unknown", where="a\n\udcff\u202e/config.json")
    assert str(error) == r"a\n\udcff\u202e/config.json: label \x1b]0;owned\x07\x9b2J is unknown"
    for legible in ("日本 a\xa0b", "می\u200cخواهم", "👩\u200d🔬", "א\u200f!", "🏴\U000e0067\U000e007f"):
        assert str(BundleError(legible)) == legible
    assert str(BundleError("a\u2028b\u2066c\ufeff\r\t")) == r"a\u2028b\u2066c\ufeff\r\t"


def test_a_place_is_put_in_front() -> None:
    error = ConfigError("steps = 0", where="line 3", hint="give more")
    outer = error.with_location("r.toml")
    assert type(outer) is ConfigError
    assert str(outer) == "r.toml: line 3: steps = 0; give more"
    assert str(error) == "line 3: steps = 0; give more"


@pytest.mark.parametrize(
    "error",
    [BundleError("damaged", where="config.json", accepted="JSON", hint="copy it again").with_location("model"),
     MissingPackageError("drawing", "matplotlib").with_location("line 3")],
)  # fmt: skip
def test_errors_come_back_from_other_processes(error: HeadwayError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_the_tree_of_the_docstring_is_the_tree_of_classes() -> None:
    drawn = {}
    for line in (errors.__doc__ or "").splitlines():
        if "\u2500\u2500 " in line:
            depth, name = line.index("\u2500"), line.split("\u2500\u2500 ")[1].split()[0]
            drawn[name] = depth
    classes = {name: each for name, each in vars(errors).items() if inspect.isclass(each) and each is not HeadwayError}
    assert drawn.keys() == classes.keys()
    assert {name: len(each.__mro__) for name, each in classes.items()} == {
        name: 5 + (depth > min(drawn.values())) for name, depth in drawn.items()
    }
