# Each target does its own set-up: a virtual environment below this checkout.
# Your own torch (a GPU build, say): make demo PYTHON=/path/to/python VENV_FLAGS=--system-site-packages CONSTRAINTS=
PYTHON ?= python3
VENV_FLAGS ?=
CONSTRAINTS ?= -c constraints.txt
BIN := .venv/bin

.PHONY: demo test lint soak errors docs clean

demo: .venv/demo.stamp
	$(BIN)/rrr demo

test: .venv/test.stamp lint
	$(BIN)/pytest -n 2

# 200 runs killed and gone on with, 2,000 cases of bad input; half an hour on two cores
soak: .venv/test.stamp
	RRR_SOAK=1 $(BIN)/pytest -n 2 -o faulthandler_timeout=0 tests/process/test_kill.py tests/process/test_fuzz.py

# the page of what each command refuses, from the list that the tests type
errors: .venv/test.stamp
	$(BIN)/python tests/process/refusals.py > docs/errors.md

# the page of the public names, from their docstrings
docs: .venv/test.stamp
	$(BIN)/python docs/api.py > docs/api.md

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv $(VENV_FLAGS) .venv

.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINTS) -e '.[report]'
	touch $@

.venv/test.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINTS) -e '.[dev,report,tensorboard,browser,avalanche,onnx,ray]'
	touch $@

clean:
	rm -rf .venv
