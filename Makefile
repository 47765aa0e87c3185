# `make run` and `make test` need no other set-up: each installs what it needs into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER := .venv-cluster
PEERS := .venv-peers
CLEAN := .venv-wheel
RELEASE := .venv-release
PYTHONS := 3.11 3.12 3.13
PIP_FLAGS := --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test lint types fast slow lowest pythons dist install-check figures peers bench bench-check cluster shapes docs site picture digits ci clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /' | sort

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) --editable '.[engines,figures,learn]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) --editable '.[test]'
	@touch $@ $(VENV)/.run

run: $(VENV)/.run  ## the main job: train two ensembles on the embedded digits and measure every rule; writes runs/digits
	$(BIN)/agreestop run

test: lint types fast  ## lint, types and fast tests, as in CI

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

fast: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal

slow: $(VENV)/.test lowest pythons  ## Monte-Carlo tests of every guarantee, and the core in other environments; takes minutes
	$(BIN)/pytest -n 2 --dist worksteal -m slow

lowest: $(BIN)/python  ## the core's tests with the lowest supported versions of numpy, typer and rich; makes .venv-core
	$(BIN)/python tests/core_check.py lowest $(QUICK)

pythons: $(BIN)/python  ## the core's tests on every supported Python that is installed here; makes .venv-core
	$(BIN)/python tests/core_check.py $(PYTHONS) $(QUICK)

$(RELEASE)/.release: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	@echo '*' > $(RELEASE)/.gitignore
	$(RELEASE)/bin/pip install $(PIP_FLAGS) 'build>=1.2' 'twine>=6.1'
	@touch $@

dist: $(RELEASE)/.release  ## build the source distribution and, from it, the wheel, and check what PyPI would refuse; writes dist; makes .venv-release
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist .
	$(RELEASE)/bin/twine check --strict dist/*

install-check: dist  ## install the wheel with only its dependencies in a clean environment, and use it there
	$(PYTHON) -m venv --clear $(CLEAN)
	@echo '*' > $(CLEAN)/.gitignore
	$(CLEAN)/bin/pip install $(PIP_FLAGS) dist/agreestop-*.whl
	cd $(CLEAN) && bin/python -P $(CURDIR)/tests/install_check.py

figures: $(VENV)/.run  ## the paper's figures from the stored score files; writes results/fig2 ... fig8
	$(BIN)/python -m paper all --from-scores

# The other libraries have their own environment. They require torchvision, torchaudio, tensorboard and samna, which are large and not used
# here. So they are installed without their requirements, after the small packages that they do import.
$(PEERS)/.peers: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PEERS)
	@echo '*' > $(PEERS)/.gitignore
	$(PEERS)/bin/pip install $(PIP_FLAGS) --editable '.[engines,figures,learn,nir]' pytest hypothesis nirtorch pbr loguru deprecated pandas
	$(PEERS)/bin/pip install $(PIP_FLAGS) --no-deps snntorch spikingjelly norse sinabs aeon
	@touch $@

peers: $(PEERS)/.peers  ## the adapters' tests and examples with the libraries that they adapt; two need files of the NIR paper: NIR=FOLDER BRAILLE=FILE, else they are skipped; makes .venv-peers
	AGREESTOP_PEERS=1 SCIPY_ARRAY_API=1 $(if $(NIR),AGREESTOP_NIR=$(NIR)) $(if $(BRAILLE),AGREESTOP_BRAILLE=$(BRAILLE)) $(PEERS)/bin/python -m pytest -rs tests/adapters
	$(PEERS)/bin/python docs/make_stored.py

bench: $(VENV)/.test $(PEERS)/.peers  ## speed against other libraries, an hour; give MNIST=FOLDER for all workloads; writes results/bench
	$(BIN)/python -m benchmarks decide
	$(PEERS)/bin/python -m benchmarks --device cpu $(if $(MNIST),--mnist $(MNIST))
	$(PEERS)/bin/python -m benchmarks deep --device cpu
	$(BIN)/python -m benchmarks live --python $(PEERS)/bin/python $(if $(PREVIOUS),--previous $(PREVIOUS))

bench-check: $(VENV)/.test  ## fails where a key workload is slower than 0.8 of its stored speed, relative to a reference in the same run
	$(BIN)/python -m benchmarks check

$(CLUSTER)/.cluster: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLUSTER)
	@echo '*' > $(CLUSTER)/.gitignore
	$(CLUSTER)/bin/pip install $(PIP_FLAGS) --editable '.[cluster,figures,learn]' pytest hypothesis
	@touch $@

cluster: $(CLUSTER)/.cluster  ## tests on a local Ray cluster of two workers, which are killed too, and how decisions scale; takes minutes; writes results/cluster
	$(CLUSTER)/bin/python -m pytest -m '' tests/cluster
	$(CLUSTER)/bin/python -m benchmarks cluster

shapes: $(VENV)/.test  ## which shape of score stops earliest; writes results/shapes and the table of docs/shapes.md
	$(BIN)/python -m benchmarks shapes

docs: $(VENV)/.test  ## write what comes from docstrings and results: docs/configuration.md, docs/reproduction.md, tables and figures of docs/guide.md, paper.md, engines.md, speed.md, reliability-tests.md, promises-measured.md, drift.md, scale.md, serve-load.md, mistakes.md, adapters.md, nir.md and microcontroller.md
	$(BIN)/python docs/make_configuration.py
	PYTHONPATH=. $(BIN)/python docs/make_reproduction.py
	$(BIN)/python docs/make_readme.py

runs/digits/demo.html: $(VENV)/.test
	$(BIN)/agreestop run

site: $(VENV)/.test runs/digits/demo.html  ## the documentation as pages to browse; warnings are errors; writes site/index.html
	$(BIN)/python -m sphinx -E -W --keep-going -q -d build/doctrees docs site

picture: run  ## docs/demo.gif, the moving picture of the README, from the page of a run; needs chromium
	$(BIN)/python docs/make_demo_picture.py

digits: run  ## renew results/digits from a run; its demo.html (2 MB) is not kept, so the report does not link to it
	cp runs/digits/metrics.json runs/digits/coverage-and-latency-*.png runs/digits/coverage-by-time-and-class-*.png results/digits
	sed '/href="demo.html"/d' runs/digits/report.html > results/digits/report.html

ci: test lowest

clean:  ## remove the environments, the caches and the built pages
	rm -rf $(VENV) $(CLUSTER) $(PEERS) $(CLEAN) $(RELEASE) .venv-core dist site build docs/gallery docs/tutorials docs/api/generated .mypy_cache .ruff_cache .pytest_cache .hypothesis
