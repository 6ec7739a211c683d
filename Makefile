# make demo: train, evaluate and transcribe on a corpus made on the spot. make test: everything CI checks; make test-all: that, and
# the tests that take long.
# make docs: the documentation as a site, build/site/index.html.
# make dist: source distribution and wheel, checked.
# make bench: every benchmark, beside the toolkits that PyPI has.
PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m

.PHONY: demo dist docs test test-all bench clean

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

# Peers that do not resolve with asr, over what .venv has; without them the benchmarks leave them out and say so.
.venv-%: benchmarks/environments/%.txt .venv/bench
	$(PYTHON) -m venv $@
	for site in $@/lib/python*/site-packages; do echo $(CURDIR)/.venv/lib/python*/site-packages > $$site/base.pth; done
	$@/bin/pip install --quiet --requirement $< || { rm -r $@; echo "$@ could not be made; going on without it"; }

demo: .venv/ready
	$(RUN) asr.train
	$(RUN) asr.evaluate runs/mini data/mini/test.jsonl --output-dir runs/mini/evaluation --report runs/mini/evaluation/report.html
	$(RUN) asr.transcribe runs/mini data/mini/audio/test/test-00001.flac
	@echo "To look at: runs/mini/report.html, runs/mini/evaluation/report.html"

docs: .venv/ready
	$(RUN) docs.pages build/docs
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet
	@echo "To read: build/site/index.html"

dist: .venv/ready
	rm -rf dist
	$(RUN) build
	$(RUN) twine check --strict dist/*

test: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	OMP_WAIT_POLICY=passive $(RUN) pytest -n 2 --hypothesis-profile=ci  # the same examples each time; pytest alone draws new ones

test-all: .venv/all test
	OMP_WAIT_POLICY=passive $(RUN) pytest -n 2 -m slow

runs/mini/bundle: | .venv/ready
	$(RUN) asr.train

bench: .venv/bench .venv-nets .venv-decoding runs/mini/bundle
	$(RUN) benchmarks.suite

clean:
	rm -rf .venv .venv-nets .venv-decoding build dist *.egg-info
