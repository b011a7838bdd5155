# Two commands: `make serve` and `make test`. Everything lands in .venv and build.
MODEL ?= smollm2-135m
PORT ?= 8000
ARGS ?=
EXTRA ?=
# Each has servers and services of its own; a file stays with one, for what its tests share. One more
# than CPUs: each waits for other processes now and then.
TEST_PROCESSES ?= 3
PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
# Of the Python module; its tests are built when they are run.
NATIVE_SOURCES := $(shell find native -path native/tests -prune -o -path native/benchmarks -prune -o \
	\( -name '*.cc' -o -name '*.h' -o -name '*.cmake' -o -name CMakeLists.txt \) -print)

.PHONY: serve install test lint unit native-test reference bench bench-peers bench-gateway bench-kv bench-contract bench-parallel bench-step bench-precision bench-loading bench-quality bench-plan profile clean

serve: install
	@$(BIN)/takt serve $(MODEL) --port $(PORT) $(ARGS)

# EXTRA=gateway (or redis, otel, ray, nvml, torch) adds what that part needs.
install: $(VENV)/.installed
	@[ -z "$(EXTRA)" ] || scripts/install $(BIN) $(EXTRA)

$(VENV)/.venv-made:
	@scripts/check-prerequisites $(PYTHON)
	@echo "takt: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.packages: pyproject.toml | $(VENV)/.venv-made
	@scripts/install $(BIN) packages
	@touch $@

$(VENV)/.installed: $(VENV)/.packages $(NATIVE_SOURCES)
	@scripts/check-prerequisites $(PYTHON)
	@scripts/install $(BIN) native
	@touch $@

$(VENV)/.test-packages: $(VENV)/.packages
	@scripts/install $(BIN) test
	@touch $@

TESTABLE := $(VENV)/.installed $(VENV)/.test-packages

# What the tests need is fetched while the module is compiled.
test:
	@$(MAKE) --no-print-directory -j2 $(TESTABLE)
	@$(MAKE) --no-print-directory lint native-test unit

lint: $(TESTABLE)
	@scripts/lint $(BIN)

native-test: $(TESTABLE)
	@scripts/native-tests $(BIN)

unit: $(TESTABLE)
	@scripts/test-services
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# Rewrites docs/reference from the code; a test fails when it is out of date.
reference: install
	@$(BIN)/python -m takt.cli.reference docs/reference

# The bars of the CPU engine with verdicts. ARGS="--quick" only shows that all of it runs;
# bars against other engines take the last results of bench-peers.
bench: install
	@$(BIN)/python -m benchmarks.cpu --model $(MODEL) $(ARGS)

# Installs other engines into build/peers and runs them and Takt on one workload, in turns.
bench-peers: install
	@$(BIN)/python -m benchmarks.peers --model $(MODEL) $(ARGS)

# Writes docs/profile.md. First: takt topo --measure; nothing else may run.
profile: install
	@$(BIN)/python -m benchmarks.profile --model $(MODEL) $(ARGS)

# Native all-reduce against gloo and by what it exchanges, ranks against one process, depths of a
# pipeline, deaths of ranks, offload.
# ARGS="--quick": a check.
bench-parallel: $(TESTABLE)
	@$(BIN)/python benchmarks/all_reduce.py $(ARGS)
	@$(BIN)/python benchmarks/all_reduce_dtypes.py $(ARGS)
	@$(BIN)/python -m benchmarks.all_reduce_quality $(ARGS)
	@$(BIN)/python benchmarks/ranks.py $(ARGS)
	@$(BIN)/python benchmarks/pipeline_depth.py $(ARGS)
	@$(BIN)/python benchmarks/rank_deaths.py $(ARGS)
	@$(BIN)/python benchmarks/offload.py $(ARGS)

bench-kv: install
	@$(BIN)/python -m benchmarks.kv

bench-plan: install
	@$(BIN)/python benchmarks/plan.py $(ARGS)

# The contract's bars on a real server; ARGS="--quick" for a check of minutes.
bench-contract: install
	@$(BIN)/python -m benchmarks.contract --model $(MODEL) $(ARGS)

# Precision policies: gaps, jitter, bytes, perplexity. ARGS="--quick" only shows that all of it runs.
bench-precision: install
	@$(BIN)/python -m benchmarks.precision --model $(MODEL) $(ARGS)

# Loading packed weights against expanding them: time to first token, peak memory, bytes read.
bench-loading: install
	@$(BIN)/python -m benchmarks.loading --model $(MODEL) $(ARGS)

bench-step: install
	@$(BIN)/python benchmarks/step_overhead.py --model $(MODEL)

bench-quality: install
	@$(BIN)/python benchmarks/perplexity.py

# All of the gateway's bars on real processes; ARGS="--quick" for a check of minutes.
bench-gateway: $(TESTABLE)
	@scripts/test-services
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

clean:
	@rm -rf $(VENV) build
