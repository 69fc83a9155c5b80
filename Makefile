# make demo · make test · make lint · make test-long · make bench
#
# What the machine lacks is installed with its own package manager, or named in one line.

CACHE ?= $(HOME)/.cache/squire
export CARGO_TARGET_DIR ?= $(CACHE)/target
PYTHON ?= python3
VENV := $(CACHE)/venv
DEMO := $(CURDIR)/demo-lake
BIN := $(CARGO_TARGET_DIR)/debug

.PHONY: help demo test lint test-long bench fuzz tools python clean-demo

help:
	@sed -n '1,3p' Makefile

tools:
	@scripts/tools.sh

python: $(VENV)/.ready

$(VENV)/.ready: tests/requirements.txt
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

demo: tools
	cargo build --bin squire-maintenance --bin squire-registry
	@rm -rf "$(DEMO)"
	@scripts/demo.sh "$(BIN)" "$(DEMO)"

test: tools python
	cargo fmt --all --check
	cargo build --workspace --bins
	SQUIRE_PYTHON="$(VENV)/bin/python" cargo test --workspace --lib --bins --tests

lint: tools
	cargo clippy --workspace --all-targets -- -D warnings

test-long: tools python
	SQUIRE_PYTHON="$(VENV)/bin/python" cargo test --workspace --tests -- --ignored

clean-demo:
	@rm -rf "$(DEMO)"
