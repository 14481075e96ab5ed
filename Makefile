# Every target sets itself up on a machine with only Python 3.11 (or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: quickstart test suite test-all test-settings check soak lint format clean

quickstart: $(VENV)/.quickstart
	$(BIN)/headway quickstart

# The checks of the source run beside the quick suite.
test: $(VENV)/.ready
	$(MAKE) --no-print-directory --jobs 2 lint suite

# One process for each core, one thread each; a process that has finished takes over tests of another. Bytecode is
# written even where the environment forbids it: otherwise each process that a test starts compiles every module again.
suite: $(VENV)/.ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: test

# What takes minutes: fuzzing, kills, torchrun, kernels compiled anew, and the quick form of all experiments.
test-all: $(VENV)/.ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m slow

# The suite once in each setting that stands for other processors or environments (tests/settings.py lists them).
test-settings: $(VENV)/.ready
	$(BIN)/python tests/settings.py $(SETTINGS) $(if $(TESTS),--tests $(TESTS))

# Kills training 50 times, resumes it, and compares it with an undisturbed run. It needs Multi30k: make soak DATA=FOLDER.
soak: $(VENV)/.ready
	$(BIN)/python tests/soak.py $(if $(DATA),--data $(DATA))

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The requirement on torch is a range; constraints.txt pins the versions that the tests ran with.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/.quickstart $@

# The quickstart needs none of the development tools.
$(VENV)/.quickstart: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[quickstart]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
