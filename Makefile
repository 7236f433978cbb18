# The book's commands; `make help` lists them. A fresh machine needs Python >= 3.11, git and make.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PAGE := _build/html/index.html
CHAPTERS := $(wildcard $(shell sed -n 's/^ *- file: *\(.*\)/\1.ipynb/p' _toc.yml))
# In this order: later records need earlier ones
RECORDS := sticky-authors sticky-tuning sticky-fair-authors sticky-fair-fresh sticky-frozen sticky-converged \
           lookup-tuning lookup-fair lookup-frozen sticky-frozen-content lookup-frozen-content manifold-rank
# At the papers' sizes, task by task
PAPER := $(foreach task,bijection hmm-header hmm-header-sticky,$(foreach net,transformer mamba lstm mlp,$(task)-$(net))) \
         recall-4-transformer recall-4-mamba recall-4-lstm
DEVICE ?= cuda
MINUTES ?= 9
PAGES := $(wildcard *.md *.yml book/*.md book/*.bib book/*.ipynb book/assets/* book/figures/* book/results/* bayesattn_core/*.py)

.PHONY: help book test unit chapters portability execute records paper bench clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR: # a book that was built with problems is not up to date

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) must be Python 3.11 or newer; name another with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

book: $(PAGE) ## build the HTML from the committed, tested outputs
	@echo "Open $(abspath $(PAGE))"

$(PAGE): $(READY) $(PAGES) Makefile
	$(VENV)/bin/jupyter-book clean . > /dev/null
	$(VENV)/bin/jupyter-book build . -W -n --keep-going
	$(PY) -m tests.pages

test: unit chapters ## run every test, notebooks included

unit: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell
	$(PY) -m pytest tests

chapters: $(READY)
	$(PY) -m pytest --nbval --nbval-current-env $(CHAPTERS)

portability: $(READY) ## run the notebooks' tests as older processors would
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(PY) -m pytest --nbval --nbval-current-env $(CHAPTERS)
	ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2 $(PY) -m pytest --nbval --nbval-current-env $(CHAPTERS)

execute: $(READY) ## re-execute every chapter in place (CHAPTERS=book/one.ipynb: only that one)
	for chapter in $(CHAPTERS); do \
	  env -u BAYESATTN_OUT BAYESATTN_DEVICE=cpu BAYESATTN_PROFILE=quick TQDM_DISABLE=1 \
	    $(VENV)/bin/jupyter execute --inplace --timeout=600 $$chapter || exit 1; \
	  $(VENV)/bin/nbstripout --keep-output --keep-count --keep-id \
	    --extra-keys "metadata.language_info.version cell.metadata.execution" $$chapter || exit 1; \
	done
	$(PY) -m bayesattn_core figures --out _build/figures
	cp _build/figures/fig-advantage-law.png book/assets/advantage-law.png

records: $(READY) ## make the recorded runs that are missing
	for name in $(RECORDS); do $(PY) -m bayesattn_core record $$name || exit 1; done

# When the time is over the command exits with 3; for make that is no error, since the minutes asked for are done
paper: $(READY) ## records at the papers' sizes, on a GPU, nine minutes at a time (run it again to go on)
	@$(PY) -m bayesattn_core record $(PAPER) --profile paper --device $(DEVICE) --minutes $(MINUTES) || \
	  { code=$$?; test $$code = 3 || exit $$code; echo "Not all is recorded yet: make paper goes on from here"; }

bench: $(READY) ## measure speed and memory, as ratios against stated references
	@$(PY) -m tests.bench; first=$$?; $(PY) -m tests.bench_networks && exit $$first

clean: ## remove the built pages and caches (the environment stays)
	rm -rf _build .pytest_cache .ruff_cache
