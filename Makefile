# make demo · make test · make test-all · make lint: each installs what it needs into .venv.
# make wheel · make lowest · make warnings · make sanitize: checks before a release.

PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard native/*.?pp native/*/*.?pp native/c/*.[ch])

SANITIZED := .venv-sanitize/bin
STEPS := '^ *(\[ *[0-9]+(/[0-9]+|%)\]|Collecting|Downloading|Installing|Building|Successfully|ERROR)'

# One environment per Python version that wheels are built with: make wheel PYTHON=python3.12
WHEELS = .venv-wheel-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')/bin
LOWEST := .venv-lowest/bin
ANNIF := .venv-annif/bin
# Runs test files side by side, two per core, because many wait for servers, browsers and clusters; the
# tests of a file run one after another.
PARALLEL = -n $$(( 2 * $$(nproc 2>/dev/null || echo 2) )) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint format docs warnings wheel lowest sanitize fuzz aarch64 annif clean FORCE
.DELETE_ON_ERROR:

demo: .venv/installed
	@echo "== Generating data, training and evaluating"
	$(BIN)/dismec demo

test: .venv/tools
	$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow"

test-all: .venv/tools
	$(BIN)/python -m pytest -q $(PARALLEL)

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32
	$(BIN)/mypy --platform darwin
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

format: .venv/tools
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# Builds the documentation site in build/docs. A broken link or reference is an error.
docs: .venv/docs-tools
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo "== The documentation is in build/docs/index.html"

# Compiles the native code with every installed compiler, for every instruction set, and for macOS,
# musl and Windows; a warning is an error.
warnings: .venv/compilers
	$(BIN)/python .ci/compilers.py

# Builds an sdist and, from it, a wheel in dist/. auditwheel limits and labels the system libraries
# that the wheel needs, and abi3audit finds symbols outside the stable ABI.
wheel:
	$(PYTHON) -m venv $(WHEELS:/bin=)
	$(WHEELS)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(WHEELS)/python -m pip install --quiet --group wheel
	rm -rf dist build/dist
	CXX="$(CXX)" $(WHEELS)/python -m build --outdir build/dist .
	mkdir -p dist
	cp build/dist/*.tar.gz dist/
	if [ "$$(uname)" = Linux ]; then \
	  PATH="$(CURDIR)/$(WHEELS):$$PATH" $(WHEELS)/auditwheel repair --wheel-dir dist build/dist/*.whl; \
	  else cp build/dist/*.whl dist/; fi
	case $$(echo dist/*.whl) in *-abi3-*) $(WHEELS)/abi3audit --strict dist/*.whl;; esac
	$(WHEELS)/twine check --strict dist/*

# Builds and tests with the lowest versions that pyproject.toml allows.
lowest: .venv-lowest/tools
	$(LOWEST)/python -m pytest -q $(PARALLEL) -m "not slow"

# Tests the native code under GCC's AddressSanitizer and UndefinedBehaviorSanitizer. Python itself is
# not built with them, so their libraries must be preloaded.
sanitize: .venv-sanitize/tools
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(SANITIZED)/python -m pytest -q -p no:cacheprovider -m "native and not slow and not cluster"

# Tries mutated models, data files and requests under the same sanitizers; keeps faults in build/fuzz.
SECONDS ?= 600
SEED ?= 0
fuzz: .venv-sanitize/tools
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16:allocator_may_return_null=1:max_allocation_size_mb=4096 \
	UBSAN_OPTIONS=print_stacktrace=1 \
	$(SANITIZED)/python tests/fuzz/run.py --seconds $(SECONDS) --seed $(SEED)

# Cross-compiles the native code for 64-bit ARM, and tests it under emulation.
aarch64: .venv/bin/python
	PYTHON=$(BIN)/python tools/aarch64.sh

# Tests the backend of integrations/annif in Annif itself, which needs Python 3.13 or earlier.
annif: .venv-annif/tools
	$(ANNIF)/python -m pytest -q integrations/annif

.venv/bin/python:
	@echo "== Creating a Python environment in .venv"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dismec needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# An editable install lists each module by name: reinstall when modules are added or removed, but not
# when they change.
.venv/modules: .venv/bin/python FORCE
	@find src -name '*.py' | sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# The tutorial needs the estimators, the server and plots. Only the lines of pip's output that show
# progress are printed, since compiling takes minutes; the rest is in the log.
.venv/installed: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE) .venv/modules
	@echo "== Installing dependencies and compiling dismec: two or three minutes the first time"
	@rm -f .venv/failed
	@{ $(BIN)/python -m pip install --verbose --editable '.[sklearn,server,plots]' 2>&1 || touch .venv/failed; } \
	  | tee .venv/install.log | grep --line-buffered -E $(STEPS) || true
	@if [ -e .venv/failed ]; then tail -n 40 .venv/install.log; \
	  echo "== Installation failed; the whole output is in .venv/install.log"; exit 1; fi
	touch $@

.venv/tools: .venv/installed
	@echo "== Installing the requirements of tests and linters"
	$(BIN)/python -m pip install --group test --group http --group lint
	touch $@

.venv/compilers: .venv/tools
	$(BIN)/python -m pip install --quiet --group compilers
	touch $@

.venv/docs-tools: .venv/installed
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

.venv-sanitize/tools: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE)
	.venv/bin/python -m venv .venv-sanitize
	$(SANITIZED)/python -m pip install --quiet --upgrade "pip>=25.1"
	CXX="$(CXX)" $(SANITIZED)/python -m pip install --quiet --editable . \
	  -C cmake.define.DISMEC_SANITIZE=ON -C build-dir=build/sanitize
	$(SANITIZED)/python -m pip install --quiet --group test
	touch $@

.venv-lowest/tools: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE)
	.venv/bin/python -m venv --clear .venv-lowest
	$(LOWEST)/python -m pip install --quiet --upgrade "pip>=25.3"
	$(LOWEST)/python .ci/lowest.py > .venv-lowest/run.txt
	$(LOWEST)/python .ci/lowest.py --build > .venv-lowest/build.txt
	CXX="$(CXX)" $(LOWEST)/python -m pip install --quiet --constraint .venv-lowest/run.txt \
	  --build-constraint .venv-lowest/build.txt --editable '.[all]' -C build-dir=build/lowest
	$(LOWEST)/python -m pip install --quiet --constraint .venv-lowest/run.txt --group test
	touch $@

.venv-annif/tools: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE) integrations/annif/pyproject.toml
	.venv/bin/python -m venv .venv-annif
	$(ANNIF)/python -m pip install --quiet --upgrade "pip>=25.1"
	CXX="$(CXX)" $(ANNIF)/python -m pip install --quiet --editable . -C build-dir=build/annif
	$(ANNIF)/python -m pip install --quiet --editable integrations/annif \
	  --group integrations/annif/pyproject.toml:test
	touch $@

clean:
	rm -rf .venv .venv-sanitize .venv-peers .venv-lowest .venv-annif .venv-wheel-* build dist
