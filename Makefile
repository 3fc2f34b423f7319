# Commands for a newcomer, each does its own set-up from a fresh clone:
#   make repro      the Gemma-4 SWA page-table crash on this CPU, on today's SGLang: reproduced, trapped, fixed
#   make test       lint, types, import rules, and the tests that answer within minutes
#   make test-all   these, and every other test that this machine can run
#   make test-releases   on the other releases of SGLang: types, and every test that asks for SGLang, but for those of the
#                        live engine that run on the newest as well; make test-release RELEASE=... has these too
# Each takes RELEASE=..., 0.5.13.post1 or 0.5.23, to run on that release of SGLang, in an environment of its own.
SHELL   := /bin/bash
PYTHON  ?= python3
# The newest release, in .venv; the others' environments are named after them. The patches were written for the base.
DEFAULT := 0.5.23
BASE    := 0.5.13.post1
RELEASE ?= $(DEFAULT)
# By release, the extra of pyproject.toml and the lock.
EXTRA-0.5.13.post1 := sglang-0.5.13
LOCK-0.5.13.post1  := constraints.txt
EXTRA-0.5.23       := sglang-0.5.23
LOCK-0.5.23        := constraints-0.5.23.txt
RELEASES := $(patsubst EXTRA-%,%,$(filter EXTRA-%,$(.VARIABLES)))
EXTRA   := $(EXTRA-$(RELEASE))
LOCK    := $(LOCK-$(RELEASE))
VENV    ?= $(if $(filter-out $(DEFAULT),$(RELEASE)),.venv-$(RELEASE),.venv)
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed-$(shell cat $(LOCK) pyproject.toml Makefile </dev/null | sha256sum | cut -c1-16)

.PHONY: repro test test-all test-engine test-release test-releases test-crash fuzz targets mutants coverage coverage-release lint lint-style lint-imports lint-docstrings types format setup lock clean

repro: setup
	$(BIN)/gemma4-triage repro e4b-trtllm

# Two processes, a file to each: an engine keeps one core busy, and a file's tests share what they started. Files are taken
# in the order of collection, where tests/engine/conftest.py puts the longest first: at the end one process waits for the
# other's file.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
SLOW   := engine or gpu or slow

# Unit tests, contracts, the kernels under the interpreter, and of the live engine what is marked `smoke`.
test: lint
	$(PYTEST) -m "not ($(SLOW)) or smoke"

test-all: test test-engine

# What `make test` leaves out: the rest of the live engine's tests, what takes gigabytes or many processes, what imports all
# of SGLang or compiles in a process of its own, and what needs a CUDA device, which skips without one.
test-engine: setup
	$(PYTEST) -m "($(SLOW)) and not smoke"

# The tests that say that they are for RELEASE, the engine's included: reproductions, contracts, the probes' self tests in an
# attached process, the corpus' sample. Of the corpus all cases: gemma4-triage repro corpus, in that environment. The other
# files ask nothing of SGLang, and make test has them once.
WHICH  ?= releases
MARKED := -m "$(WHICH)" $$(grep -rl --include='test_*.py' 'mark\.releases(' tests | sort)
test-release: types
	$(PYTEST) $(MARKED)

# Of each other release. Of the live engine what it has of its own, and little of what the newest has run too, since both
# together are more than an hour: a test is `twice` by tests/conftest.py, or is marked so, where its file has one like it.
# make test-release RELEASE=... runs all.
test-releases:
	@for release in $(filter-out $(DEFAULT),$(RELEASES)); do \
	  $(MAKE) --no-print-directory test-release RELEASE=$$release WHICH="releases and not twice" || exit 1; done

# Every script of repro/crash_repro on the CPU engine with the toys; make test-all runs a few of them.
test-crash: setup
	CRASH_SCRIPTS=all $(BIN)/python -m pytest tests/engine/test_crash_scripts_live.py -k every_script

# Damaged dumps through everything that reads them; make fuzz INPUTS=1000 for fewer.
INPUTS ?= 100000
fuzz: setup
	$(BIN)/python tests/fuzz/run.py --inputs $(INPUTS)

