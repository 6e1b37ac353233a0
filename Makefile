# Each target does its own set-up: a virtual environment below this checkout.
# Your own torch (a GPU build, say): make demo PYTHON=/path/to/python VENV_FLAGS=--system-site-packages CONSTRAINTS=
PYTHON ?= python3
VENV_FLAGS ?=
CONSTRAINTS ?= -c constraints.txt
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/demo.stamp
	$(BIN)/rrr demo

test: .venv/test.stamp lint
	$(BIN)/pytest -n 2

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
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINTS) -e '.[dev,report,tensorboard,browser]'
	touch $@

clean:
	rm -rf .venv
