# make demo   the main job on a real stack, about one minute after set-up
# make test   what to run while you work; make full is everything CI runs
# make help   the rest
PYTHON ?= python3
BIN := .venv/bin
# Everything that starts here imports the same files: compile them once.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := packages sidecar benchmarks tests pipelines infra docs/examples

.PHONY: help setup archive demo test check audit unit integration system full containers soak fuzz simulate differential suites strange mutants chaos bench bench-sidecar bench-messaging bench-engine bench-compare docs screenshots newest lock sbom wheels clean

help:
	@sed -n 's/^## //p' Makefile

## make setup        .venv with the locked dependencies (all other targets do it first)
setup:
	@$(PYTHON) infra/bootstrap/bootstrap.py

## make archive      Spark's classes, for faster starts; kept in the user's cache folder
archive: setup
	@$(BIN)/slackwater archive-classes

## make demo         stack, sidecar, pipeline, writers, comparison; DEMO="--keep --seconds 120" passes options
demo: setup
	@$(BIN)/slackwater demo $(DEMO)

## make test         check, then the quick tests of each lane, which take about ten minutes; each lane shows its slowest
test: check unit integration system

## make check        format, lint, types, import contracts, known vulnerabilities
check: setup
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python -m infra.audit $(if $(STRICT),--strict)

## make audit        known vulnerabilities of what the lock files install; part of make check
##                   STRICT=1 fails where the vulnerability database cannot be reached (make check STRICT=1, too)
audit: setup
	$(BIN)/python -m infra.audit $(if $(STRICT),--strict)

PYTEST := $(BIN)/pytest --durations 20
QUICK := not full and not slow and not containers
TESTS ?= $(QUICK)

## make unit         tests that need no server; properties with the same examples every time
unit: setup
	$(PYTEST) --hypothesis-profile ci -n auto --dist worksteal -m "not (integration or spark or system or chaos) and $(TESTS)"

## make integration  tests with real PostgreSQL, Kafka, Connect, Redis, Spark, in four processes
integration: archive
	$(PYTEST) -n 4 --dist worksteal -m "(integration or spark or system) and not chaos and $(TESTS)"

## make system       the whole product, with processes killed while it runs, in two processes
system: archive
	$(PYTEST) -n 2 --dist loadfile -m "chaos and $(TESTS)" tests

## make full         make test, then the longer tests of each lane: everything that CI runs
full: test
	$(MAKE) unit integration system TESTS="full and not slow and not containers"

## make containers   our images, and scenarios whose servers are containers; needs a Docker daemon of this machine
##                   SCENARIOS=tests/system runs others; DEVSTACK_IMAGES=kafka=NAME,... exchanges images
SCENARIOS ?= packages/slackwater/tests/dev/test_stack_integration.py packages/slackwater/tests/cuts sidecar/tests/test_sidecar_kafka.py \
    packages/slackwater/tests/outputs/test_exactly_once.py tests/system/test_messaging.py tests/system/test_barriers.py \
    packages/slackwater/tests/dev/test_routes_integration.py
containers: archive
	@why="$$($(BIN)/python -m slackwater_lab.servers.containers)"; if [ -n "$$why" ]; then echo "skipped: $$why"; else \
	$(PYTEST) --stack containers -m "containers or ((integration or spark or system) and not slow)" tests/containers $(SCENARIOS); fi

## make soak         the tests that take hours together: five million rows in one transaction, many restarts
soak: archive
	$(PYTEST) -m slow --timeout 7200 $(SOAK)

## make fuzz         damaged records against all decoders, others every time; FUZZ=100000 of each
FUZZ ?= 20000
fuzz: setup
	FUZZ=$(FUZZ) $(BIN)/pytest --timeout 0 -k damaged packages/slackwater/tests/cdc/test_fuzz_decoders.py

## make simulate     random histories against the sidecar's code, without servers; SEEDS=100000 FROM=0
##                   FROM is the first seed: drawn unless it is given, and printed
SEEDS ?= 10000
FROM ?= random
simulate: setup
	$(BIN)/python -m slackwater_lab simulate --seeds $(SEEDS) --from $(FROM) $(SIMULATE)

## make differential random views and histories against DuckDB at every commit; SEEDS=10000 FROM=0
differential: setup
	$(BIN)/python -m slackwater_lab differential --seeds $(SEEDS) --from $(FROM) $(DIFFERENTIAL)

## make suites       TPC-H, TPC-DS and Nexmark as views, and the page that says what became of them; SUITES="tpch --only q05"
suites: setup
	$(BIN)/python -m slackwater_lab suites $(SUITES)

## make strange      random schemas, DDL and connector settings against real servers; SEEDS=200 FROM=0
strange: archive
	$(BIN)/python -m slackwater_lab strange --seeds $(SEEDS) --from $(FROM) $(STRANGE)
