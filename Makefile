# make demo   the main job on a real stack, about one minute after set-up
# make test   everything CI runs
# make help   the rest
PYTHON ?= python3
BIN := .venv/bin
SOURCES := packages sidecar benchmarks tests pipelines infra

.PHONY: help setup demo test check unit integration system chaos bench bench-compare lock clean

help:
	@sed -n 's/^## //p' Makefile

## make setup        .venv with the locked dependencies (all other targets do it first)
setup:
	@$(PYTHON) infra/bootstrap/bootstrap.py

## make demo         stack, sidecar, pipeline, writers, comparison; DEMO="--keep --seconds 120" passes options
demo: setup
	@$(BIN)/slackwater demo $(DEMO)

## make test         check, then all tests of the default lane
test: check unit integration system

## make check        format, lint, types, import contracts
check: setup
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports

## make unit         tests that need no server
unit: setup
	$(BIN)/pytest -m "not integration and not spark and not system and not chaos"

## make integration  tests with real PostgreSQL, Kafka, Connect, Redis, Spark
integration: setup
	$(BIN)/pytest -m "(integration or spark) and not system and not chaos"

## make system       the whole product, with processes killed while it runs
system: setup
	$(BIN)/pytest -m "system or chaos"

## make bench        all scenarios; one JSON line per run into benchmarks/results/; BENCH="--quick" passes options
bench: setup
	$(BIN)/python -m slackwater_bench $(BENCH)

## make bench-compare BASE=rev   this tree against another commit, by alternating runs; exit code 1 if slower
bench-compare: setup
	$(BIN)/python -m slackwater_bench compare --base $(BASE) $(BENCH)

## make lock         requirements.lock from requirements.in
lock: setup
	.tools/bin/uv pip compile requirements.in --python-version 3.11 --universal --generate-hashes \
	    --no-emit-index-url --no-header --quiet --output-file requirements.lock

## make clean        removes environments and caches of this folder
clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .slackwater
