# tailrace: `make demo` shows it working, `make test` proves it. Both make the environment first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help env newcomer examples release kernel wheel demo test mongodb-7 chaos delta up-kills spark-cluster conformance pymongo-suite cluster failover crash clients pythons lint types fmt docs clean differential differential-expressions bench bench-check debezium-diff fuzz fuzz-gateway outsiders fuzz-kernel nemesis losses simulate canary secrets registry

help:            ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

env: $(VENV)/.ready kernel  ## Make the environment in .venv, with the compiled kernel where there is cargo

kernel: $(VENV)/.ready
	@kernel/build $(VENV)

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

.PHONY: without-kernel
without-kernel: env ## Run all tests but the long ones without the compiled kernel: Python does the work
	TAILRACE_KERNEL=off $(BIN)/pytest --numprocesses 2 --dist worksteal $(ARGS)

chaos: env       ## Kill drivers, workers, broker, Redis and primary while both Spark jobs run: KILLS=20 SEED=5
	KILLS=$(or $(KILLS),20) SEED=$(or $(SEED),5) $(BIN)/pytest -m 'long or not long' --timeout 7200 tests/features/test_kills.py tests/features/test_redis_cluster.py tests/warehouse/test_kills.py $(ARGS)

delta: env       ## The tables' tests with Delta Lake as their format
	$(BIN)/pytest -m 'long or not long' -k delta --timeout 3600 tests/warehouse $(ARGS)

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
	$(BIN)/pytest -m 'long or not long' -k 7.0.28 --timeout 3600 tests/driver tests/engine tests/gateway tests/hub tests/cluster tests/stand tests/oplog tests/monitor \
		tests/capture tests/spark $(ARGS)

pymongo-suite: env ## pymongo's own change stream tests on each server and through the gateway: each ends alike
	$(BIN)/pytest -m 'long or not long' tests/gateway/test_pymongo_suite.py $(ARGS)

clients: env     ## What we need of pymongo, with the oldest, the locked and today's newest release
	$(BIN)/pytest -m 'long or not long' tests/client $(ARGS)

pythons:         ## The core's tests with the oldest and the newest Python that is there
	tools/pythons $(ARGS)

cluster: env     ## Clusters of one, two and three shards through the gateway, and 500 watchers for a minute
	$(BIN)/pytest -m 'long or not long' tests/gateway/test_sharded.py tests/gateway/test_proving_clusters.py tests/gateway/test_many_watchers.py \
		tests/gateway/test_hostile_clients.py tests/hub tests/cluster tests/proof/test_clusters.py tests/engine/test_sharded_differential.py $(ARGS)

fuzz-gateway: env ## Mutated frames at a gateway beside a watcher who must lose nothing: FRAMES=1000000 SEED=1
	FRAMES=$(or $(FRAMES),1000000) SEED=$(or $(SEED),1) $(if $(MINUTES),MINUTES=$(MINUTES)) $(if $(REPORT),REPORT=$(REPORT)) \
		$(BIN)/pytest -m long tests/gateway/test_frame_flood.py $(ARGS)

outsiders: env   ## What an outsider tries at a gateway and at the server itself, on every version: both answer alike
	$(BIN)/pytest -m 'long or not long' tests/gateway/test_outsiders.py tests/gateway/test_unusual_commands.py tests/gateway/test_ownership.py $(ARGS)

fuzz-kernel: env ## Mutated bytes through every entry of the compiled kernel, and its memory over ten times as many: INPUTS=10000000 SEED=1
	INPUTS=$(or $(INPUTS),10000000) SEED=$(or $(SEED),1) TAILRACE_KERNEL=on $(BIN)/pytest -m 'long or not long' --timeout 36000 \
		tests/capture/formats/test_kernel_differential.py tests/capture/formats/test_registered_kernel.py tests/engine/test_compiled.py tests/oplog/test_reply.py \
		tests/policy/test_compiled_policy.py tests/spark/test_columns.py -k 'mutated or memory' $(ARGS)

