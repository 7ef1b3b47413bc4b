# Every target makes the virtual environment it needs; PYTHON and VENV choose another. `make check` checks everything,
# `make long` looks longer for what no test has found yet, `make lowest` runs the tests on the oldest versions of what the
# package depends on, `make frameworks` the tests of the adapters for agent frameworks, which need those installed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FRAMEWORKS ?= .venv-frameworks

# Containers often forbid Python to keep what it compiled: each worker and each child would compile everything again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test long lint docs check lowest frameworks frameworks-lowest browser bench clean

demo: $(VENV)/.installed
	$(BIN)/lango-store demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto

# What is drawn at random in `make test`, drawn far more often: hours.
long: export LANGO_STORE_EXAMPLES = 500
long: export LANGO_STORE_MACHINE_EXAMPLES = 300
long: export LANGO_STORE_RACE_SECONDS = 120
long: export LANGO_STORE_TURN_ROUNDS = 200
long: export LANGO_STORE_TAIL_READERS = 1000
long: export LANGO_STORE_TAIL_WRITES = 300
long: export LANGO_STORE_DAMAGE_ROUNDS = 300
long: export LANGO_STORE_DAMAGED_LOGS = 10000
long: export LANGO_STORE_FAILOVER_ROUNDS = 10
long: export LANGO_STORE_REPLICA_PAIRS = 10000
long: export LANGO_STORE_FUZZ_SECONDS = 600
long: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --timeout 7200

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint docs test

# The documentation as a site, in build/site; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lowest:
	$(MAKE) test VENV=.venv-lowest CONSTRAINTS='--constraint .ci/lowest.txt'

# The frameworks need much, and are nothing that the store needs: they have a virtual environment of their own.
frameworks: $(FRAMEWORKS)/.frameworks
	$(FRAMEWORKS)/bin/python -m pytest -n auto tests/frameworks
	$(FRAMEWORKS)/bin/python tests/frameworks/openai_agents/own_tests.py
	$(FRAMEWORKS)/bin/python -m mypy lango_store/integrations tests/frameworks

frameworks-lowest:
	$(MAKE) frameworks FRAMEWORKS=.venv-frameworks-lowest CONSTRAINTS='--constraint .ci/frameworks-lowest.txt'

# In a real browser: Chromium has to be there.
browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .venv-lowest $(FRAMEWORKS) .venv-frameworks-lowest build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "Python's venv module is missing: install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A new environment has the pip of its Python, which may be too old for dependency groups.
$(VENV)/.pip: $(BIN)/python
	$(BIN)/python -m pip install --quiet 'pip>=25.1'
	@touch $@

$(VENV)/.installed: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[postgresql]'
	@touch $@

$(VENV)/.test: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group test $(CONSTRAINTS)
	@touch $@ $(VENV)/.installed

$(VENV)/.dev: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@ $(VENV)/.test $(VENV)/.installed

$(VENV)/.browser: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group browser
	@touch $@ $(VENV)/.test

$(VENV)/.docs: $(VENV)/.pip pyproject.toml
	$(BIN)/python -m pip install --quiet --editable . --group docs
	@touch $@

$(FRAMEWORKS)/.frameworks: pyproject.toml
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet 'pip>=25.1'
	$(FRAMEWORKS)/bin/python -m pip install --quiet --editable . --group frameworks $(CONSTRAINTS)
	@touch $@
