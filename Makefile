# `make` alone prints the manual. Every target makes what it needs, on a fresh machine too.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
SAYING := sh -c '(while sleep 30 >/dev/null 2>&1; do echo "           still at it"; done) & "$$@"; code=$$?; kill $$!; exit $$code' sh
OFFLINE := echo "make: pip failed, expected a network connection to a package index (its own words are above)" >&2; exit 2
CHECK := $(BIN)/hicache-ref check
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-peers bench clean lint lint-ruff lint-types lint-words lint-tidy

help: ## Print this manual
	@echo "hicache-ref: the rules of a hierarchical KV cache, executable"
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter of .venv (3.11 or later; now $(PYTHON))."

setup: $(STAMP) ## Make .venv with everything in it, at the versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) is no Python 3.11 or later, expected one: make PYTHON=..." >&2; exit 2; }
	@echo "setup 1/3  .venv"
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv \
		|| { echo "make: venv failed, expected the package python3-venv to be installed" >&2; exit 2; }
	@echo "setup 2/3  torch, about 200 MB (more where it comes with CUDA)"
	@$(SAYING) $(PIP) hatchling editables torch || { $(OFFLINE); }
	@echo "setup 3/3  hicache-ref and its tools"
	@$(SAYING) $(PIP) --no-build-isolation -e ".[engine,files,redis,mooncake,yaml,dev]" || { $(OFFLINE); }
	@touch $@

demo: $(STAMP) ## Check the model, a released engine, and the same engine with a planted fault
	$(CHECK) --adapter reference --time-budget 15
	$(CHECK) --adapter sglang-rust --fetch --time-budget 20
	@echo
	@echo "Next, a fault is planted: loads put pages into each other's slots. The check has to find it."
	$(CHECK) --adapter sglang-rust --fetch --option plant=slots-swapped-load --time-budget 15 --stop-at-first; test $$? -eq 1
	@echo
	@echo "demo: the divergence above is the planted one, and was found. All is well."

lint: lint-ruff lint-types lint-words lint-tidy ## Style, types, spelling, house rules

lint-ruff: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: $(STAMP)
	$(BIN)/mypy

lint-words: $(STAMP)
	$(BIN)/codespell

lint-tidy: $(STAMP)
	$(PYTEST) -q tests/meta/test_tidy.py

test: $(STAMP) ## All tests that need neither minutes nor an engine nor a GPU
	$(PYTEST) -m "not long and not peers and not gpu"

test-long: $(STAMP) ## The tests that take minutes
	$(PYTEST) -m long

test-peers: $(STAMP) ## The tests that run released engines; fetches the pinned wheels first
	$(CHECK) --adapter sglang-rust --fetch --steps 100 --requirement HC-PAGE-01
	$(BIN)/python -m hicache_ref.adapters.sglang_hiradix.wheels
	$(BIN)/python -m hicache_ref.adapters.sglang_himamba.wheels
	$(BIN)/python -m hicache_ref.adapters.sglang_unified.wheels
	$(PYTEST) -m peers

bench: $(STAMP) ## Compare speeds with the peers
	$(BIN)/hicache-ref bench

clean: ## Remove what the targets made, .venv too
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache divergences dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
