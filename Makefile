# Needs a Python of 3.11 or newer, git and make; everything else is fetched by the package clients.

.DEFAULT_GOAL := help
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest

# Any of these that is new enough; PYTHON=... chooses.
PYTHONS := $(or $(PYTHON),python3.13 python3.12 python3.11 python3.14 python3 python)

.PHONY: help setup setup-clients setup-test run test test-fast lint bench example-java example-python clean

help:
	@echo "make setup           virtual environment in $(VENV), with the command $(BIN)/tidegate"
	@echo "make run             serve on 127.0.0.1:9876, data in the default folder"
	@echo "make test            every check, with real clients and a real RocketMQ broker"
	@echo "make test-fast       the checks that start no other processes"
	@echo "make lint            format, style and types alone"
	@echo "make bench           figures of the gateway and of a real RocketMQ broker"
	@echo "make example-java    the Java quick start, against a running 'make run'"
	@echo "make example-python  the Python quick start, likewise"
	@echo "make clean           remove $(VENV) and .tools"

setup: $(VENV)/installed
setup-clients: $(VENV)/installed-clients
setup-test: $(VENV)/installed-test

$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        $$python -c 'import ensurepip' 2>/dev/null || { \
	            echo "make: $$python has no venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 1; }; \
	        echo "Making the virtual environment $(VENV) with $$($$python --version)"; \
	        exec $$python -m venv $(VENV); \
	    fi; \
	done; \
	echo "make: no Python of 3.11 or newer (tried: $(PYTHONS)); install one, or say make PYTHON=/path/to/it" >&2; exit 1

$(VENV)/installed: $(BIN)/python pyproject.toml
	@echo "Installing the gateway and what it needs"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/installed-clients: $(VENV)/installed
	@echo "Installing what the examples need"
	@$(PIP) install --editable '.[clients]'
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo "Installing what the tests need"
	@$(PIP) install --editable '.[test]'
	@touch $@

run: setup
	$(BIN)/tidegate serve

test: setup-test lint
	$(BIN)/python -m compat.toolchain
	$(PYTEST)

test-fast: setup-test lint
	$(PYTEST) -m 'not live'

lint: setup-test
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: setup-clients
	$(BIN)/python -m compat.bench

example-java: setup-clients
	$(BIN)/python -m compat.toolchain run-java examples/OrderTimeout.java

example-python: setup-clients
	$(BIN)/python -m compat.toolchain run-python examples/order_timeout.py

clean:
	rm -rf $(VENV) .tools