strange: SEEDS = 200
strange: FROM = 0

## make mutants      faults planted one at a time: do the tests notice? Takes hours, continues where it was;
##                   MUTANTS="frontier --drawn 50 --seed 3" passes options; then docs/faults.md is written
mutants: setup
	$(BIN)/python -m infra.mutants $(MUTANTS)
	$(BIN)/python -m infra.mutants --page

## make chaos        half an hour of random faults; CHAOS="--minutes 5 --seed 7" passes options
chaos: setup
	$(BIN)/python -m slackwater_lab chaos $(CHAOS)

## make bench        all scenarios; one JSON line per run into benchmarks/results/, docs/performance.md
##                   BENCH="throughput --quick" passes options; BENCH=list says what there is
bench: setup
	$(BIN)/python -m slackwater_bench $(BENCH)
	$(BIN)/python -m slackwater_bench page

## make bench-sidecar   the sidecar alone: records per core, profile, delay, a thousand partitions
bench-sidecar: setup
	$(BIN)/python -m slackwater_bench sidecar sidecar-profile sidecar-delay sidecar-partitions
	$(BIN)/python -m slackwater_bench page

## make bench-messaging   ways to make messages and a database one transaction: costs, crashes, and
##                   docs/messaging.md; MESSAGING=--quick passes options, RUNS=1 measures costs once
RUNS ?= 3
bench-messaging: setup
	$(BIN)/python -m slackwater_bench messaging --runs $(RUNS) $(MESSAGING)
	$(BIN)/python -m slackwater_bench messaging-idle --runs $(RUNS) $(MESSAGING)
	$(BIN)/python -m slackwater_bench messaging-crashes $(MESSAGING)
	$(BIN)/python -m slackwater_bench page

## make bench-engine    views by shape, and where their time goes
bench-engine: setup
	$(BIN)/python -m slackwater_bench engine engine-profile
	$(BIN)/python -m slackwater_bench page

## make bench-compare BASE=<revision>   this commit against another one, by alternating runs
bench-compare: setup
	$(BIN)/python -m slackwater_bench compare --base $(BASE) $(COMPARE)

## make bench-peers  other stream processors on the same topics, judged by the same certifier
bench-peers: setup
	$(BIN)/python -m slackwater_bench peers $(PEERS)

## make load         Locust: clients of a real database; LOAD="--arrivals burst --rate 200 --report load.html"
load: setup
	$(BIN)/python -m slackwater_bench load $(LOAD)

## make docs        the documentation as a site: site/index.html; broken links and anchors are errors
docs: setup
	$(BIN)/python -m infra.site
	$(BIN)/sphinx-build -q -W --keep-going -c infra/site -d site/.trees . site
	@echo site/index.html

## make column-types  the reference page of PostgreSQL's types, from a real database and a real connector
column-types: setup
	$(BIN)/python -m slackwater_lab.column_types

## make from-postgresql  the reference page of what PostgreSQL's SQL means in views, from a real database
from-postgresql: setup
	$(BIN)/python -m slackwater_lab.from_postgres

## make screenshots the pictures of the control plane's page in docs/images/, with Debian's chromium and chromium-driver
screenshots: setup
	$(BIN)/python -m infra.site.screenshots

## make newest      the unit tests with the newest libraries that the bounds of the wheels allow, as pip installs them
MEMBERS := $(wildcard packages/*) sidecar benchmarks
newest: setup
	.tools/bin/uv venv --quiet --clear --python $(BIN)/python .newest
	.tools/bin/uv pip install --quiet --python .newest/bin/python -r requirements.in $(addprefix --editable ,$(MEMBERS))
	.newest/bin/pytest --hypothesis-profile ci -n auto --dist worksteal -p no:cacheprovider \
	    -m "not (integration or spark or system or chaos) and $(QUICK)" $(MEMBERS) pipelines

## make lock         requirements.lock from requirements.in; UPGRADE=NAME raises one package to its newest version
lock: setup
	.tools/bin/uv pip compile requirements.in --python-version 3.11 --universal --generate-hashes \
	    $(if $(UPGRADE),--upgrade-package $(UPGRADE)) --no-emit-index-url --no-header --quiet --output-file requirements.lock

## make sbom         dist/sbom.json: what the lock file installs, with hashes, in CycloneDX
sbom: setup
	mkdir -p dist
	.tools/bin/uv tool run --quiet --from 'cyclonedx-bom>=7,<8' cyclonedx-py requirements requirements.lock \
	    --pyproject pyproject.toml --output-format JSON --output-file dist/sbom.json
	@echo dist/sbom.json

## make wheels       a wheel of each member into dist/
wheels: setup
	rm -rf dist
	$(BIN)/python -m infra.wheels.build dist

## make clean        removes environments and caches of this folder
clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .slackwater dist site
