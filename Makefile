# Two commands do everything: `make demo` and `make test`. Both set up .venv first.
PYTHON ?= python3.11
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n : 8)))
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What is installed has exact versions and hashes: requirements.lock, torch.lock. TORCH names another build.
define NO_TORCH
No index here has the CPU build of torch that torch.lock names: the plain one is taken, without a
check of its hash. On Linux it brings gigabytes of CUDA packages along. Better: name an index with
the CPU build, `make setup PIP_EXTRA_INDEX_URL=ADDRESS`, or another build, `make setup TORCH=...`
endef
export NO_TORCH

.PHONY: help setup lock demo test lint format types unit docs benchmark audit dist clean

help:  ## show what there is to make
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready  ## create .venv with the library and its tools

.venv/.ready: pyproject.toml requirements.lock torch.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --no-deps --only-binary :all: --require-hashes -r requirements.lock
ifdef TORCH
	$(BIN)/pip install -q $(TORCH)
else
	$(BIN)/pip install -q --no-deps --only-binary :all: --require-hashes -r torch.lock 2> .venv/torch.log || { \
		cat .venv/torch.log >&2; \
		grep -q 'No matching distribution' .venv/torch.log && echo "$$NO_TORCH" >&2 && \
		$(BIN)/pip install -q -c constraints.txt torch; }
endif
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	$(BIN)/pip check
	touch $@

lock:  ## write the locks again from pyproject.toml, by pip's resolver
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python tools/lock.py

demo: setup  ## fit a network of unbounded depth on a spiral and write report.html
	$(BIN)/unbounded demo --out report.html

test: setup lint types unit  ## lint, types and tests

lint: setup  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup  ## mypy
	$(BIN)/mypy

unit: setup  ## the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

format: setup  ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup  ## build the pages into build/docs, tutorials run anew; no network
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs build/docs
	$(BIN)/python tools/check_site.py build/docs

benchmark: setup  ## print the table of speed ratios
	$(BIN)/python -m benchmarks

audit: setup  ## ask whether known vulnerabilities concern the locked versions
	$(BIN)/python tools/audit.py

dist: setup  ## build wheel and source archive into dist/ and check both
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/wheel.py dist/*.whl

clean:  ## remove what make created
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis report.html
