# `make quickstart` and `make test` do all set-up themselves; both work in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: quickstart test lint slow setup clean
.DEFAULT_GOAL := quickstart

quickstart: setup  ## Train six methods on handwritten digits and print the table.
	@$(BIN)/pfl run

test: setup lint  ## Everything that continuous integration runs.
	@$(BIN)/pytest -n auto

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pfl compile --check

slow: setup  ## The tests that take minutes, and what only they need.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,slow]'
	@$(BIN)/pytest -m slow

setup: $(READY)  ## The environment, and DVC with or without git.
	@$(BIN)/pfl setup

# Made anew only when what is to be installed changes.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; say where: make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "Installing into .venv (about 3 GB with a CUDA build of torch; minutes) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

clean:  ## Remove what runs produced here; specs, stages and the environment stay.
	rm -rf artifacts build reports/*/ reports/index.* .pfl
