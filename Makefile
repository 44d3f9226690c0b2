# KaaS. `make help` lists the targets; each does the set-up that it needs.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
TVM    := compilers/tvm_backend
BLAS   := libraries/cutlass_blas
# tests of all lanes often wait for processes that start, and three processes of tests leave two cores less idle than two
SPREAD := --dist loadfile --no-loadscope-reorder --durations=25
TWO    := -n 2 $(SPREAD)
THREE  := -n 3 $(SPREAD)
CASES  := softgpu/softgpu/tests/driver/cases -o python_files='case_*.py' -m 'not alone' -p no:cacheprovider
FIRST   = $(shell cat tests/libraries/built_first.txt)
LOCK   := uv pip compile pyproject.toml --no-emit-package softgpu --universal --python-version 3.11 --generate-hashes \
          --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet

export PYTHONUNBUFFERED = 1
# with its default Ray leaves a token in the home folder
demo test test-all bench: export RAY_AUTH_MODE ?= disabled
# where this is set, each of the hundreds of processes that tests start would compile KaaS anew, and pytest the tests
quick test test-all: export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup libs extras demo quick test test-all check fuzz bench wheel dist papers peers gpu gpu-expected kernels map tables lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## virtual environment, locked dependencies, the software GPU's driver library
	@$(BIN)/python -m softgpu.build

libs: setup ## the kernels of the BLAS library that are not built yet (at first about 4 minutes on 2 cores; needs a C++ compiler)
	@$(BIN)/python -m cutlass_blas build $(if $(filter libs,$(MAKECMDGOALS)),$(ARGS))

# PyTorch wants CUDA's packages of a version of its own; all other packages stay as in dev.txt
extras: setup ## PyTorch, Triton, CuPy and onnxscript too (up to 7 GB), for the tests and benchmarks that want them
	@$(PIP) --require-hashes --only-binary :all: -r requirements/extras.txt

demo: $(VENV)/.run ## three clients share four devices by weight, and an executor is killed meanwhile
	@$(BIN)/kaas demo $(ARGS)

quick: $(VENV)/.quick ## the tests that need no Ray, no nvcc, no TVM and no server process: one to two minutes on 2 cores
	@$(BIN)/python -m softgpu.build
	@$(BIN)/python -m pytest --lane quick $(TWO) $(ARGS)

# ARGS choose tests of all lanes; without them the kernels that the tests use are built, and the driver's cases run, while
# the processes of tests begin
test: setup ## what decides whether a commit is right, in three processes; ARGS='-k graph -x' is passed to pytest, in one
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@$(BIN)/python -m cutlass_blas build -j 1 $(FIRST) & built=$$!; \
	  $(BIN)/python -m pytest $(CASES) & cases=$$!; \
	  $(BIN)/python -m pytest --lane test $(THREE); status=$$?; \
	  wait $$cases || status=1; wait $$built || status=1; exit $$status
endif

test-all: libs ## every test; images and programs by the thousand
	@$(BIN)/python -m pytest $(THREE)
	@$(MAKE) --no-print-directory fuzz

wheel: $(VENV)/.run ## the wheels that an installation needs, in dist/: KaaS, and softgpu with its driver library, for machines without a C compiler
	@$(BIN)/hatchling build -t wheel -d dist
	@cd softgpu && $(abspath $(BIN))/hatchling build -t wheel -d $(abspath dist)

dist: setup wheel ## all wheels, in dist/: also kaas-gpu-tvm, and kaas-gpu-blas with its kernels
	@cd $(TVM) && $(abspath $(BIN))/hatchling build -t wheel -d $(abspath dist)
	@$(BIN)/python -m cutlass_blas build
	@cd $(BLAS) && KAAS_BLAS_PACK=core $(abspath $(BIN))/hatchling build -t wheel -d $(abspath dist)

check: $(VENV)/.dev ## lint, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

fuzz: setup ## 10,000 bad images and 3,000 random programs on the software GPU; ARGS='--seed 7' chooses others
	@$(BIN)/python -m softgpu.tests.compiler.fuzz $(ARGS)
	@$(BIN)/python -m softgpu.tests.compiler.random --programs 3000 $(ARGS)

