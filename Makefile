# Needs a Python of 3.11 or newer, git and make; everything else is fetched by the package clients.

.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Two processes share the tests, each taking the next file: much of what they do is waiting for each other's programs. One
# whose test hangs ends (pyproject.toml); it is replaced once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 1

# Where it is set, as in many containers, a gateway takes half as long again to start, and hundreds start in the tests.
unexport PYTHONDONTWRITEBYTECODE

# The first of these that is new enough; PYTHON=... chooses. The system's own comes first: distributions build theirs with
# profile-guided optimization, which saves a sixth of the CPU a message over what pyenv builds by default.
PYTHONS := $(or $(PYTHON),/usr/bin/python3 python3.13 python3.12 python3.11 python3.14 python3 python)

# Debian's packages that tests use where they are there: a browser for pages, a recorder of packets, a clock to set.
SYSTEM_PROGRAMS := chromium chromedriver tcpdump faketime
SYSTEM_PACKAGES := chromium chromium-driver tcpdump faketime fonts-dejavu-core

.PHONY: help setup setup-clients setup-test setup-system run demo-replay test test-fast lint bench bench-full torture bench-spark example-java example-python clean

help:
	@echo "make setup           virtual environment in $(VENV), with the command $(BIN)/tidegate"
	@echo "make run             serve on 127.0.0.1:9876, data in the default folder"
	@echo "make test            every check, with real clients and a real RocketMQ broker"
	@echo "make test-fast       the checks without real clients, servers or Spark"
	@echo "make setup-system    Debian's packages that some tests need, when root: a browser, tcpdump, faketime"
	@echo "make lint            format, style and types alone"
	@echo "make demo-replay     real clients recorded at a real RocketMQ, replayed and compared, with a report"
	@echo "make bench           figures of the gateway and of a real RocketMQ broker"
	@echo "make bench-full      all of them, in about 40 minutes"
	@echo "make torture         kills, full disks, stopped clocks and crowds under load, for 5 minutes"
	@echo "make bench-spark     figures of the jobs on recorded traffic (docs/replay-speed.md)"
	@echo "make example-java    the Java quick start, against a running 'make run'"
	@echo "make example-python  the Python quick start, likewise"
	@echo "make clean           remove $(VENV) and .tools"

setup: $(VENV)/installed
setup-clients: $(VENV)/installed-clients
setup-test: $(VENV)/installed-test

$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        if $$python -c 'import ensurepip' 2>/dev/null; then \
	            echo "Making the virtual environment $(VENV) with $$python, $$($$python --version)"; \
	            exec $$python -m venv $(VENV); \
	        fi; \
	        without=$$python; \
	    fi; \
	done; \
	if [ -n "$$without" ]; then \
	    echo "make: $$without has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1; \
	fi; \
	echo "make: no Python of 3.11 or newer (tried: $(PYTHONS)); install one, or say make PYTHON=/path/to/it" >&2; exit 1

$(VENV)/installed: $(BIN)/python pyproject.toml
	@echo "Installing the gateway and what it needs"
	@$(PIP) install --use-pep517 --editable .
	@touch $@

$(VENV)/installed-clients: $(VENV)/installed
	@echo "Installing what the examples need"
	@$(PIP) install --use-pep517 --editable '.[clients]'
	@touch $@

$(VENV)/installed-demo: $(VENV)/installed
	@echo "Installing what the jobs on recorded traffic need"
	@$(PIP) install --use-pep517 --editable '.[clients,spark]'
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo "Installing what the tests need"
	@$(PIP) install --use-pep517 --editable '.[test]'
	@touch $@

# Without the right to install, or on another system, the tests that need them say that they are left out.
setup-system:
	@missing=; for program in $(SYSTEM_PROGRAMS); do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ]; then \
	    echo "make: tests of$$missing will be left out; as root, on Debian: apt-get install $(SYSTEM_PACKAGES)"; exit 0; \
	fi; \
	echo "Installing Debian's $(SYSTEM_PACKAGES)"; \
	log=$$(mktemp); export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get update && apt-get install --yes --no-install-recommends $(SYSTEM_PACKAGES); } >$$log 2>&1 || \
	    { tail -n 3 $$log >&2; echo "make: tests of$$missing will be left out" >&2; }; \
	rm -f $$log

run: setup
	$(BIN)/tidegate serve

test: setup-test setup-system lint
	$(BIN)/python -m compat.toolchain
	$(PYTEST)

test-fast: setup-test lint
	$(PYTEST) -m 'not live and not spark'

lint: setup-test
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

demo-replay: $(VENV)/installed-demo setup-system
	$(BIN)/python -m compat.demo $(if $(OUT),--out $(OUT))

bench: setup-clients
	$(BIN)/python -m compat.bench $(BENCH)

bench-full: setup-clients
	$(BIN)/python -m compat.bench --full $(BENCH)

torture: setup-test setup-system
	$(BIN)/python -m tests.torture $(TORTURE)

bench-spark: $(VENV)/installed-demo
	$(BIN)/python -m spark_jobs.bench $(BENCH_SPARK)

example-java: setup-clients
	$(BIN)/python -m compat.toolchain run-java examples/OrderTimeout.java

example-python: setup-clients
	$(BIN)/python -m compat.toolchain run-python examples/order_timeout.py

clean:
	rm -rf $(VENV) .tools
