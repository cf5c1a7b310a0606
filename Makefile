# `make run` and `make test` do everything on a machine that has only Python (3.11 or later) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported, which is a fraction of those that pip would compile.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE
LOCKED := $(PIP) --require-hashes
NEWER := $(VENV)/newer-servers
NPM := tests/axe tests/operator-models
# The tests marked `trial` are those of `make trials`. What is marked `alone` says why in its file.
PYTEST := $(BIN)/python -m pytest
# Four for two cores: tests wait for servers, processes and windows of time. In the order of tests/conftest.py.
AT_ONCE := --numprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run test lint worlds bench bench-scale trials truth golden pictures programs servers models docs package lock sbom clean

help: ## list all targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

# The stamps record what is installed; a change of pyproject.toml or of the locked versions installs again.
$(VENV)/.installed: pyproject.toml requirements.lock requirements-build.lock
	@echo "installing into $(VENV): a minute or two, once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(LOCKED) --requirement requirements.lock --requirement requirements-build.lock
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.tools: $(VENV)/.installed requirements-dev.lock
	$(BIN)/python $(LOCKED) --requirement requirements-dev.lock
	@touch $@

# With PYTORCH=1, and in CI, the tests that train with PyTorch, TensorFlow and Keras run too (GBs, so not by default).
# Keras 2, tf_keras, would install TensorFlow for GPUs as well.
PYTORCH ?= $(if $(CI),1)
$(VENV)/.developing: $(VENV)/.tools requirements-frameworks.txt
	$(if $(PYTORCH),$(BIN)/python $(PIP) --requirement requirements-frameworks.txt)
	$(if $(PYTORCH),$(BIN)/python $(PIP) --no-deps tf_keras==2.21.0)
	@touch $@

SLOW ?= augmentation
run: $(VENV)/.installed ## observe a slow example and report why: SLOW=augmentation, workers, storage, stall or none
	@echo "training the example for about a minute; $(SLOW) is what slows it down"
	@$(BIN)/stepscope run --name example-$(SLOW) -- $(BIN)/python examples/train_images.py --slow $(SLOW)

lint: $(VENV)/.developing ## ruff, mypy --strict, imports between packages, and the English of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tests.support.prose

programs: # of Debian, while pip installs
	@sh tests/install-servers $(abspath $(NEWER))

servers: programs models ## install Debian's Prometheus, Alertmanager and Chromium, and npm's packages, if possible

models: programs $(VENV)/.tools
	@sh tests/install-grafana-models $(BIN)/python $(VENV)/grafana-models
	@for folder in $(NPM); do [ $$folder/node_modules/.package-lock.json -nt $$folder/package-lock.json ] \
		|| npm ci --prefix $$folder --ignore-scripts --no-audit --no-fund --silent \
		|| echo "not installed: $$folder; the tests that need it will be skipped (in CI they fail)"; done

worlds: programs $(VENV)/.tools  # what many tests read
	@$(BIN)/python -m tests.support.worlds

# pytest compiles all tests of a fresh clone: once, and not in each of the workers at once.
$(VENV)/.collected: $(VENV)/.tools
	@$(PYTEST) --collect-only --quiet > /dev/null; touch $@

# At once, because they wait for downloads, for servers and for files, and mypy takes one core.
BEFORE_TESTS := worlds lint $(VENV)/.developing models $(VENV)/.collected $(if $(CI),sbom)
test: $(if $(TESTS),$(VENV)/.developing) ## lint, then all tests; TESTS=tests/rules: only these, without lint
ifdef TESTS
	$(PYTEST) $(AT_ONCE) -m 'not trial' $(TESTS)
else
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target $(BEFORE_TESTS)
	$(PYTEST) $(AT_ONCE) -m 'not trial and not alone'
	$(PYTEST) -m 'alone and not trial' $$(grep -rl --include='test_*.py' pytest.mark.alone tests)
	$(BIN)/python -m tests.support.audit
endif

