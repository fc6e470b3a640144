# tailrace: `make demo` shows it working, `make test` proves it. Both make the environment first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help env demo test mongodb-7 chaos up-kills spark-cluster conformance pymongo-suite cluster failover crash lint types fmt docs clean differential differential-expressions bench bench-check debezium-diff fuzz-gateway

help:            ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

env: $(VENV)/.ready  ## Make the environment in .venv

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("tailrace needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[all]' --group dev
	@touch $@

demo: env        ## The whole pipeline on this machine, with a load; ARGS=--seconds=60 ends by itself
	$(BIN)/tailrace up --demo $(ARGS)

test: env        ## Run all tests but the long ones; ARGS="-k token" runs some
	$(BIN)/pytest --numprocesses 2 --dist worksteal $(ARGS)

chaos: env       ## Kill drivers, workers, broker, Redis and primary while both Spark jobs run: KILLS=20 SEED=5
	KILLS=$(or $(KILLS),20) SEED=$(or $(SEED),5) $(BIN)/pytest -m 'long or not long' --timeout 7200 tests/features/test_kills.py tests/warehouse/test_kills.py $(ARGS)

crash: env       ## Kill the producer a hundred times for each guarantee, and other long proofs of capture
	$(BIN)/pytest tests/capture -m long $(ARGS)

differential: env ## The engine's events against every server version's own: OPS=200000 SEED=1
	OPS=$(or $(OPS),200000) SEED=$(or $(SEED),1) $(BIN)/pytest tests/engine/test_differential.py $(ARGS)

differential-expressions: env  ## Random stages against a real server: CASES=1000000 SEED=1
	CASES=$(or $(CASES),200000) SEED=$(or $(SEED),1) $(BIN)/pytest -m long --timeout 36000 \
		tests/engine/expression/test_expression_differential.py $(ARGS)

conformance: env ## Run the driver specification's tests on every server version that each allows, sync and async
	$(BIN)/pytest -m 'long or not long' tests/driver/test_unified_spec.py tests/driver/test_legacy_spec.py \
		tests/gateway/test_driver_specs.py tests/gateway/test_prose.py $(ARGS)

mongodb-7: env   ## Everything that runs on MongoDB 7.0, which needs Wine
	$(BIN)/pytest -m 'long or not long' -k 7.0.28 --timeout 3600 tests/driver tests/engine tests/gateway tests/hub tests/stand tests/oplog tests/monitor \
		tests/capture tests/spark $(ARGS)

pymongo-suite: env ## pymongo's own change stream tests on each server and through the gateway: each ends alike
	$(BIN)/pytest -m 'long or not long' tests/gateway/test_pymongo_suite.py $(ARGS)

cluster: env     ## Clusters of one, two and three shards through the gateway, and 500 watchers for a minute
	$(BIN)/pytest -m 'long or not long' tests/gateway/test_sharded.py tests/gateway/test_many_watchers.py \
		tests/gateway/test_hostile_clients.py tests/hub $(ARGS)

fuzz-gateway: env ## Mutated frames at a gateway beside a watcher who must lose nothing: FRAMES=1000000 SEED=1
	FRAMES=$(or $(FRAMES),1000000) SEED=$(or $(SEED),1) $(BIN)/pytest --timeout 14400 tests/gateway/test_frame_fuzz.py $(ARGS)

up-kills: env    ## Kill each process of the demo, and see it come back with nothing missing
	$(BIN)/pytest -m long --timeout 3600 tests/up/test_kills.py $(ARGS)

spark-cluster: env ## Both Spark jobs on a standalone cluster of a master and two workers, by spark-submit
	$(BIN)/pytest -m long tests/deploy/test_spark_cluster.py tests/deploy/test_spark_kubernetes.py $(ARGS)

debezium-diff: env ## Run Debezium beside ours: the same events, every BSON type, compared byte for byte (needs a JDK)
	$(BIN)/pytest -m 'long or not long' --timeout 1800 tests/capture/formats/test_debezium_bytes.py $(ARGS)

failover: env    ## Let a hundred elections, crashes, freezes and network faults happen to a change stream
	$(BIN)/pytest -m long tests/driver/test_failover.py $(ARGS)

bench: env       ## Measure beside the peers and write the report; QUICK=1 takes ten minutes, the whole one 54
	$(BIN)/python -m bench --mode $(if $(QUICK),quick,full) --docs $(ARGS)

bench-check: env ## Compare the newest ratios with the stored ones; a drop of over 20 % fails
	$(BIN)/python -m bench.check $(ARGS)

lint: env        ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env       ## Check types
	$(BIN)/mypy --strict src

fmt: env         ## Format the code and sort imports
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

docs: env        ## Build the documentation into site/, without the internet; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:           ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist site artifacts .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
