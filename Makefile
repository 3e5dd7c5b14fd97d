# make check: everything that a change has to pass. BIN: where the tools are.
BIN ?= .venv/bin

.PHONY: check format test

check:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy polyplay
	$(BIN)/python -m pytest -q

format:
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test:
	$(BIN)/python -m pytest -q