bench: libs ## every benchmark against its bars, and docs/benchmarks.md of the results; ARGS=launch runs one
	@$(BIN)/python -m benchmarks $(ARGS)

peers: libs ## KaaS beside Ray Serve, ONNX Runtime, IREE and others, which this installs; docs/benchmarks.md of the results
	@$(PIP) --require-hashes --only-binary :all: -r requirements/peers.txt
	@$(BIN)/python -m benchmarks peers

papers: setup ## the experiments of the KaaS paper again, and docs/evaluation.md (15 minutes on two cores)
	@$(BIN)/kaas papers kaas --folder benchmarks/results/papers --report docs/evaluation.md $(ARGS)

gpu: ## tests and benchmarks on an NVIDIA GPU, with the packages of $(PYTHON) as they are
	@$(PYTHON) -m tests.gpu

gpu-expected: setup ## what `make gpu` compares with, made on the software GPU
	@$(BIN)/python -m tests.gpu.expected

kernels: ## PTX of all .cu files again (needs nvcc)
	@for source in $$(find kaas softgpu examples benchmarks tests -name '*.cu'); do \
	  echo "nvcc -ptx -arch=sm_80 $$source"; nvcc -ptx -arch=sm_80 "$$source" -o "$${source%.cu}.ptx" || exit 1; done

map: setup ## files, lines and imports of each folder, import cycles, the longest files; and the table of folders in docs/architecture.md again
	@$(BIN)/python -m tests.map --write $(ARGS)

tables: setup ## the tables of softgpu/docs/softgpu.md, docs/api.md and docs/benchmarks.md, and docs/plots, again, from code, tests and results
	@$(BIN)/python -m softgpu.tests.compiler.tables --write
	@$(BIN)/python -m tests.reference --write
	@$(BIN)/python -m benchmarks.page
	@$(BIN)/python -m benchmarks.policy_plots

lock: ## lock files from pyproject.toml (needs uv)
	$(LOCK) --extra ray --upgrade --group build -o requirements/run.txt
	$(LOCK) --extra ray --group dev -c requirements/run.txt -o requirements/dev.txt
	$(LOCK) --group quick --group build -c requirements/dev.txt -o requirements/quick.txt
	sed -n '/^nvidia-/d; /^[a-z]/s/ *\\$$//p' requirements/dev.txt | $(LOCK) --extra ray --group extras -c - -o requirements/extras.txt
	sed -n '/^[a-z]/s/ *\\$$//p' requirements/dev.txt | $(LOCK) --extra ray --group peers -c - -o requirements/peers.txt
	@! grep -n '://' requirements/*.txt

clean: ## removes the virtual environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: once, and again when a lock file changes

PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet

$(BIN)/activate:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "KaaS needs Python 3.11 or newer, this is $$($(PYTHON) --version 2>&1); try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: requirements/run.txt pyproject.toml softgpu/pyproject.toml | $(BIN)/activate
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip >/dev/null # some tools make them without
	@echo "installing what KaaS needs into $(VENV) (about 400 MB, once) ..."
	@$(PIP) --require-hashes --only-binary :all: -r requirements/run.txt
	@$(PIP) --no-deps --no-build-isolation --editable softgpu --editable .
	@touch $@

$(VENV)/.quick: requirements/quick.txt pyproject.toml softgpu/pyproject.toml | $(BIN)/activate
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip >/dev/null
	@echo "installing what the quick tests need into $(VENV) (about 300 MB, once) ..."
	@$(PIP) --require-hashes --only-binary :all: -r requirements/quick.txt
	@$(PIP) --no-deps --no-build-isolation --editable softgpu --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(TVM)/pyproject.toml $(BLAS)/pyproject.toml $(VENV)/.run
	@echo "installing the tools of development, TVM and nvcc among them (another 1300 MB, once) ..."
	@$(PIP) --require-hashes --only-binary :all: -r requirements/dev.txt
	@$(PIP) --no-deps --no-build-isolation --editable $(TVM) --editable $(BLAS)
	@touch $@ $(VENV)/.quick
