# make demo   makes the environment, profiles a bundled example, and once more with its first advice
# make test   makes the environment and runs the whole suite
# make check  lint, types, import rules

PYTHON ?= python3
VENV ?= .venv
# The version that dlprof was tested with; the CPU build is asked for first, since it is a tenth of the size.
TORCH ?= 2.13.0

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PANGO := libpango-1.0-0 libpangoft2-1.0-0

.PHONY: demo test check clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A torch that is there already is used: it may be a GPU build that took long to get.
$(READY): pyproject.toml
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	  $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
	  $(PYTHON) -m venv $(VENV) && \
	  { $(BIN)/python -m pip install -q 'torch==$(TORCH)+cpu' 2>/dev/null || \
	    $(BIN)/python -m pip install -q 'torch==$(TORCH)'; }; \
	fi
	$(BIN)/python -m pip install -q -e '.[examples,dev]'
	@$(BIN)/python -c 'import weasyprint' >/dev/null 2>&1 || $(MAKE) --no-print-directory pango
	@touch $(READY)

# The PDF needs Pango. It is installed where we may, else the line that does it is printed; HTML works without.
.PHONY: pango
pango:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq $(PANGO) >/dev/null; \
	else \
	  echo "PDF reports need Pango:  sudo apt-get install -y $(PANGO)"; \
	fi

clean:
	rm -rf $(VENV) build dist
