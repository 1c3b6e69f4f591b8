# `make demo` shows what Triform does, `make test` checks that it still does it, `make bench` how fast it does it.
# They need only Python (3.11 or newer), pip and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Many tests start Python processes, which start faster from compiled files.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadscope --no-loadscope-reorder --timeout 600
# Tests of scripts, benchmarks and pages, which run hardly any line of the package that other tests do not run.
NOT_COUNTED := tests/fuzz tests/serving/browser tests/explain/test_page_browser.py tests/test_benchmarks.py tests/test_site.py
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor

INPUTS ?= 20000
SEED ?= 0

.PHONY: demo docs test test-fast coverage fuzz bench pictures lint schemas types clean

demo: $(VENV)/.installed
	@echo "== Training a classifier, a language model and a translator on built-in data (about 3 minutes)"
	@$(BIN)/triform demo --out runs/demo

test: $(VENV)/.installed-dev lint types
	@echo "== Running the tests"
	@$(PYTEST)

test-fast: $(VENV)/.installed-dev
	@echo "== Running the tests that are not slow"
	@$(PYTEST) -m "not slow"

coverage: $(VENV)/.installed-dev
	@echo "== Running the tests and counting the lines that they run (somewhat longer than make test)"
	@$(PYTEST) --cov --cov-report= $(addprefix --ignore ,$(NOT_COUNTED)); code=$$?; \
	$(BIN)/coverage json --quiet -o .coverage.json && $(BIN)/python tests/check_coverage.py .coverage.json && exit $$code

fuzz: $(VENV)/.installed-dev
	@echo "== $(INPUTS) bad inputs (make fuzz INPUTS=... SEED=...; 20,000 took 18 minutes on a busy machine)"
	@OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/run_fuzz.py --inputs $(INPUTS) --seed $(SEED)

bench: $(VENV)/.installed-dev
	@echo "== Triform beside its peers, one benchmark after the other (leave the machine alone meanwhile)"
	@$(BIN)/python -m benchmarks all

docs: $(VENV)/.installed-dev
	@echo "== Building the documentation site (without a network)"
	@$(BIN)/python docs/site/build.py

pictures: $(VENV)/.installed-dev
	@echo "== Making the picture of the README (needs Chromium, takes some minutes)"
	@$(BIN)/python docs/images/make.py

lint: $(VENV)/.installed-dev
	@echo "== Checking style and spelling"
	@$(BIN)/ruff check src reproduce tests benchmarks docs
	@$(BIN)/ruff format --check --quiet src reproduce tests benchmarks docs/images docs/notebooks docs/site
	@$(BIN)/codespell *.md CITATION.cff .github docs src reproduce benchmarks
	@$(MAKE) --no-print-directory schemas

schemas: $(VENV)/.installed-dev
	@echo "== Checking workflows, issue forms and the citation against their schemas"
	@$(SCHEMA).github-workflows .github/workflows/*.yml
	@$(SCHEMA).github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	@$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(SCHEMA).dependabot .github/dependabot.yml
	@$(SCHEMA).citation-file-format CITATION.cff

types: $(VENV)/.installed-dev
	@echo "== Checking types"
	@$(BIN)/mypy

$(BIN)/python:
	@echo "== Making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Triform needs Python 3.11 or newer; say which with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "Python's venv module is missing; on Debian: apt install python3-venv" >&2; exit 1; }

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "== Installing Triform and what it needs (PyTorch is large: this can take minutes)"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "== Installing the tools for tests"
	@$(PIP) 'pip>=25.1'  # older releases do not read dependency groups
	@$(PIP) --editable '.[all]' --group dev
	@touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
