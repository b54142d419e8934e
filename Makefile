# Needs make and Python 3.11 or newer. Everything goes into $(VENV), made from pyproject.toml when missing or outdated.

VENV ?= .venv
OUT ?= results
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN = $(VENV)/bin

.PHONY: help venv demo test check bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    replay a real trace through four schedulers and draw the figures"
	@echo "make test    run the test suite"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make bench   measure the speed of the simulator"
	@echo "make venv    make $(VENV) with everything the targets above need"
	@echo "make clean   remove $(VENV) and caches"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "servesim needs Python 3.11 or newer; name one with PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,calibrate]'
	@touch $@ $(VENV)/.runtime

$(VENV)/.check: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,calibrate,check]'
	@touch $@ $(VENV)/.test $(VENV)/.runtime

venv: $(VENV)/.check

demo: $(VENV)/.runtime
	$(BIN)/python -m experiments run quickstart --out $(OUT)

test: $(VENV)/.test
	$(BIN)/python -m pytest

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	$(BIN)/python -m pytest tests/bench -o addopts=-q --benchmark-only

clean:
	rm -rf $(VENV) build dist servesim.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
