# Two commands do all set-up: `make run` and `make test`. Each installs what it needs into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
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

# Other libraries live apart. They ask for torchvision, torchaudio, tensorboard and samna too, which is heavy and not used here, so they
# are installed without what they ask for; the light packages that they do import come first.
$(BENCH)/.bench: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BENCH)
	@echo '*' > $(BENCH)/.gitignore
	$(BENCH)/bin/pip install $(PIP_FLAGS) --editable '.[engines,figures,learn]' 'nir<=1.0.4' nirtorch pbr loguru
	$(BENCH)/bin/pip install $(PIP_FLAGS) --no-deps snntorch spikingjelly norse sinabs
	@touch $@

bench: $(VENV)/.test $(BENCH)/.bench  ## speed against other libraries, half an hour or more; MNIST=FOLDER for all of it; writes results/bench
	$(BIN)/python benchmarks/decide.py
	$(BENCH)/bin/agreestop bench $(if $(MNIST),--mnist $(MNIST))

shapes: $(VENV)/.test  ## which shape of score stops earliest; writes results/shapes
	$(BIN)/python benchmarks/shapes.py

docs: $(VENV)/.test  ## the API page from the docstrings, and the reproduction page from results; writes docs/api.md, docs/reproduction.md
	$(BIN)/python docs/make_api.py
	$(BIN)/python docs/make_reproduction.py

ci: test

clean:
	rm -rf $(VENV) $(BENCH) .mypy_cache .ruff_cache .pytest_cache .hypothesis
