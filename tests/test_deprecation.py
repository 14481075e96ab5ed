import sys
import types
from collections.abc import Iterator

import pytest

from headway.deprecation import renamed


@pytest.fixture
def package() -> Iterator[types.ModuleType]:
    module = types.ModuleType("example_package")
    vars(module)["NewName"] = object()
    vars(module)["__getattr__"] = renamed("example_package", {"OldName": "NewName"})
    sys.modules["example_package"] = module
    yield module
    del sys.modules["example_package"]


def test_an_old_name_resolves_to_the_new_one_and_warns_with_it(package: types.ModuleType) -> None:
    with pytest.warns(DeprecationWarning, match=r"example_package\.OldName is now example_package\.NewName"):
        assert package.OldName is package.NewName


def test_an_unknown_name_is_an_attribute_error(package: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Other'"):
        _ = package.Other
