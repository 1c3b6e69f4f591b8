# `make demo` shows what Triform does, `make test` checks that it still does it, `make bench` how fast it does it.
# They need only Python (3.11 or newer), pip and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

INPUTS ?= 20000
SEED ?= 0

.PHONY: demo docs test fuzz bench pictures lint types clean

demo: $(VENV)/.installed
	@echo "== Training a classifier, a language model and a translator on built-in data (about 3 minutes)"
	@$(BIN)/triform demo --out runs/demo

test: $(VENV)/.installed-dev lint types
	@echo "== Running the tests"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadscope --timeout 300

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
	@$(BIN)/ruff check src tests benchmarks docs
	@$(BIN)/ruff format --check --quiet src tests benchmarks docs/images docs/site
	@$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs src benchmarks

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
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
