# Every target installs what it needs; it requires only Python 3.11 (or newer) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: quickstart serve dist test suite test-all test-gpu test-settings test-versions check soak lint format clean
.PHONY: pictures check-pictures diagrams generated

quickstart: $(VENV)/.quickstart
	$(BIN)/headway quickstart

# Serves the model of the quickstart, which is trained first if there is none.
serve: $(VENV)/.serve
	test -d runs/quickstart-en-de/best || $(BIN)/headway quickstart
	$(BIN)/headway serve runs/quickstart-en-de/best

# The source checks run in parallel with the quick suite.
test: $(VENV)/.ready
	$(MAKE) --no-print-directory --jobs 2 lint suite

# One process with one thread for each core; a process that has finished takes tests from another. Bytecode is written even
# if the environment forbids it, because each process that a test starts would otherwise compile every module again.
suite: $(VENV)/.ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

check: test

# The slow tests: fuzzing, killed runs, torchrun, freshly compiled kernels, and the quick version of all experiments.
test-all: $(VENV)/.ready
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m slow --timeout 1200

# The tests in tests/gpu, which are skipped otherwise: all other tests run on the CPU, even if there is a GPU.
test-gpu: $(VENV)/.ready
	HEADWAY_TEST_GPU=1 $(BIN)/python -m pytest tests/gpu -m "slow or not slow"

# Runs the suite in each setting that imitates another processor or environment (tests/settings.py lists them).
test-settings: $(VENV)/.ready
	$(BIN)/python tests/settings.py $(SETTINGS) $(if $(TESTS),--tests $(TESTS))

# The core of the suite with the lowest and the newest versions that pyproject.toml allows, and with newer Pythons on PATH.
test-versions: $(VENV)/.ready
	$(BIN)/python tests/versions.py $(VERSIONS) $(if $(TESTS),--tests $(TESTS))

# Kills and resumes training 50 times, and compares the result with an uninterrupted run. Needs Multi30k: make soak DATA=FOLDER.
soak: $(VENV)/.ready
	$(BIN)/python tests/soak.py $(if $(DATA),--data $(DATA))

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Makes the pictures in docs/pictures anew with Chromium: all of them, or those that PICTURES names.
pictures: $(VENV)/.ready
	test -d runs/quickstart-en-de/best || $(BIN)/headway quickstart
	$(BIN)/python benchmarks/docs_pictures.py $(PICTURES)

# Names the pictures that are older than what they show.
check-pictures: $(VENV)/.ready
	$(BIN)/python benchmarks/docs_pictures.py --check

# Writes the documentation of options and the schema of recipes anew, from the options that the code declares.
generated: $(VENV)/.ready
	$(BIN)/python -m headway.tasks.reference > docs/recipe.md
	$(BIN)/python -m headway.serve.reference > docs/serve_toml.md
	$(BIN)/python -m headway.interop.reference > docs/export_options.md
	$(BIN)/headway schema recipe > recipes/schema/recipe.json

# Draws the architectures in docs/diagrams anew.
diagrams: $(VENV)/.ready
	$(BIN)/python tests/diagrams/documented.py

# Builds the source distribution and, from it, the wheel, with the setuptools of the environment.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# pyproject.toml accepts ranges of versions; constraints.txt pins the versions with which the tests were run.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/.quickstart $(VENV)/.serve $@

# The quickstart needs none of the development tools.
$(VENV)/.quickstart: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[quickstart]'
	touch $@

$(VENV)/.serve: $(VENV)/.quickstart
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[quickstart,serve]'
	touch $@

clean:
	rm -rf $(VENV) .versions .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
