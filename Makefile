# Two commands, each does its own set-up: `make train` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEV_READY := .venv/.dev-ready

.PHONY: train test lint types unit soak services docs wheel packaging clean

train: $(READY)
	$(BIN)/stepladder train

test: lint types unit

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_READY)
	$(BIN)/mypy

# One thread a process: two workers share two cores. A file's tests stay together, because they share
# fixtures and comparisons; in the order of their names, which puts long files first and short ones
# last. What is compiled beforehand is not compiled again by each of the processes that tests start.
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
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[ray]'
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
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/packaging tests/cli/commands/test_completion.py

# The stamps make the second run quick: pip works again only when the pins or the project change.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation setuptools
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e .
	touch $@

$(DEV_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
