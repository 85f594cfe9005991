# make demo   makes the environment, profiles a bundled example, and once more with its first advice
# make test   makes the environment and runs the whole suite
# make workloads  profiles the labelled training scripts and compares the verdicts
# make check  lint, types, import rules
# make gpu-check  profiles loops of known state on a GPU and compares the verdicts; without a GPU it says so
# make gpu-kit    puts dlprof and what gpu-check needs into build/gpu-kit, for a machine without a network

PYTHON ?= python3
VENV ?= .venv
# The version that dlprof was tested with; the CPU build is asked for first, since it is a tenth of the size.
TORCH ?= 2.13.0

BIN := $(VENV)/bin
READY := $(VENV)/.ready
PANGO := libpango-1.0-0 libpangoft2-1.0-0

KIT := build/gpu-kit
# The Python of the machine that the kit is for.
KIT_PYTHON ?= 3.11

.PHONY: demo test workloads check clean gpu-check gpu-kit

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

workloads: $(READY)
	$(BIN)/python tests/workloads/run.py $(WORKLOADS_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Runs with the environment where it was made; else with the system's Python, its torch and numpy, and the kit.
gpu-check:
	@if [ -e $(READY) ]; then $(BIN)/python tests/gpu/check.py $(GPU_CHECK_ARGS); \
	else PYTHONPATH="$(abspath $(KIT))$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) tests/gpu/check.py $(GPU_CHECK_ARGS); fi

# Without numpy and torch, which the image has, and without what only HTML and PDF need.
gpu-kit:
	rm -rf $(KIT) build/gpu-wheel
	$(PYTHON) -m pip wheel -q --no-deps -w build/gpu-wheel .
	$(PYTHON) -m pip install -q --target $(KIT) --python-version $(KIT_PYTHON) --only-binary=:all: \
	  babel click jinja2 msgspec nvidia-ml-py rich
	$(PYTHON) -m pip install -q --target $(KIT) --python-version $(KIT_PYTHON) --only-binary=:all: --no-deps \
	  build/gpu-wheel/dlprof-*.whl

# A torch that is there already is used: it may be a GPU build that took long to get. That of an activated virtual
# environment is not to be had this way.
$(READY): pyproject.toml
	@$(PYTHON) -m venv $$($(PYTHON) -c 'import torch' 2>/dev/null && echo --system-site-packages) $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || \
	  $(BIN)/python -m pip install -q 'torch==$(TORCH)+cpu' 2>/dev/null || \
	  $(BIN)/python -m pip install -q 'torch==$(TORCH)'
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
