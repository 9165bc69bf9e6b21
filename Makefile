# Two commands do everything on a fresh Debian or Ubuntu with Python >= 3.11 and a C++ compiler:
#   make demo    a real conversation with real models, and what of it was reused
#   make test    all tests
# Both set up what is missing: the virtual environment (.venv), llama.cpp with the bridge, the small models.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# The bindings are installed without compiling llama.cpp: `lcpd build` does that, once, for this machine.
PIP_INSTALL := CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF" $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test test-fast test-clients lint format build peer models check-gpu check-gpu-pack check-cuda-build bench lock docs clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile; echo "also: test-fast test-clients lint format build bench check-gpu check-gpu-pack check-cuda-build lock docs clean"

$(STAMP): requirements.lock pyproject.toml
	@echo "== virtual environment: $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lcpd needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@echo "== pinned dependencies (about a minute)"
	@$(PIP_INSTALL) --require-hashes --no-binary llama-cpp-python -r requirements.lock
	@$(PIP_INSTALL) --no-deps --editable .
	@touch $@

build: $(STAMP)
	@echo "== llama.cpp and the bridge (about 5 minutes on 2 cores, once)"
	@$(BIN)/lcpd build

peer: $(STAMP)
	@echo "== llama.cpp, the bridge and llama-server to compare with (about 5 minutes on 2 cores, once)"
	@$(BIN)/lcpd build --target llama-server

models: $(STAMP)
	@echo "== models"
	@$(BIN)/lcpd pull demo:smollm2
	@$(BIN)/lcpd pull demo:gemma3

demo: build
	@echo "== models"
	@$(BIN)/lcpd pull demo:smollm2
	@$(BIN)/lcpd demo

test: peer models
	@echo "== fast tests, on two cores"
	@$(BIN)/pytest tests/unit -n 2
	@echo "== the whole API over a scripted engine"
	@$(BIN)/pytest tests/api -n 2
	@echo "== tests with real models, two files at once"
	@$(BIN)/pytest --ignore tests/unit --ignore tests/api -n 2 --dist loadfile

# No compiled code and no model: under a minute.  (tests/api needs neither, but starts two processes for each test.)
# With LCPD_EXAMPLES=20 property tests look twenty times as long.
test-fast: $(STAMP)
	@$(BIN)/pytest tests/unit -n 2

# Hundreds of megabytes from npm, installed once into lcpd's cache folder (docs/clients.md).
test-clients: build
	@INSTALL_CLIENTS=1 $(BIN)/pytest tests/clients

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Hours on a small machine; docs/performance.md describes each.
bench: peer models
	@$(BIN)/python -m benchmarks.engine_parity --streams 1,2,4,8
	@$(BIN)/python -m benchmarks.stall
	@$(BIN)/python -m benchmarks.stall --model demo:hybrid --prompt-tokens 30000
	@$(BIN)/python -m benchmarks.step_overhead
	@$(BIN)/python -m benchmarks.scrape

check-cuda-build: $(STAMP)
	@$(BIN)/python llama.cpp/check_cuda_build.py

# Needs a GPU and what check-gpu-pack made, but neither network nor the virtual environment (docs/gpu.md).
check-gpu:
	@$(PYTHON) llama.cpp/check_gpu/run.py

check-gpu-pack: $(STAMP)
	@PYTHONPATH=llama.cpp $(BIN)/python -m check_gpu.pack

# After changing dependencies in pyproject.toml.
lock: $(STAMP)
	@$(PIP_INSTALL) uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes --no-emit-package lcpd \
		--no-binary llama-cpp-python --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
