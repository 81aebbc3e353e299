# The targets that a person, CI and pre-commit call. VENV is made when it is missing.
VENV ?= .venv
PYTHON ?= python3
PRESET ?= quick
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: setup quickstart lab test unit nbval lint format types rebuild twice ci
.PHONY: refresh results bench clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name it with PYTHON=..."; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

quickstart: setup
	$(BIN)/fedlib rebuild --preset quick
	@echo
	@echo "Figures and tables: figures/quick/"
	@echo "Notebooks:          make lab    (start with learn/00_start_here.ipynb)"

lab: setup
	$(BIN)/jupyter lab notebooks

test: setup unit nbval

unit: setup
	$(BIN)/python -m pytest -q tests

nbval: setup
	FEDLIB_CI=1 $(BIN)/python -m pytest -q --nbval --nbval-current-env \
	  --nbval-sanitize-with tests/nbval.cfg --nbval-cell-timeout 90 notebooks/learn

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell fedlib tests tools benchmarks *.md Makefile

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

rebuild: setup
	$(BIN)/fedlib rebuild --preset $(PRESET)

# A second rebuild has nothing to do.
twice: rebuild
	@second="$$($(BIN)/fedlib rebuild --preset $(PRESET))"; echo "$$second"; \
	  echo "$$second" | grep -qx 'built 0, current [1-9][0-9]*, failed 0'

# What .ci/run runs, step by step.
ci: lint types twice test

# The README's results section, from the scoreboard of figures/cpu.
results: setup
	FEDLIB_FIGURES=figures $(BIN)/fedlib rebuild scoreboard --preset cpu
	$(BIN)/python tools/readme_results.py

refresh: setup
	FEDLIB_CI=1 $(BIN)/python tools/refresh_notebooks.py

bench: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/client_steps.py

clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
