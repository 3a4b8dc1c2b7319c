# make demo / make test set up everything they need on a machine with Python >= 3.11, a C++ compiler and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(shell find kernels/csrc -type f)
# the editable install lists packages, so new ones need it anew
PACKAGES := $(shell find megengine kernels traced_module quantization cli -name __init__.py)

FUZZ ?= 20000
SEED ?= 1
# tests in as many processes as there are cores; four take up to 10 GB of memory
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.PHONY: api bytecode demo fuzz fuzz-calls megengine onnx-suite test test-cuda test-slow lint format clean setup stubs wheel

setup: $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "megengine needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@command -v $${CXX:-c++} >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || { \
	  echo "No C++ compiler found. Install one first: 'apt-get install g++' (Debian, Ubuntu), 'dnf install gcc-c++' (Fedora), or set CXX."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python $(NATIVE) $(PACKAGES)
	$(BIN)/python -m pip install -q --disable-pip-version-check "scikit-build-core>=1.1" nanobind "numpy>=2" ml_dtypes cmake ninja \
	  onednn-devel-cpu-gomp==2023.2.0 onednn-cpu-gomp==2023.2.0
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -e '.[dev]'
	$(BIN)/python cmake/stubs.py .
	@touch $@

# type stubs of what the op records declare, for editors and type checkers
stubs: setup
	$(BIN)/python cmake/stubs.py .

# tests start many processes: where PYTHONDONTWRITEBYTECODE is set each of them would compile all that it imports
bytecode: setup
	@$(BIN)/python -m compileall -q megengine kernels traced_module quantization cli

demo: setup
	$(BIN)/mge-quantize demo -o demo-out/report.html

test: setup bytecode
	$(PYTEST) -m "not slow and not cuda"

test-slow: setup bytecode
	$(PYTEST) -m slow

# all that is checked and measured on a GPU, and a report in gpu-report/: make test-cuda PARTS="contract bench"
test-cuda: setup
	$(BIN)/python tests/cuda/run.py $(PARTS)

# damaged files of every kind: make fuzz FUZZ=1000 SEED=7
fuzz: setup
	$(BIN)/python tests/fuzz/fuzz.py --count $(FUZZ) --seed $(SEED)

# random calls of everything public, by the kernels of each instruction set: make fuzz-calls FUZZ=5000 SEED=7
fuzz-calls: setup
	$(BIN)/python tests/fuzz/fuzz_calls.py --count $(FUZZ) --seed $(SEED)

# what is written here, read and run by the real MegEngine 1.13: make megengine MEGENGINE_PYTHON=/path/to/python3.8
megengine: setup
	@test -n "$(MEGENGINE_PYTHON)" || { echo "make megengine MEGENGINE_PYTHON=/path/to/python: a Python with megengine==1.13.0"; exit 1; }
	MEGENGINE_PYTHON=$(MEGENGINE_PYTHON) $(BIN)/python -m pytest -m megengine

# what becomes of each operator of ONNX's node suite, and why cases are refused: make onnx-suite CASES="test_resize test_pad"
onnx-suite: setup
	$(BIN)/python tests/helpers/node_suite.py $(CASES)

# compares the public names and signatures with MegEngine's
api: setup
	$(BIN)/python tests/helpers/public_api.py tests/data/megengine/api.json

lint: stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	find kernels -name '*.cpp' -o -name '*.h' -o -name '*.inc' | xargs $(BIN)/clang-format --dry-run -Werror

format: setup
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	find kernels -name '*.cpp' -o -name '*.h' -o -name '*.inc' | xargs $(BIN)/clang-format -i

# a wheel in dist/ for every Linux with the glibc of this machine or a newer one
wheel: setup
	rm -rf build/wheel
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair -w dist build/wheel/*.whl

clean:
	rm -rf $(VENV) build dist
