# Every target builds the project's own .venv when it is needed.
PYTHON ?= python3.11
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install browser demo test test-slow check fix bench golden docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: .venv/installed browser ## build .venv with every extra, pinned by constraints.txt

browser: ## install Chromium, in which tests open reports, where it is missing
	@scripts/browser

# torch goes first and exactly pinned: a looser request takes a build with gigabytes of CUDA.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet torch==2.13.0 --constraint constraints.txt
	$(BIN)/python -m pip install --quiet --editable '.[all]' --constraint constraints.txt
	touch $@

demo: install ## a small city, an outbreak, Falcon beside its rivals; runs/demo/report.html
	$(BIN)/epifalcon run --preset hamlet --mode paper \
		--set privacy.upload_sigma=0.1 --set privacy.gradient_sigma=0.1 \
		--beside hgnn --beside soft-dct-ratio --beside hbp --beside falcon-field --beside oracle \
		--out runs/demo --overwrite
	@echo
	@echo "Open this in a browser: $(CURDIR)/runs/demo/report.html"

test: install ## run all tests
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations=30 -m "not slow"

test-slow: install ## run the slow studies' tests
	$(BIN)/python -m pytest -m slow

check: install ## format, lint, strict types, import contracts
	scripts/check

fix: install ## format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## run every benchmark; ratios against a plain version or a peer
	$(BIN)/python benchmarks/run.py all

golden: install ## renew the golden numbers after a wanted change of results
	$(BIN)/python scripts/golden.py

docs: install ## build the documentation into site/
	$(BIN)/python scripts/reference.py
	$(BIN)/mkdocs build --strict

clean: ## remove everything that was built
	rm -rf .venv runs/demo site build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
