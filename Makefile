# `make run` and `make test` do everything on a machine that has only Python (3.10 or later) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NEWER := $(VENV)/newer-servers
comma := ,

.DEFAULT_GOAL := help
.PHONY: help run test lint bench golden servers clean

help: ## say what there is to make
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

# The stamps say what is installed; a change of pyproject.toml or of the locked versions installs again.
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
run: $(VENV)/.installed ## observe an example that is slow, and say why: SLOW=augmentation, workers, storage, stall or none
	$(BIN)/trainwatch run --name example-$(SLOW) -- $(BIN)/python examples/train_images.py --slow $(SLOW)

lint: $(VENV)/.developing ## ruff, mypy --strict, and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

servers: $(VENV)/.developing ## install Debian's Prometheus, Alertmanager and Chromium, where that is possible
	@sh tests/install-servers $(abspath $(NEWER))
	@sh tests/install-grafana-models $(BIN)/python $(VENV)/grafana-models

test: lint servers ## everything: style, types, and the tests against the real servers, of today and newer
	$(BIN)/python -m pytest $(TESTS)
ifndef TESTS
	if [ -e $(NEWER)/complete ]; then PATH="$(abspath $(NEWER))/usr/bin:$$PATH" $(BIN)/python -m pytest -m servers; fi
endif

golden: $(VENV)/.developing ## write the golden files of the tests anew
	$(BIN)/python -m pytest --renew-golden -k golden $(TESTS)

bench: $(VENV)/.developing ## measure what Trainwatch costs, against its budgets
	PATH="$(abspath $(NEWER))/usr/bin:$$PATH" $(BIN)/python -m benchmarks $(BENCHMARKS)

clean: ## remove what make installed and what runs left behind
	rm -rf $(VENV) trainwatch-runs examples/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
