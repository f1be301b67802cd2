# Every target builds the project's own .venv when it is needed.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install browser demo test test-slow wheel-test check fix bench golden docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: .venv/installed browser ## build .venv with every extra, pinned by constraints.txt

browser: ## install Chromium for the tests of reports, if it is missing
	@scripts/browser

# torch is installed first with an exact version: otherwise pip may choose a CUDA build.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0 --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[all]' --constraint constraints.txt
	touch $@

demo: install ## run the demonstration: a small town, an outbreak, four methods, a report
	$(BIN)/epifalcon demo

test: install ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=30 -m "not slow"

test-slow: install ## run the slow tests of studies
	$(BIN)/python -m pytest -m slow

wheel-test: install ## build the packages, install the wheel into an empty environment and use it
	scripts/wheel_test

check: install ## check format, lint, types and import contracts
	scripts/check

fix: install ## format and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## run all benchmarks
	$(BIN)/python benchmarks/run.py all

golden: install ## update the golden numbers after an intended change of results
	$(BIN)/python scripts/golden.py

docs: install ## build the documentation into site/
	$(BIN)/python scripts/reference.py
	$(BIN)/mkdocs build --strict

clean: ## remove all generated files
	rm -rf .venv runs/demo site build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
