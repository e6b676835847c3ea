.DEFAULT_GOAL := help
PY := .venv/bin/python
export HF_HUB_OFFLINE := 1

.PHONY: help setup run test test-all check fuzz audit load soak report bench-overhead bench-faults bench-overload bench-tracing bench-kv protos lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: ## .venv, locked dependencies, demonstration models; does nothing when they are there
	@scripts/setup.sh

run: setup ## the whole system on this machine: Redis, vLLM, llama.cpp, gateway on Ray Serve
	@exec .venv/bin/graceway up -c deploy/local.yaml

test: setup ## every test but the slow ones: units, contracts, integration, and the real parts end to end
	scripts/tests.sh

test-all: test ## the slow ones too
	$(PY) -m pytest -m slow

check: setup ## what must hold before a change lands
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	scripts/tests.sh

fuzz: setup ## the parsers under Atheris for FUZZ_SECONDS (600) in all; finds and keeps what breaks them
	$(PY) -m fuzz

audit: setup ## asks OSV about every locked package; says so when it can't be reached
	$(PY) scripts/audit.py

load: setup ## a minute of Locust against `graceway serve` on simulated replicas
	$(PY) -m loadtests.load

soak: setup ## an hour of load with random faults: nothing may leak
	$(PY) -m loadtests.soak --minutes 60

report: setup ## all tables, other gateways beside, as one page in build/report/: half an hour
	$(PY) -m loadtests.report

bench-overhead: setup ## what the gateway costs, against no gateway and vllm-router
	$(PY) -m loadtests.overhead

bench-faults: setup ## what clients notice when a replica fails under load
	$(PY) -m loadtests.fault_table

bench-overload: setup ## the overload table on simulated replicas: 12 minutes
	$(PY) -m loadtests.overload_table

bench-kv: setup ## KV blocks: how fast they move, and restoring against recomputing on two real vLLM servers: 15 minutes
	-.venv/bin/graceway bench kv-transport
	.venv/bin/graceway bench kv-restore

bench-tracing: setup ## what traces cost: none, none sampled, all sampled, interleaved
	$(PY) -m loadtests.tracing_cost

protos: ## generates the messages of the gRPC surface anew
	$(PY) -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. gateway/inference_pb/inference.proto
	sed -i -e 's/^from google.protobuf import descriptor_pool as _descriptor_pool$$/from gateway.inference_pb.pool import POOL as _POOL/' \
	  -e 's/_descriptor_pool.Default()/_POOL/' gateway/inference_pb/inference_pb2.py

lock: ## resolves the dependencies anew into requirements/
	.venv/bin/uv pip compile --upgrade --no-header --no-emit-find-links --no-emit-index-url --python-version 3.11 \
	  --override requirements/overrides.txt --extra cpu --extra dev pyproject.toml -o requirements/cpu.txt
	env -u UV_FIND_LINKS .venv/bin/uv pip compile --upgrade --no-header --no-emit-find-links --no-emit-index-url \
	  --python-version 3.11 --override requirements/overrides-gpu.txt --extra gpu --extra dev pyproject.toml -o requirements/gpu.txt

clean: ## removes .venv and the demonstration models
	rm -rf .venv models
