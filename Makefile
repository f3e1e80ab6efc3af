# Two commands, each does its own set-up: `make train` and `make test`.
#   PYTHON=python3.12   the Python that .venv is made with, 3.11 to 3.14
#   TORCH=cpu|cuda      the build of torch; without it, the one that suits this machine
PYTHON ?= python3
TORCH ?=
BIN := .venv/bin
READY := .venv/.ready
DEV_READY := .venv/.dev-ready
INSTALL := $(BIN)/python requirements/install.py

# What is installed is compiled when it is first imported, and kept, whatever the shell says: without
# this every process compiles torch again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test lint types unit soak services docs wheel packaging lock clean

train: $(READY)
	$(BIN)/stepladder train

test: lint types unit

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_READY)
	$(BIN)/mypy

# One thread a process, two workers for two cores. A file's tests stay together, because they share
# fixtures and comparisons; files run in the order of their names, which puts long files first. What
# is compiled beforehand is not compiled again by each of the processes that tests start.
unit: $(DEV_READY)
	$(BIN)/python -m compileall -q src
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What the gate leaves out: clocks, browsers, signals, long chaos, packaging, every docs snippet. Run
# before a release; the table of its results is committed.
soak: $(DEV_READY)
	$(BIN)/python -m tests.soak

# The same run on a real Slurm cluster, on Ray and on two hosts by ssh, all of this machine (root).
services: $(DEV_READY)
	apt-get install -y -qq --no-install-recommends slurm-wlm munge openssh-server iproute2
	$(INSTALL) extras
	OMP_NUM_THREADS=1 SERVICES=1 $(BIN)/python -m pytest tests/services -n 0

# The site, in site/: pictures are drawn, every warning is an error, nothing is fetched.
docs: $(DEV_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The sdist and, made from it, the wheel: in dist/.
wheel: $(DEV_READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation

# The wheel in an environment of its own, the container file, a notebook, completion.
packaging: $(DEV_READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m '' tests/packaging tests/cli/commands/test_completion.py

# The stamps make the second run quick: pip works again only when a lock or the project changes.
# Nothing is resolved: install.py installs a lock, and the project itself is installed without
# dependencies. Debian's python3 has no venv until python3-venv is installed, and says so: what it
# has begun by then is taken away, so that the next run begins anew.
$(READY): pyproject.toml requirements/install.py requirements/cpu.txt requirements/cuda.txt $(TORCH:%=.venv/.torch-%)
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }
	@$(INSTALL) run $(TORCH:%=--torch=%)
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEV_READY): $(READY) requirements/dev.txt
	@$(INSTALL) dev
	@touch $@

# install.py leaves the stamp of the build it installed: when TORCH names the other, .venv is not ready.
.venv/.torch-%: ;

# The locks of requirements/, made anew: nothing changes version but what pyproject.toml asks for.
# With UPGRADE=--upgrade everything does, with UPGRADE='--upgrade-package rich' one package.
# dev.txt is first, because the others take their versions from it. torch is in cpu.txt and cuda.txt only.
# PyPI comes before PyTorch's index, which also offers some of torch's own dependencies.
TORCH_VERSION := 2.13.0
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
UV := build/uv/bin/uv
COMPILE = $(UV) pip compile pyproject.toml - --universal --python-version 3.11 --generate-hashes --quiet \
	--custom-compile-command 'make lock' $(UPGRADE)
CPU = printf "torch==$(TORCH_VERSION)+cpu; sys_platform == 'linux'\ntorch==$(TORCH_VERSION)\n" | $(COMPILE) \
	--index https://pypi.org/simple --default-index $(CPU_INDEX) --index-strategy unsafe-best-match
CUDA = printf "torch==$(TORCH_VERSION)\n" | $(COMPILE)
EXTRAS := --extra watch --extra track --extra hf --extra data

lock: $(UV)
	$(CPU) --no-emit-package torch $(EXTRAS) --extra docs --group dev -o requirements/dev.txt
	$(CPU) --no-emit-package torch $(EXTRAS) --extra gpu --extra ray -c requirements/dev.txt -o requirements/extras.txt
	$(CPU) -c requirements/dev.txt -o requirements/cpu.txt
	$(CUDA) --extra gpu -c requirements/dev.txt -o requirements/cuda.txt

$(UV):
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install --quiet --disable-pip-version-check uv==0.13.8

clean:
	rm -rf .venv build dist src/*.egg-info
