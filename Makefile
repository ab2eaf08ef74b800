# `make help` says what there is. Paths are relative, so that a checkout whose path has spaces works.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
# Tests start a hundred processes: where nothing compiled may be kept, each compiles all of src anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?=
TORCH_INDEX ?=
DATA ?=
QUICK ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TEST := $(VENV)/.ready-test

# What only tests need of the system beside Python and a C++ compiler, as COMMAND:DEBIAN-PACKAGE.
SYSTEM_COMMANDS := redis-server:redis-server redis-cli:redis-tools

.PHONY: help
help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22
	@echo
	@echo "Variables: PYTHON=python3.12 (which Python makes .venv), TORCH_INDEX=URL (where torch comes from),"
	@echo "           DATA=FILE (demo, acceptance), QUICK=1 (bench)"

.PHONY: setup
setup: $(READY)  ## make .venv, install hebe into it and compile its kernels, so that servers start in seconds
	@$(BIN)/hebe precompile
	@echo "Ready: $(BIN)/hebe, $$($(BIN)/hebe --version)."

# Who says what to make it of is heard, even where it is there.
$(READY): pyproject.toml constraints.txt scripts/setup.sh $(if $(findstring command,$(origin PYTHON) $(origin TORCH_INDEX)),asked)
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' scripts/setup.sh $(VENV)
	@touch $@

$(READY_TEST): $(READY)
	@scripts/setup.sh $(VENV) test,check
	@touch $@

.PHONY: asked
asked:

.PHONY: demo
demo: $(READY)  ## train, serve and load a small model; DATA=FILE trains on a Criteo-format file
	$(BIN)/hebe demo $(if $(DATA),--data '$(DATA)')

.PHONY: system-packages
system-packages:
	@scripts/system_packages.sh $(SYSTEM_COMMANDS)

# Files in their order: xdist would leave those of few tests, which take longest, to the end, one after another.
.PHONY: test
test: system-packages $(READY_TEST)  ## run all tests, four files at a time: much of the time goes by in waiting for processes
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# The demo fails where the AUC over HTTP is not the offline one, to 1e-6.
.PHONY: acceptance
acceptance: $(READY_TEST)  ## score 10,000 queries of dlrm-rmc1, as plain PyTorch does, then run the demo, on DATA=FILE or its own
	HEBE_ACCEPTANCE=full $(BIN)/python -m pytest -s tests/integration/serving/test_serve_scores.py -k dlrm_rmc1
	$(BIN)/hebe demo $(if $(DATA),--data '$(DATA)')

.PHONY: check
check: $(READY_TEST)  ## format, lint, types, import table, documents' links
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_docs.py

.PHONY: bench
bench: $(READY_TEST)  ## run every benchmark (not the peers) and write out/figures; QUICK=1 takes about a minute each
	$(BIN)/hebe bench all $(if $(QUICK),--quick)

.PHONY: bench-peers
bench-peers: $(READY)  ## install other servers into a folder of their own, and measure them beside hebe
	$(BIN)/python -m benchmarks.peers $(if $(QUICK),--quick)

.PHONY: size
size: $(READY)  ## how large hebe is: modules, lines, tokens, largest folders, circles of imports
	@$(BIN)/python scripts/size.py

.PHONY: clean
clean:  ## remove .venv, caches and out
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
