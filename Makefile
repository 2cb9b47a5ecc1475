# FineGauge. Needs python3.11 (or later), pip and make; everything else is set up in .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks examples website spaces
# torch goes in first, from the index in TORCH_INDEX where that is set (its CPU wheels are a tenth of the size).
TORCH := 2.13.0
# The day on which the shipped tables were last read: what the shipped calibration is dated, so that it never
# changes unless tables or physics do.
MEASURED := 2026-11-21
# Tests run in a process per core; `make test PYTEST_ARGS="-n 0 tests/unit"` asks for those of one folder in one.
PYTEST_ARGS ?=
MKDOCS = OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-core package slow lock locked audit sbom golden oracle models accuracy calibrate check format lint types layers coverage bench bench-peers readme cookbook docs docs-serve gallery space hooks clean

help:  ## list the recipes
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.core  ## estimate the seed paper's runs on four GPUs, dense and sparse (sets itself up)
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev  ## run the tests (sets itself up)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n auto $(PYTEST_ARGS)

test-core: .core-venv/.ready  ## the tests that need no torch, in under two minutes (sets itself up in .core-venv)
	@OMP_NUM_THREADS=1 .core-venv/bin/pytest --core -q -n auto $(PYTEST_ARGS)

package: $(VENV)/.dev  ## what goes to the package index: built, checked, its core resolved for other systems, tried in .package-venv
	@rm -rf build/dist && $(BIN)/python -m build --outdir build/dist . >/dev/null
	@$(BIN)/twine check --strict build/dist/*
	@for platform in win_amd64 macosx_11_0_arm64 macosx_10_9_x86_64 manylinux_2_28_aarch64; do \
		$(BIN)/pip install --quiet --disable-pip-version-check --dry-run --target build/none --only-binary=:all: \
			--python-version 3.11 --platform $$platform build/dist/*.whl || exit 1; done
	@"$(PYTHON)" -m venv --clear .package-venv
	@.package-venv/bin/pip install --quiet --disable-pip-version-check build/dist/*.whl
	@cd build/dist && PATH="$(CURDIR)/.package-venv/bin:$$PATH" && finegauge examples plans/llama2_7b_lora --to examples >/dev/null \
		&& finegauge plan examples/plans/llama2_7b_lora.yaml --gpu 4090 | head -n 1 && rm -r examples
	@test -s .package-venv/share/man/man1/finegauge.1

slow: $(VENV)/.dev  ## thousands of spoiled inputs and requests; campaigns and workers are killed, bits of stores flipped
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --num 10000 --seed $$(date +%j)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/unit/web/long.py tests/unit/campaign/long.py $(PYTEST_ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.web_load --users 50 --seconds 600 --kill-every 20

golden: $(VENV)/.dev  ## print the accuracy tables: predictions held against published measurements
	@$(BIN)/pytest tests/golden -s -q $(PYTEST_ARGS)

oracle: $(VENV)/.dev  ## hold the operator graph against the real code of transformers, traced: the whole table
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.oracle.table

models: $(VENV)/.dev  ## rewrite docs/models.md: how every causal model type of transformers is answered
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.oracle.models_page

accuracy: $(VENV)/.dev  ## rewrite docs/accuracy.md: every table that ships with the package, every error
	@$(BIN)/python -m tests.golden.accuracy

calibrate: $(VENV)/.dev  ## fit the shipped calibration again, from the tables that ship with the package
	@OMP_NUM_THREADS=1 $(BIN)/finegauge calibrate src/finegauge/catalogue/data/measurements/*.csv --from-datasheet \
		--name "published tables" --date $(MEASURED) -o src/finegauge/prediction/data/calibration.json

check: lint types layers coverage  ## everything CI asks for: format, lint, types, layers, tests with coverage

lint: $(VENV)/.dev  ## ruff: format and rules
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)

types: $(VENV)/.dev  ## mypy, strict
	@$(BIN)/mypy

layers: $(VENV)/.dev  ## import-linter: who may import whom
	@$(BIN)/lint-imports

coverage: $(VENV)/.dev  ## the tests, with the coverage of the package
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --cov --cov-report=term $(PYTEST_ARGS)

format: $(VENV)/.dev  ## rewrite the code as ruff wants it
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

bench: $(VENV)/.dev  ## measure every promise of speed, as ratios in one run: all are run, then 1 where one is broken
	@$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.dev  ## every predictor of others in an environment of its own (downloads torch), asked about every row: docs/benchmark.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.cold_start --peers
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.peers $(PEERS)

readme: $(VENV)/.dev  ## rewrite what README.md, docs/run-file.md and docs/finegauge.1 show of the program
	@$(BIN)/python -m tests.house.readme
	@$(BIN)/python -m tests.house.run_file
	@$(BIN)/python -m tests.house.manual

cookbook: $(VENV)/.dev  ## write the outputs of the recipes in docs/cookbook anew
	@$(BIN)/python -m tests.house.cookbook

docs: gallery  ## build the documentation into build/site, strictly: prose, equations, commands, gallery
	@$(MKDOCS) build --strict --quiet
	@echo "build/site/index.html; 'make docs-serve' shows it"

docs-serve: $(VENV)/.dev  ## the documentation at http://127.0.0.1:8318, built again as you write
	@$(MKDOCS) serve --dev-addr 127.0.0.1:8318

gallery: $(VENV)/.dev  ## draw the pictures of the documentation, by real commands on the examples, into build/gallery
	@$(BIN)/python -m website.gallery

lock: .audit-venv/.ready  ## write requirements/*.txt again: every package of container and development, with hashes
	@for extra in dev web; do echo 'setuptools>=77' | .audit-venv/bin/uv pip compile --quiet - pyproject.toml \
		--extra $$extra $$([ $$extra = dev ] || echo --constraint requirements/dev.txt) --universal --generate-hashes --no-annotate --python-version 3.11 --upgrade \
		--custom-compile-command "make lock" --output-file requirements/$$extra.txt; done

locked: $(VENV)/bin/python  ## set up .venv from requirements/dev.txt, each package checked against its hash
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable '.[dev]'
	@touch $(VENV)/.core $(VENV)/.dev

audit: .audit-venv/.ready  ## ask a database which locked packages have known holes; says so where none is in reach
	@.audit-venv/bin/python -m tests.house.audit requirements/web.txt requirements/dev.txt

sbom: .audit-venv/.ready  ## what the container is made of, installed as there: build/finegauge.cdx.json (CycloneDX)
	@rm -rf .sbom-venv && "$(PYTHON)" -m venv .sbom-venv
	@.sbom-venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/web.txt
	@.sbom-venv/bin/pip install --quiet --no-deps --no-build-isolation '.[web]'
	@mkdir -p build && .audit-venv/bin/cyclonedx-py environment .sbom-venv/bin/python --pyproject pyproject.toml \
		--mc-type application --output-reproducible --output-file build/finegauge.cdx.json
	@echo build/finegauge.cdx.json

.audit-venv/.ready:
	@"$(PYTHON)" -m venv .audit-venv
	@.audit-venv/bin/pip install --quiet --disable-pip-version-check uv pip-audit cyclonedx-bom
	@touch $@

space:  ## install Gradio beside FineGauge into .space-venv, start the Hugging Face Space here and ask it
	@"$(PYTHON)" -m venv .space-venv
	@.space-venv/bin/pip install --quiet --disable-pip-version-check '.[web]' \
		"gradio==$$(sed -n 's/^sdk_version: //p' spaces/README.md)"
	@.space-venv/bin/python -m spaces.ask

hooks: $(VENV)/.dev  ## run ruff and mypy before every commit
	@$(BIN)/pip install --quiet pre-commit && $(BIN)/pre-commit install

clean:  ## remove the virtual environments and every cache
	rm -rf $(VENV) .core-venv .bench-venv .space-venv .audit-venv .sbom-venv .package-venv .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf build dist src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

# The stamps: a second call finds them and starts at once.
$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "FineGauge needs Python 3.11 or later; '$(PYTHON)' is older. Try: make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	@echo "Installing FineGauge into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(BIN)/python -m compileall -q src/finegauge
	@touch $@

.core-venv/.ready: pyproject.toml
	@"$(PYTHON)" -m venv .core-venv
	@.core-venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev-core]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	@echo "Installing FineGauge and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/.core $@
