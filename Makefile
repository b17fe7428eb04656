# Every target sets up what it needs, in .venv, the first time and whenever the dependencies change.

ARCH ?= impala
ENV ?= CartPole-v1
ARGS ?= $(if $(filter CartPole-v1,$(ENV)),--stop-at-return 475)
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-slow follow-docs lint type format bench bench-peers bench-scale clean

train: .venv/ready
	$(BIN)/thespis train $(ARCH) --env $(ENV) $(ARGS)

# Each test worker has a core: matrix products must not spread over those of the others, nor threads spin on them.
test test-slow: export OPENBLAS_NUM_THREADS = 1
test test-slow: export OMP_WAIT_POLICY = PASSIVE

test: .venv/ready-dev lint type
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m "not slow"

test-slow: .venv/ready-dev
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile -m slow

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
	rm -rf .venv .venv-peers build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e $(if $(findstring ALE/,$(ENV)),".[atari]",.)
	touch $@

.venv/ready-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@ .venv/ready
