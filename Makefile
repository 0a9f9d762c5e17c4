# Two commands do everything: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo test lint format types unit benchmark clean

help:  ## show what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready  ## create .venv with the library and its tools

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch==2.13.0
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: setup  ## fit a network of unbounded depth on a spiral and write report.html
	$(BIN)/unbounded demo --out report.html

test: setup lint types unit  ## lint, types and tests

lint: setup  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## mypy
	$(BIN)/mypy

unit: setup  ## the tests
	$(BIN)/python -m pytest -q

format: setup  ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: setup  ## print the table of speed ratios
	$(BIN)/python -m benchmarks

clean:  ## remove what make created
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis report.html
