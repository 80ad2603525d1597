# Bare `make` prints this help, read from the comments behind the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python

##@ Start here
.PHONY: demo
demo: setup backend ## export, serve, classify and load-test EfficientNet-Lite0 with the real parts
	@$(PY) examples/demo.py

.PHONY: test
test: setup lint test-data backend chart-tools ## lint, types and all tests that need no GPU
	@$(PY) -m pytest

##@ Development
.PHONY: setup
setup: ## make .venv with everything pinned in constraints.txt
	@.ci/setup.sh

.PHONY: lint
lint: setup verify-chart ## ruff, mypy strict, import layers, generated files of the chart
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports --no-cache > /dev/null || .venv/bin/lint-imports --no-cache

.PHONY: format
format: setup ## rewrite the Python files in the project's style
	@$(PY) -m ruff check --fix --quiet . || true
	@$(PY) -m ruff format .

.PHONY: test-data
test-data: setup ## what some tests need besides .venv: photographs, and a browser for the pages
	@.ci/test_data.sh

.PHONY: backend
backend: ## compile the image preprocessing backend (CUDA=AUTO|ON|OFF, SANITIZE=address,undefined|thread)
	@CUDA=$(CUDA) SANITIZE=$(SANITIZE) .ci/backend.sh

.PHONY: chart-tools
chart-tools: ## helm, kubectl, promtool and the schemas that the chart is tested with
	@.ci/kubernetes_tools.sh

.PHONY: generate-chart
generate-chart: setup ## write what comes of the chart's values.yaml: schema, README, dashboards
	@$(PY) -m tritonstack_deploy.chart generate helm/tritonstack

.PHONY: verify-chart
verify-chart: setup ## fail where one of these is not what values.yaml says
	@$(PY) -m tritonstack_deploy.chart verify helm/tritonstack

.PHONY: wheel
wheel: setup backend ## the wheel, with the compiled backend inside, into dist
	@$(PY) .ci/wheel.py

.PHONY: test-fast
test-fast: setup ## only the tests that are not marked slow
	@$(PY) -m pytest -m "not slow"

.PHONY: golden
golden: setup ## write the golden files of the tests anew (look at the difference before a commit)
	@TRITONSTACK_RENEW_GOLDEN=1 $(PY) -m pytest -q -k golden || true

.PHONY: test-gpu
test-gpu: setup backend ## the tests that need an NVIDIA GPU; a skip is a failure
	@TRITONSTACK_REQUIRE_GPU=1 $(PY) -m pytest -m gpu

.PHONY: photos
photos: setup ## the photographs that the examples are calibrated and evaluated on, into .cache/photos
	@$(PY) examples/photos/prepare.py

##@ Measure
.PHONY: bench
bench: setup ## the benchmarks behind the numbers in docs/benchmarks.md
	@$(PY) benchmarks/run.py

##@ Clean
.PHONY: clean
clean: ## remove .venv, caches and demo output (not model_repository)
	rm -rf .venv .demo .cache .pytest_cache .mypy_cache .ruff_cache build dist

.PHONY: help
help:
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
