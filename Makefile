# Two commands do all set-up: `make run` and `make test`. Each installs what it needs into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test lint types fast slow bench shapes docs ci clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /' | sort

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) --editable '.[engines,figures,learn]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) --editable '.[test]'
	@touch $@ $(VENV)/.run

run: $(VENV)/.run  ## the main job: train two ensembles on the embedded digits, measure every rule; runs/digits
	$(BIN)/agreestop run

test: lint types fast  ## lint, types and fast tests: what CI runs

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

fast: $(VENV)/.test
	$(BIN)/pytest -n 2

slow: $(VENV)/.test  ## Monte-Carlo validity of every promise, minutes
	$(BIN)/pytest -n 2 -m slow tests/statistical

bench: $(VENV)/.test  ## speed of the decision layer, as ratios; writes results/bench/decide.json
	$(BIN)/python benchmarks/decide.py

shapes: $(VENV)/.test  ## which shape of score stops earliest; writes results/shapes
	$(BIN)/python benchmarks/shapes.py

docs: $(VENV)/.test  ## the API page, from the docstrings; writes docs/api.md
	$(BIN)/python docs/make_api.py

ci: test

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
