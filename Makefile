# make check: everything that a change has to pass. BIN: where the tools are.
BIN ?= .venv/bin

.PHONY: check docs format newest test

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

# The site, in build/site, from the same pages; needs the extra [docs].
docs:
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/assemble.py build/pages
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --quiet --strict

# All tests with the newest of everything that the ranges in pyproject.toml allow, in an environment of its own;
# torch stays the one of constraints.txt: `make newest TORCH=` takes the newest of that too.
TORCH ?= -c constraints.txt
newest:
	python3 -m venv --clear build/newest
	build/newest/bin/pip install -q --upgrade --upgrade-strategy eager $(TORCH) -e ".[dev]"
	build/newest/bin/pip list | grep -iE "^(torch|numpy|gymnasium|ale-py|rich|onnx) "
	build/newest/bin/python -m pytest -q
