# Every target sets itself up on a machine with only Python 3.11 (or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: quickstart test check soak lint format clean

quickstart: $(VENV)/.ready
	$(BIN)/headway quickstart

# A process for each core, with one thread each; files stay whole, so that fixtures of a module are made once.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

check: test

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
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
