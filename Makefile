# `make quickstart` and `make test` do all set-up themselves; both work in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: quickstart pins test test-all lint lint-types lint-rest docs setup clean
.DEFAULT_GOAL := quickstart

quickstart: setup  ## Train six methods on handwritten digits and print the table.
	@$(BIN)/pfl run

# Tests run beside each other, and most of their runs are shorter than starting workers for them takes.
test: setup lint  ## What a change can plausibly break.
	@PFL_WORKERS=1 $(BIN)/pytest -n auto

test-all: setup lint  ## Everything, on as many workers as a run takes here, and what only the slowest need.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,slow]'
	@$(BIN)/pytest -n auto -m 'not slow'
	@$(BIN)/pytest -m slow

pins: setup  ## Whether anything that is pinned has changed: run ids, data, numbers, tables, kept results.
	@PYTHONPATH=.:tests $(BIN)/python -m pins $(if $(RECORD),--record) $(KINDS)

lint: setup  ## Style, types, the direction of imports, fresh stage files.
	@$(MAKE) --no-print-directory -j 2 lint-types lint-rest

lint-types:
	@$(BIN)/mypy

lint-rest:
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/pfl compile --check
	@$(BIN)/pfl validate quickstart

docs: setup  ## The docs as a site in build/docs; a link that leads nowhere is an error.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs]'
	@$(BIN)/python -m sphinx -q -n -W --keep-going -c docs -d build/doctrees . build/docs
	@cp build/docs/README.html build/docs/index.html && echo build/docs/index.html

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