.PHONY: sanitize-kernel
sanitize-kernel: env ## The kernel built with AddressSanitizer, under mutated and hostile bytes (needs a nightly Rust): INPUTS=6000
	kernel/sanitized $(VENV) -q -p no:cacheprovider --timeout 3600 -k 'mutated or hostile or deep or damaged or any_bytes' \
		tests/capture/formats/test_kernel_differential.py tests/engine/test_compiled.py tests/oplog/test_reply.py \
		tests/policy/test_compiled_policy.py tests/spark/test_columns.py $(ARGS)

fuzz: env        ## Damaged inputs at every door but the gateway's and the kernel's: INPUTS=1000000 SEED=1
	INPUTS=$(or $(INPUTS),1000000) SEED=$(or $(SEED),1) $(BIN)/pytest --timeout 36000 tests/fuzz $(ARGS)

canary: env      ## Random documents with marked values under random policies; no hidden mark in any output: DOCUMENTS=100000 SEED=1
	DOCUMENTS=$(or $(DOCUMENTS),100000) ROUNDS=$(or $(ROUNDS),20) SEED=$(or $(SEED),1) $(BIN)/pytest -m 'long or not long' --timeout 7200 tests/policy/test_canary.py tests/policy/test_canary_line.py tests/policy/test_canary_jobs.py $(ARGS)

.PHONY: access
access: env      ## Every ACL of the security page is enough, and none can be left out; Spark's logins; certificates that are replaced
	$(BIN)/pytest -m 'long or not long' --timeout 1800 tests/capture/sinks/test_kafka_acls.py tests/features/test_redis_acls.py tests/spark/test_kafka_logins.py tests/spark/test_mongodb_logins.py tests/cli/test_kafka_renewal.py $(ARGS)

.PHONY: telemetry
telemetry: env   ## Traces by OpenTelemetry, from a write to features and tables, and lineage of the Spark jobs
	$(BIN)/pytest -m 'long or not long' --timeout 1800 tests/telemetry $(ARGS)

registry: env    ## Avro and JSON Schema with a real schema registry and Confluent's own deserializers
	$(BIN)/pytest -m 'long or not long' tests/capture/formats/test_registered.py $(ARGS)

secrets: env     ## Marked secrets in every setting, flag and property of Spark; no output and no command line has one
	$(BIN)/pytest -m 'long or not long' tests/cli/test_secrets.py tests/spark/test_plan_secrets.py tests/spark/test_secured_kafka.py $(ARGS)

up-kills: env    ## Kill each process of the demo, and see it come back with nothing missing
	$(BIN)/pytest -m long --timeout 3600 tests/up/test_kills.py $(ARGS)

.PHONY: pysparks connect readers full-load
pysparks: env    ## The source and both jobs with the newest release of each PySpark that may be installed
	$(BIN)/pytest -m 'long or not long' --timeout 7200 tests/spark/test_releases.py $(ARGS)

connect: env     ## The source, the features job and reads of tables through a real server of Spark Connect
	$(BIN)/pytest -m 'long or not long' tests/spark/test_connect.py $(ARGS)

full-load: env   ## A collection straight into tables, while it is written to and the driver is killed: DOCUMENTS=20000
	DOCUMENTS=$(or $(DOCUMENTS),20000) $(BIN)/pytest -m 'long or not long' tests/warehouse/test_full_load.py $(ARGS)

.PHONY: object-store
object-store: env ## Jobs, checkpoints, kills and readers with tables in a bucket, on a server that speaks S3 (moto's)
	$(BIN)/pytest -m 'long or not long' --timeout 3600 tests/test_object_store.py tests/warehouse/tables/test_object_folder.py \
		tests/warehouse/test_object_store.py $(ARGS)

