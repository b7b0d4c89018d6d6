# Every target prepares .venv first; a repeat of the preparation takes a moment. `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench faults leaderboard clean

SECONDS ?= 60
MINUTES ?= 10
SEED ?= 0
BLOCK_SIZE ?= 32
ROUTES ?= 5
CHECKPOINT ?=
PYTEST_ARGS ?=
RUN := source tools/env.sh &&

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: ## make .venv: system libraries, Python packages, ROS 2, messages
	@tools/setup.sh

demo: setup ## drive a town on this machine: out/demo/summary.json, report.html, bag/
	@$(RUN) wamdiff2 demo --seconds $(SECONDS) --seed $(SEED) --block-size $(BLOCK_SIZE) $(if $(CHECKPOINT),--checkpoint $(CHECKPOINT))

test: lint leaderboard-site ## check everything that can be checked here
	@$(RUN) python -m pytest $(PYTEST_ARGS)

leaderboard-site: setup
	@tools/leaderboard_setup.sh

lint: setup ## ruff, types, layering
	@$(RUN) ruff check .
	@$(RUN) mypy
	@$(RUN) python tools/layering.py

bench: setup ## speed of this machine: out/bench on a CPU, benchmarks/results/h200.json on a GPU (BENCH_ARGS)
	@$(RUN) if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		echo "bench: a GPU is here: the captured engine's speed table" && \
		python -m benchmarks.engine_speed $(BENCH_ARGS); \
	else \
		echo "bench: no GPU here: milliseconds a plan on this CPU" && wamdiff2 bench $(BENCH_ARGS); \
	fi

faults: setup ## break the running nodes on purpose for MINUTES=10: out/faults/summary.json
	@$(RUN) wamdiff2 faults --minutes $(MINUTES) --seed $(SEED) $(if $(CHECKPOINT),--checkpoint $(CHECKPOINT))

leaderboard: setup ## drive ROUTES=5 official Bench2Drive routes (0: all we can) in our world: out/leaderboard/summary.json
	@tools/leaderboard_setup.sh
	@$(RUN) wamdiff2 leaderboard --routes $(ROUTES) --seed $(SEED) $(LEADERBOARD_ARGS)

clean: ## remove what was built and written, not .venv
	rm -rf build install log out