# What became of every function we attach to, in a release that is unpacked and not installed, since the newest known one
# before it: make targets RELEASE=0.5.24; AGAINST=0.5.13.post1 compares with another known one.
targets:
	$(MAKE) --no-print-directory setup RELEASE=$(DEFAULT)
	.venv/bin/python tests/tools/compare_targets.py $(RELEASE) $(addprefix --against ,$(AGAINST))

# Each release's types differ, and its libraries'; pyproject.toml says what only an older release has.
PYRIGHT = $(BIN)/pyright $(addprefix --project ,$(wildcard pyright-$(RELEASE).json))
types: setup
	$(PYRIGHT)

# Types take most of it, in one process; the rest goes beside them.
lint: setup
	@TIMEFORMAT="lint, types and import rules took %0R s"; \
	  time $(MAKE) --no-print-directory --jobs 2 --output-sync=target types lint-style lint-imports lint-docstrings

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-imports:
	$(BIN)/lint-imports

lint-docstrings:
	$(BIN)/python tests/tools/docstring_ratchet.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(STAMP)

# uv keeps every wheel in its own cache outside the checkout and links it into $(VENV): the 10 GB are fetched once per machine,
# and what two releases have alike lies on the disk once.
# One that holds another release is made anew.
# Sources are compiled here, a minute, and not by every process that imports SGLang where Python may not write bytecode.
$(STAMP): $(LOCK) pyproject.toml
	$(if $(EXTRA),,$(error there is no environment for SGLang $(RELEASE); there is one for $(RELEASES)))
	ls -d $(VENV)/lib/python3*/site-packages/sglang-$(RELEASE).dist-info >/dev/null 2>&1 || \
	  $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(LOCK) uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint $(LOCK) --editable '.[$(EXTRA),dev]'
	$(BIN)/uv pip check --python $(BIN)/python
	rm -f $(VENV)/.installed-*
	touch $@

# Which of 100 seeded mutants of checks, dumps and diagnose the tests kill; hours on 2 cores.
mutants: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint $(LOCK) --editable '.[$(EXTRA),dev,measure]'
	$(BIN)/python tests/tools/measure_mutants.py run

# Which share of each package's branches the tests reach, with every release's own tests; twice as long as make test-all.
MEASURED := PYTHONPATH=$(CURDIR)/tests/tools COVERAGE_RCFILE=$(CURDIR)/pyproject.toml
coverage:
	rm -rf build/coverage && mkdir -p build/coverage
	@for release in $(RELEASES); do \
	  $(MAKE) --no-print-directory coverage-release RELEASE=$$release || touch build/coverage/failed; done
	find build/coverage -name 'data.*' ! -name '*-journal' -print0 | \
	  $(MEASURED) xargs -0 -n 1000 .venv/bin/python -m coverage combine --quiet --append --data-file=build/coverage/all
	$(MEASURED) .venv/bin/python tests/tools/coverage_by_package.py build/coverage/all
	@test ! -e build/coverage/failed || { echo "error: tests failed, so the figures may be too low" >&2; exit 1; }

# Adds what the tests for RELEASE reach to the data of make coverage.
coverage-release: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint $(LOCK) --editable '.[$(EXTRA),dev,measure]'
	$(MEASURED) COVERAGE_FILE=$(CURDIR)/build/coverage/data \
	  $(BIN)/python -m coverage run -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder \
	  $(if $(filter-out $(DEFAULT),$(RELEASE)),$(MARKED))

# Resolves the lock of RELEASE anew after a change to pyproject.toml. Pins that still fit stay; make lock UPGRADE=--upgrade
# takes the newest of everything. Run make test-all afterwards.
lock: setup
	$(BIN)/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --no-annotate --no-emit-index-url \
	  --custom-compile-command "make lock" --extra $(EXTRA) --extra dev --extra measure pyproject.toml --output-file $(LOCK)

clean:
	rm -rf .venv .venv-* build *.egg-info
