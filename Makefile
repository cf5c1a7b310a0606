# `make run` and `make test` do everything on a machine that has only Python (3.10 or later) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NEWER := $(VENV)/newer-servers
comma := ,

.DEFAULT_GOAL := help
.PHONY: help run test lint bench golden servers clean

help: ## list all targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

# The stamps record what is installed; a change of pyproject.toml or of the locked versions installs again.
$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable .
	@touch $@

# With PYTORCH=1, and in CI, the tests that train with PyTorch run too (hundreds of MB, so not by default).
PYTORCH ?= $(if $(CI),1)
$(VENV)/.developing: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
		--editable '.[dev$(if $(PYTORCH),$(comma)pytorch)]'
	@touch $@

SLOW ?= augmentation
run: $(VENV)/.installed ## observe a slow example and report why: SLOW=augmentation, workers, storage, stall or none
	$(BIN)/trainwatch run --name example-$(SLOW) -- $(BIN)/python examples/train_images.py --slow $(SLOW)

lint: $(VENV)/.developing ## ruff, mypy --strict, imports between packages, and the English of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
		$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tests.support.prose

servers: $(VENV)/.developing ## install Debian's Prometheus, Alertmanager and Chromium if possible
	@sh tests/install-servers $(abspath $(NEWER))
	@sh tests/install-grafana-models $(BIN)/python $(VENV)/grafana-models

test: lint servers ## lint, then all tests, with Debian's and newer servers
	$(BIN)/python -m pytest $(TESTS)
ifndef TESTS
	if [ -e $(NEWER)/complete ]; then PATH="$(abspath $(NEWER))/usr/bin:$$PATH" $(BIN)/python -m pytest -m servers; fi
endif

golden: $(VENV)/.developing ## renew the golden files of the tests
	$(BIN)/python -m pytest --renew-golden -k golden $(TESTS)

bench: $(VENV)/.developing ## measure the cost of Trainwatch against its budgets
	PATH="$(abspath $(NEWER))/usr/bin:$$PATH" $(BIN)/python -m benchmarks $(BENCHMARKS)

clean: ## remove everything that make and runs created
	rm -rf $(VENV) trainwatch-runs examples/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
