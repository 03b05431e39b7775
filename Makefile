# SPDX-License-Identifier: GPL-3.0-or-later
# Two commands for a newcomer: `make demo` and `make test`. `make help` lists the rest.

PYTHON := .venv/bin/python
LANES ?= molecule system crash nodes unit sanity pythons lint collection docs
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help prepare demo demo-down test test-all crash-sweep unit lint bench-site bench-agent soak test-shared clean

help:
	@sed -n 's/^## //p' Makefile

## make demo         one simulated NPU server, from bare to schedulable, twice, and a table of what was measured
demo: prepare
	@$(PYTHON) tests/demo/demo.py

## make demo-down    take the demo's nodes, images and container engine away again
demo-down: prepare-python
	@$(PYTHON) tests/lab/lab.py destroy

## make test         everything that CI runs; `make test LANES="unit lint"` for some lanes
test: prepare
	@$(PYTHON) tests/lanes/run.py $(LANES)

## make test-all     the same in its long forms: every Python and ansible-core, every crash point
test-all: prepare
	@$(PYTHON) tests/lanes/run.py --long $(LANES)

## make crash-sweep  kill node, module and installer at every step of install, upgrade and rollback
crash-sweep: prepare
	@$(PYTHON) tests/lanes/run.py --long crash

## make unit         the quick loop: unit tests alone
unit: prepare-python
	@$(PYTHON) tests/lanes/run.py unit

## make lint         ruff, mypy, yamllint and ansible-lint
lint: prepare-python
	@$(PYTHON) tests/lanes/run.py lint

## make bench-site   remote calls and wall time of a first and a second run
bench-site: prepare
	@$(PYTHON) tests/benchmarks/site.py

## make bench-agent  the device plugin's times, memory and processor, beside those of others
bench-agent: prepare
	@$(PYTHON) tests/benchmarks/agent.py

## make soak         100 restarts of kubelet, 100 of the device plugin, 1,000 faults of the hardware; SOAK="--seed N" for one order again
soak: prepare
	@$(PYTHON) tests/soak/soak.py $(SOAK)

## make test-shared SHARED=DIR   parsers over a folder of real command output
test-shared: prepare-python
	@test -n "$(SHARED)" || { echo 'usage: make test-shared SHARED=DIR (a folder that holds npu-smi/)'; exit 2; }
	@NPU_SHARED="$(SHARED)" $(PYTHON) tests/lanes/run.py shared

## make clean        remove what the build wrote into this folder (.build, .venv)
clean:
	rm -rf .build .venv .ansible

.PHONY: prepare-python
prepare:
	@tests/prepare.sh all
prepare-python:
	@tests/prepare.sh python