golden: $(VENV)/.developing ## renew the golden files of the tests
	$(BIN)/python -m pytest --renew-golden -k golden $(TESTS)

pictures: $(VENV)/.developing ## take the pictures of docs/dashboards.md: GRAFANA_URL=http://localhost:3000, with docs/stack.md's runs
	$(BIN)/python -m tests.support.pictures "$(GRAFANA_URL)" $(PICTURES)

docs: $(VENV)/.developing ## build the documentation as a site, build/docs/index.html, with search and a dark mode
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo build/docs/index.html

# The same bytes from the same commit: hatchling sorts the files and sets their times and permissions.
package: $(VENV)/.installed ## build the wheel and the source distribution into dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

# HolisticTraceAnalysis, which benchmarks/traces.py compares with, does not work with the pandas of today.
$(VENV)/hta/bin/python:
	$(PYTHON) -m venv $(VENV)/hta
	-$@ $(PIP) HolisticTraceAnalysis "pandas<3"

bench: $(VENV)/.developing $(VENV)/hta/bin/python ## measure the cost of Stepscope against its budgets
	HTA_PYTHON="$${HTA_PYTHON:-$(VENV)/hta/bin/python}" PATH="$(abspath $(NEWER))/usr/bin:$$PATH" $(BIN)/python -m benchmarks $(BENCHMARKS)

bench-scale: $(VENV)/.developing ## measure a cluster of NODES=1000 in Prometheus and VictoriaMetrics: 26 minutes for each of 4 rows
	$(BIN)/python -m benchmarks.scale --nodes $(or $(NODES),1000) --markdown $(SCALE)

trials: $(VENV)/.developing ## try to break what Stepscope promises: kill -9, corrupt files, floods; the tests of many seeds
	$(BIN)/python -m trials $(TRIALS)
	$(if $(TRIALS),,$(PYTEST) -m 'trial or hypothesis')

truth: $(VENV)/.developing ## plant faults and score what is said; FULL=1: in all severities, on every rank
	$(BIN)/python -m trials.fault_matrix --jobs 2 $(if $(FULL),--full)
	$(BIN)/python $(PIP) --requirement requirements-frameworks.txt
	$(BIN)/python -m trials.everyday
	$(BIN)/python -m trials.truth $(if $(FULL),--full) $(TRUTH)
	$(BIN)/python -m trials.truth --rival $(if $(FULL),,--minutes 3) $(TRUTH)

# For every Python and platform, from the oldest Python on. pip checks the hashes of all that it installs from a lock.
UV := $(VENV)/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock" --no-emit-package pip --no-emit-package stepscope
lock: ## renew requirements*.lock: the newest versions that pyproject.toml allows, with the hashes of all their files
	$(PYTHON) -m venv $(VENV)/uv
	$(VENV)/uv/bin/python $(PIP) uv
	$(UV) --extra dev --output-file requirements-dev.lock pyproject.toml
	$(UV) --extra passwords --constraint requirements-dev.lock --output-file requirements.lock pyproject.toml
	printf 'hatchling\neditables\n' | $(UV) --constraint requirements-dev.lock --output-file requirements-build.lock -

# What an installation has, and nothing of the development.
sbom: $(VENV)/.tools ## write the software bill of materials of an installation (CycloneDX): stepscope.cdx.json
	$(PYTHON) -m venv --clear --without-pip $(VENV)/installation
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(VENV)/installation .
	$(BIN)/python -m pip --python $(VENV)/installation/bin/python install --quiet --no-compile --require-hashes \
		--requirement requirements.lock
	$(BIN)/python -m pip --python $(VENV)/installation/bin/python install --quiet --no-compile --no-deps --no-index \
		$(VENV)/installation/*.whl
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file stepscope.cdx.json $(VENV)/installation/bin/python

clean: ## remove everything that make and runs created
	rm -rf $(VENV) stepscope-runs build dist stepscope.cdx.json examples/data .pytest_cache .mypy_cache .ruff_cache .hypothesis
