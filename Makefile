# Each target creates the virtual environment that it needs; PYTHON and VENV choose another one.
#   make test        the tests, without those marked as slow
#   make quick       two cases of each test that needs no PostgreSQL, in about a minute
#   make check       all tests, the linters and the documentation
#   make long        the randomized tests, with many more examples
#   make lowest      all tests with the lowest versions of the dependencies
#   make frameworks  the tests of the adapters for agent frameworks, without those marked as slow
#   make vendors     prompts in the types of the newest packages of the providers
#   make dist        a release in `dist`, built and checked: make dist FILES=https://… (the files at the tag)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FRAMEWORKS ?= .venv-frameworks
VENDORS ?= .venv-vendors

# Containers often forbid Python to keep what it compiled: each worker and each child would compile everything again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test quick slow all long lint docs check lowest frameworks frameworks-lowest vendors browser bench proof dist clean

demo: $(VENV)/.installed
	$(BIN)/lango-store demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto -m "not slow"

quick: $(VENV)/.test
	$(BIN)/python -m pytest --few -m "not slow and not postgresql"  # each worker of -n would collect all tests again

# Randomized histories, fuzzing, failover, hung servers, and races of several processes.
slow: $(VENV)/.test
	$(BIN)/python -m pytest -n auto -m slow

# The tests of `test` and `slow` in one run, which collects them once.
all: $(VENV)/.test
	$(BIN)/python -m pytest -n auto

# All tests, with many more random examples: takes hours.
long: export LANGO_STORE_EXAMPLES = 500
long: export LANGO_STORE_MACHINE_EXAMPLES = 300
long: export LANGO_STORE_RACE_SECONDS = 120
long: export LANGO_STORE_TURN_ROUNDS = 200
long: export LANGO_STORE_WORK_SECONDS = 600
long: export LANGO_STORE_TAIL_READERS = 1000
long: export LANGO_STORE_TAIL_WRITES = 300
long: export LANGO_STORE_UI_TURNS = 1000
long: export LANGO_STORE_API_OPERATIONS = 10000
long: export LANGO_STORE_CHAT_PAGE_RUNS = 150
long: export LANGO_STORE_DAMAGE_ROUNDS = 300
long: export LANGO_STORE_DAMAGED_LOGS = 10000
long: export LANGO_STORE_MIXED_LOGS = 100000
long: export LANGO_STORE_FAILOVER_ROUNDS = 10
long: export LANGO_STORE_REPLICA_PAIRS = 10000
long: export LANGO_STORE_FUZZ_SECONDS = 600
long: export LANGO_STORE_PLANTED_FAULTS = all
long: export LANGO_STORE_EACH_ROOM = 1
long: $(VENV)/.test $(FRAMEWORKS)/.frameworks
	$(BIN)/python -m pytest -n auto --timeout 7200
	$(MAKE) browser
	$(FRAMEWORKS)/bin/python -m pytest -n auto --timeout 7200 tests/frameworks

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint docs all

# The documentation as a site, in build/site; a warning is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lowest:
	$(MAKE) all VENV=.venv-lowest CONSTRAINTS='--constraint .ci/lowest.txt'

# The frameworks have many dependencies, so they are installed in a separate virtual environment.
frameworks: $(FRAMEWORKS)/.frameworks
	$(FRAMEWORKS)/bin/python -m pytest -n auto -m "not slow" tests/frameworks
	$(FRAMEWORKS)/bin/python tests/frameworks/openai_agents/own_tests.py
	$(FRAMEWORKS)/bin/python -m mypy lango_store/integrations tests/frameworks

frameworks-lowest:
	$(MAKE) frameworks FRAMEWORKS=.venv-frameworks-lowest CONSTRAINTS='--constraint .ci/frameworks-lowest.txt'

# The newest packages of the providers, of which adapters of frameworks need older ones.
vendors: $(VENDORS)/.vendors
	$(VENDORS)/bin/python -m pytest --noconftest tests/vendors

# Needs Chromium, Node and npm.
browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser

bench: $(VENV)/.test
	$(BIN)/python -m benchmarks

# The properties under faults, for ten minutes; a table at the end.
proof: $(VENV)/.test
	$(BIN)/python -m benchmarks.proof --seconds 150

dist: $(VENV)/.test
	$(BIN)/python .ci/release.py "$(FILES)"

clean:
	rm -rf $(VENV) $(VENDORS) .venv-lowest $(FRAMEWORKS) .venv-frameworks-lowest build dist

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

$(VENDORS)/.vendors: pyproject.toml
	$(PYTHON) -m venv $(VENDORS)
	$(VENDORS)/bin/python -m pip install --quiet 'pip>=25.1'
	$(VENDORS)/bin/python -m pip install --quiet --upgrade --editable . --group vendors
	@touch $@