readers: env     ## Tables of every BSON type, read by Spark, PyIceberg, Polars and DuckDB by three kinds of catalogs: DOCUMENTS=1000000
	DOCUMENTS=$(or $(DOCUMENTS),20000) $(BIN)/pytest -m 'long or not long' --timeout 36000 tests/readers tests/warehouse/tables/test_jdbc_catalog.py \
		tests/warehouse/tables/test_rest_catalog.py $(ARGS)

spark-cluster: env ## Both Spark jobs on a standalone cluster of a master and two workers, by spark-submit
	$(BIN)/pytest -m long tests/deploy/test_spark_cluster.py tests/deploy/test_spark_kubernetes.py $(ARGS)

debezium-diff: env ## Run Debezium beside ours: the same events, every BSON type, compared byte for byte (needs a JDK)
	$(BIN)/pytest -m 'long or not long' --timeout 1800 tests/capture/formats/test_debezium_bytes.py $(ARGS)

simulate: env    ## Capture on a virtual clock, seed after seed, and the planted bugs: SEEDS=10000 FIRST=0
	SEEDS=$(or $(SEEDS),10000) FIRST=$(or $(FIRST),0) $(BIN)/pytest -m 'long or not long' --timeout 36000 tests/simulation $(ARGS)

nemesis: env     ## Several faults at once against the whole line, seed after seed: MINUTES=60 SEED=1 RESULTS=file.jsonl
	MINUTES=$(or $(MINUTES),60) SEED=$(or $(SEED),1) $(if $(RESULTS),RESULTS=$(RESULTS)) $(BIN)/pytest -s -m long --timeout 36000 tests/nemesis $(ARGS)

losses: env      ## What each tool loses by each fault, beside the rivals; makes docs/losses.md: SEEDS=10 ONLY='kills and Debezium'
	SEEDS=$(or $(SEEDS),1) $(BIN)/pytest -s -m long --timeout 36000 tests/losses $(if $(ONLY),-k '$(ONLY)') $(ARGS)
	PYTHONPATH=tests:. $(BIN)/python -m losses.page

.PHONY: load
load: env        ## 500 watchers beside a writer at full speed, 10,000 beside a steady one; makes docs/load.md: MINUTES=10
	MINUTES=$(or $(MINUTES),10) $(BIN)/pytest -s -m long tests/load $(ARGS)
	PYTHONPATH=tests:. $(BIN)/python -m load.page

failover: env    ## Let a hundred elections, crashes, freezes and network faults happen to a change stream
	$(BIN)/pytest -m long tests/driver/test_failover.py $(ARGS)

bench: env       ## Measure beside the peers and write the report; QUICK=1 takes ten minutes, the whole one 65
	$(BIN)/python -m bench --mode $(if $(QUICK),quick,full) --docs $(ARGS)

bench-check: env ## Compare the newest ratios with the stored ones; a drop of over 20 % fails
	$(BIN)/python -m bench.check $(ARGS)

wheel: env       ## Make the wheels in dist/: tailrace, and its kernel for Python 3.11 and later
	$(BIN)/python -m hatchling build --target wheel
	$(BIN)/maturin build --release --locked --manifest-path kernel/Cargo.toml --out dist

lint: env        ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if command -v cargo >/dev/null; then cd kernel && cargo fmt --check && cargo clippy --quiet --all-targets -- -D warnings; \
		else echo 'lint: there is no cargo, the kernel is not checked'; fi

types: env       ## Check types
	$(BIN)/mypy --strict src

fmt: env         ## Format the code and sort imports
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

newcomer: env    ## Install the wheel into empty environments, the core alone and with each extra, and try the verbs
	$(BIN)/pytest -m 'long or not long' tests/newcomer $(ARGS)

examples: env    ## The programs and notebooks of examples/, those with Spark too, as their pages say
	$(BIN)/pytest -m 'long or not long' tests/examples $(ARGS)

docs: env        ## Build the documentation into site/, without the internet; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

release: env     ## Check version and changelog, build wheel and sdist into dist/, install and run the wheel
	$(BIN)/python tools/release.py

clean:           ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist site artifacts kernel/target .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
