# Two commands for a newcomer, each does its own set-up from a fresh clone:
#   make repro    the Gemma-4 SWA page-table crash on this CPU: reproduced, trapped, fixed
#   make test     lint, types, import rules and every test that this machine can run
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-$(shell cat constraints.txt pyproject.toml Makefile | sha256sum | cut -c1-16)

.PHONY: repro test test-crash fuzz lint format setup lock clean

repro: setup
	$(BIN)/gemma4-triage repro e4b-trtllm

# Two processes, a file to each: an engine keeps one core busy, and a file's tests share what they started. In the order of
# folders: engines' files have few tests and take minutes, and at the end one process would wait for the other's.
test: lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Every script of repro/crash_repro on the CPU engine with the toys; make test runs a few of them.
test-crash: setup
	CRASH_SCRIPTS=all $(BIN)/python -m pytest tests/engine/test_crash_scripts_live.py -k every_script

# Damaged dumps through everything that reads them; make fuzz INPUTS=1000 for fewer.
INPUTS ?= 100000
fuzz: setup
	$(BIN)/python tests/fuzz/run.py --inputs $(INPUTS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(STAMP)

# uv keeps every wheel in its own cache outside the checkout and links it into $(VENV): the 10 GB are fetched once per machine.
$(STAMP): constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable '.[runtime,dev]'
	$(BIN)/uv pip check --python $(BIN)/python
	rm -f $(VENV)/.installed-*
	touch $@

# Resolves constraints.txt anew after a change to pyproject.toml. Pins that still fit stay; make lock UPGRADE=--upgrade
# takes the newest of everything. Run make test afterwards.
lock: setup
	$(BIN)/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --no-annotate --no-emit-index-url \
	  --custom-compile-command "make lock" --extra runtime --extra dev pyproject.toml --output-file constraints.txt

clean:
	rm -rf $(VENV) build *.egg-info
