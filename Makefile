# Every target sets up what it needs, in .venv, the first time and whenever the dependencies change.

ARCH ?= impala
ENV ?= CartPole-v1
ARGS ?= $(if $(filter CartPole-v1,$(ENV)),--stop-at-return 475)
PYTHON ?= python3
BIN := .venv/bin
TESTS ?= tests

# A worker per core, at most 4. The folders of long tests come first, so that no long test starts last.
SPREAD := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
FAST := $(SPREAD) -m "not slow"

.PHONY: train test test-slow test-oldest test-newest coverage wheel test-wheel docs follow-docs lint type format bench bench-peers bench-scale clean

train: .venv/ready
	$(BIN)/thespis train $(ARCH) --env $(ENV) $(ARGS)

# Test workers share the cores: matrix products must not spread over all of them, nor threads spin on them.
test test-slow test-oldest test-newest coverage: export OPENBLAS_NUM_THREADS = 1
test test-slow test-oldest test-newest coverage: export OMP_WAIT_POLICY = PASSIVE

test: .venv/ready-dev lint type
	$(BIN)/python -m pytest $(FAST)

test-slow: .venv/ready-dev
	$(BIN)/python -m pytest $(SPREAD) -m slow

# The fast tests with the oldest dependencies that pyproject.toml allows, or with the newest.
test-oldest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	$(PYTHON) tests/constraints.py $* > .venv-$*/constraints.txt
	.venv-$*/bin/python -m pip install -q -c .venv-$*/constraints.txt -e ".[dev]"
	.venv-$*/bin/python -m pytest $(FAST) $(TESTS)

# The fast tests, or those in TESTS, and the share of lines and branches that they execute.
coverage: .venv/ready-dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(FAST) $(TESTS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# The distribution in dist/, and a run with its wheel in an environment that holds nothing else.
wheel: .venv/ready-dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

test-wheel: wheel
	$(PYTHON) -m venv --clear .venv-wheel
	.venv-wheel/bin/python -m pip install -q -c constraints.txt dist/*.whl
	cd $$(mktemp -d) && $(CURDIR)/.venv-wheel/bin/thespis train impala --env CartPole-v1 --total-steps 20000

# The site, with warnings as errors, always from the beginning: parts of it are written from the code, and an
# incremental build loses entries of the search. LINKS=1 also checks the links to other hosts, which needs a network.
docs: .venv/ready-dev
	$(BIN)/sphinx-build -W --keep-going -q -E -a -b html docs docs/_build/html
	$(BIN)/python docs/_ext/check_site.py docs/_build/html
	$(if $(LINKS),$(BIN)/sphinx-build -q -b linkcheck docs docs/_build/linkcheck)

follow-docs: .venv/ready-dev
	$(BIN)/python tests/follow_docs.py

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

type: .venv/ready-dev
	$(BIN)/mypy

format: .venv/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready-dev
	$(BIN)/python benchmarks/roofline.py

bench-peers: .venv/ready-dev
	$(BIN)/python -m benchmarks.peers.run $(if $(QUICK),--quick)

bench-scale: .venv/ready-dev
	$(BIN)/python -m benchmarks.scale

clean:
	rm -rf .venv .venv-* build dist docs/_build *.egg-info .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e $(if $(findstring ALE/,$(ENV)),".[atari]",.)
	touch $@

.venv/ready-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@ .venv/ready
