# make demo · make test · make lint — each builds what it needs into .venv.

PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard native/*)

.PHONY: demo test lint format clean
.DELETE_ON_ERROR:

demo: .venv/installed
	$(BIN)/dismec demo

test: .venv/tools
	$(BIN)/python -m pytest -q

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror native/*.cpp native/*.hpp

format: .venv/tools
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i native/*.cpp native/*.hpp

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dismec needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

.venv/installed: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/tools: .venv/installed
	$(BIN)/python -m pip install --quiet --group test --group lint
	touch $@

clean:
	rm -rf .venv build
