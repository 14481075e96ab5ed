"""Training and translation without each private name of the packages that Headway uses."""

from __future__ import annotations

import ast
from pathlib import Path

import private_names
import pytest
from private_names import Case, Workload

from headway import kernels

CODE = """
import numba
from numba.core import caching
from numba.core.runtime import rtsys
_launch: object = numba.np.ufunc.parallel._launch_threads
def use(dispatcher, sig):
    dispatcher._compile_for_args(sig)
    return numba.njit(caching.FunctionCache), rtsys.initialize(numba.config.CACHE_DIR)
"""

needs_numba = pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")


@needs_numba
def test_private_names_are_found_in_the_source_code() -> None:
    assert private_names.names_in(ast.parse(CODE), Path("code.py")) == {
        ("numba.core.caching", "FunctionCache"),
        ("numba.core.dispatcher", "Dispatcher._compile_for_args"),
        ("numba.core.runtime", "rtsys"),
        ("numba.core.runtime", "rtsys.initialize"),
        ("numba.np.ufunc.parallel", "_launch_threads"),
    }
    with pytest.raises(AssertionError, match="where does Numba define _new_name"):
        private_names.names_in(ast.parse("import numba; numba.jit(f)._new_name"), Path("code.py"))


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return Workload(tmp_path_factory.mktemp("workload"))


@needs_numba
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", private_names.cases() if kernels.is_available() else [], ids=str)
def test_without_a_private_name_training_and_translation_are_as_usual_or_a_warning_names_the_slower_form(
    case: Case, workload: Workload
) -> None:
    assert workload.fault(case) is None
