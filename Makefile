# make demo · make test · make quick · make lint — each builds what it needs into .venv.

PYTHON ?= python3
BIN := .venv/bin
NATIVE := $(wildcard native/*.?pp native/*/*.?pp)

SANITIZED := .venv-sanitize/bin
STEPS := '^ *(\[ *[0-9]+(/[0-9]+|%)\]|Collecting|Downloading|Installing|Building|Successfully|ERROR)'

.PHONY: demo test quick lint format sanitize clean FORCE
.DELETE_ON_ERROR:

demo: .venv/installed
	@echo "== Generating data, training and predicting"
	$(BIN)/dismec demo

test: .venv/tools
	$(BIN)/python -m pytest -q

# The inner loop, a minute at most: no clusters, servers, browsers, commands or slow tests, and fewer
# examples of each property. What passes here may still fail in `make test`.
UNHURRIED := calibration cli contract corpus docs editing estimator explanation outputs page \
  printable pruning refining report resuming schemathesis server server_health shards synthetic \
  tail text_training tuning unfinished workers
quick: .venv/tools
	$(BIN)/python -m pytest -q -x --hypothesis-profile=quick \
	  -m "not slow and not unhurried and not cluster" \
	  $(filter-out $(UNHURRIED:%=tests/test_%.py),$(wildcard tests/test_*.py))

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)

format: .venv/tools
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# The native code under GCC's AddressSanitizer and UndefinedBehaviorSanitizer. Python itself knows
# nothing of them, so that their libraries have to be there before it starts.
sanitize: .venv-sanitize/tools
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(SANITIZED)/python -m pytest -q -p no:cacheprovider -m "not slow and not cluster" \
	  tests/test_solver.py tests/test_engine.py tests/test_predictor.py tests/test_shards.py \
	  tests/test_features.py tests/test_dataset.py tests/test_calibration.py \
	  tests/test_explanation.py tests/test_text.py tests/test_tail.py tests/test_tuning.py \
	  tests/test_l1.py tests/test_many_features.py tests/test_team.py tests/test_refining.py \
	  tests/test_weights.py tests/test_allowed.py tests/test_dense.py

.venv/bin/python:
	@echo "== Making .venv, a Python environment of its own"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dismec needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# The install knows each module by name: it is renewed when there are others, not when they change.
.venv/modules: .venv/bin/python FORCE
	@find src -name '*.py' | sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

# The guide needs the server and plots. Of pip's output those lines that show how far it is: minutes
# of compiling are not silent, and the compiler's own remarks are in the log.
.venv/installed: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE) .venv/modules
	@echo "== Installing what dismec needs, and compiling it: two or three minutes the first time"
	@rm -f .venv/failed
	@{ $(BIN)/python -m pip install --verbose --editable '.[server,plots]' 2>&1 || touch .venv/failed; } \
	  | tee .venv/install.log | grep --line-buffered -E $(STEPS) || true
	@if [ -e .venv/failed ]; then tail -n 40 .venv/install.log; \
	  echo "== Not installed; all of the output is in .venv/install.log"; exit 1; fi
	touch $@

.venv/tools: .venv/installed
	@echo "== Installing what tests and linters need"
	$(BIN)/python -m pip install --group test --group lint
	touch $@

.venv-sanitize/tools: .venv/bin/python pyproject.toml CMakeLists.txt $(NATIVE)
	.venv/bin/python -m venv .venv-sanitize
	$(SANITIZED)/python -m pip install --quiet --upgrade "pip>=25.1"
	CXX="$(CXX)" $(SANITIZED)/python -m pip install --quiet --editable . \
	  -C cmake.define.DISMEC_SANITIZE=ON -C build-dir=build/sanitize
	$(SANITIZED)/python -m pip install --quiet --group test
	touch $@

clean:
	rm -rf .venv .venv-sanitize .venv-peers build
