# make demo: train, evaluate and transcribe on synthetic speech, which it generates.
# make test: lint, types and tests. make test-all: also the slow tests. make lint: ruff and mypy alone.
# make test-core: the tests that need no app; they pass without the folder asr/apps.
# make quick: ruff, mypy of changed files, and the tests of changed lines, by the map that make map stores; without a map, the tests of
# files that changed since the commit SINCE, by default the one at which the branch left origin/main.
# make test-oldest: the tests with the oldest versions that pyproject.toml allows. make test-next-hydra: with Hydra's next version.
# make demo-wheel: install the wheel into an environment of its own, with TORCH, and train the demo.
# make release: check, build, and tag the version in asr/__init__.py.
# make snapshots: rewrite AGENTS.md, llms.txt, the lengths of files in docs/guide/design.md, and the files in tests/ that describe the public
# interface and the error messages.
# make docs: the documentation as a site, build/site/index.html.
# make dist: source distribution and wheel, checked by twine.
# make speedrun HOURS=5 (or 100, 960): download a part of LibriSpeech, train and evaluate on it.
# make bench: all benchmarks, also of the other toolkits that PyPI has.
PYTHON ?= python3
HOURS ?= 5
TORCH ?= torch
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python -m
TESTING := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

.PHONY: demo demo-wheel speedrun dist docs lint tests test test-core test-all test-oldest test-next-hydra quick map snapshots bench release clean

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

.venv/all: .venv/ready
	$(BIN)/pip install --quiet --editable '.[test-all]'
	touch $@

.venv/bench: .venv/ready
	$(BIN)/pip install --quiet --editable '.[test,bench]'
	touch $@

.venv-oldest/ready: pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/pip install --quiet uv
	VIRTUAL_ENV=.venv-oldest .venv-oldest/bin/uv pip install --quiet --resolution lowest-direct --editable '.[test]'
	touch $@

.venv-next-hydra/ready: pyproject.toml
	$(PYTHON) -m venv .venv-next-hydra
	.venv-next-hydra/bin/pip install --quiet --editable '.[test]'
	.venv-next-hydra/bin/pip install --quiet --upgrade --pre hydra-core
	touch $@

# Environments on top of .venv, for other toolkits whose dependencies conflict with asr's. If a toolkit cannot be installed, the
# benchmarks leave it out and report this.
.venv-%: benchmarks/environments/%.txt .venv/bench
	$(PYTHON) -m venv $@
	for site in $@/lib/python*/site-packages; do echo $(CURDIR)/.venv/lib/python*/site-packages > $$site/base.pth; done
	$@/bin/pip install --quiet --requirement $< || { rm -r $@; echo "$@ could not be made; the benchmarks leave out its toolkits"; }

demo: .venv/ready
	$(RUN) asr.train
	$(RUN) asr.evaluate runs/mini data/mini/test.jsonl --output-dir runs/mini/evaluation --report runs/mini/evaluation/report.html
	$(RUN) asr.transcribe runs/mini data/mini/audio/test/test-00001.flac
	@sed -n 's/.*test-00001\.flac.*"text": "\([^"]*\)".*/Spoken in test-00001.flac: \1/p' data/mini/test.jsonl
	@echo "Reports: runs/mini/report.html, runs/mini/evaluation/report.html"

speedrun: .venv/ready
	$(RUN) recipes.librispeech.speedrun $(HOURS)

# The recipe that speaks the demo's corpus is not in the wheel, and runs from the checkout; python -P leaves the checkout out of the imports.
demo-wheel:
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip wheel --quiet --no-deps --wheel-dir build/wheel/dist .
	build/wheel/bin/pip install --quiet "$$(echo build/wheel/dist/*.whl)[mini]" '$(TORCH)'
	build/wheel/bin/python -m recipes.mini.prepare --output-dir data/mini
	build/wheel/bin/python -P -m asr.train corpus.prepare=null run_dir=build/wheel/run
	build/wheel/bin/python -P -m asr.evaluate build/wheel/run data/mini/test.jsonl

docs: .venv/ready
	$(RUN) docs.pages build/docs
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet
	@echo "The documentation: build/site/index.html"

dist: .venv/ready
	rm -rf dist
	$(RUN) build
	$(RUN) twine check --strict dist/*

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

tests: $(VENV)/ready
	$(TESTING) $(RUN) pytest -n 2 --dist loadfile --hypothesis-profile=ci -rfEs --disable-warnings  # property tests with fixed examples; pytest alone draws new examples

test-core: .venv/ready
	$(TESTING) $(RUN) pytest -n 2 --dist loadfile --hypothesis-profile=ci -m "not slow and not apps" --disable-warnings

test: .venv/ready
	$(MAKE) --jobs=2 --no-print-directory lint tests

test-oldest:
	$(MAKE) tests VENV=.venv-oldest

test-next-hydra:
	$(MAKE) tests VENV=.venv-next-hydra

quick: .venv/ready
	$(TESTING) $(RUN) tools.quick $(SINCE)

map: .venv/ready
	$(RUN) tools.coverage_map

snapshots: .venv/ready
	mkdir -p build
	$(RUN) tests.public_interface > build/snapshot && mv build/snapshot tests/public_interface.txt
	$(RUN) tests.messages > build/snapshot && mv build/snapshot tests/messages.txt
	$(RUN) docs.pages.tour
	$(RUN) tests.core_interface > build/snapshot && mv build/snapshot tests/core_interface.txt
	$(RUN) docs.pages.agents

test-all: .venv/all test
	OMP_WAIT_POLICY=passive $(RUN) pytest -n 2 -m slow

runs/mini/bundle: | .venv/ready
	$(RUN) asr.train

bench: .venv/bench .venv-nets .venv-decoding runs/mini/bundle
	$(RUN) benchmarks.suite

release: .venv/ready
	$(RUN) tools.release

clean:
	rm -rf .venv .venv-* build dist *.egg-info
