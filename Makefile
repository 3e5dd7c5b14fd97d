# make check: everything that a change has to pass. BIN: where the tools are.
BIN ?= .venv/bin

.PHONY: check dist docs format lowest newest test

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

# The sdist and the wheel, in dist/. With changes that are not committed, the version ends in +dirty.
dist:
	rm -rf build/lib dist polyplay.egg-info && mkdir -p build
	@dirty=$$(git status --porcelain 2>/dev/null | head -c 1); \
	test -z "$$dirty" || echo "make dist: the tree has changes that are not committed: the version ends in +dirty" >&2; \
	$(BIN)/python -m build $${dirty:+-C--global-option=egg_info -C--global-option=--tag-build=+dirty} > build/dist.log 2>&1 \
	|| { tail build/dist.log >&2; exit 1; }
	@rm -r polyplay.egg-info && ls dist/*

# All tests with the newest of everything that the ranges in pyproject.toml allow, in an environment of its own;
# torch stays the one of constraints.txt: `make newest TORCH=` takes the newest of that too.
TORCH ?= -c constraints.txt
PYTHON ?= python3
newest:
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/pip install -q --upgrade --upgrade-strategy eager $(TORCH) -e ".[dev]"
	build/newest/bin/pip list | grep -iE "^(torch|numpy|gymnasium|ale-py|rich|onnx) "
	build/newest/bin/python -m pytest -q

# All tests with the lowest of everything that the ranges in pyproject.toml allow.
lowest:
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/pip install -q uv
	build/lowest/bin/uv pip compile -q --no-build --resolution lowest-direct --extra dev pyproject.toml -o build/lowest/all.txt
	build/lowest/bin/pip install -q -r build/lowest/all.txt -e .
	build/lowest/bin/pip list | grep -iE "^(torch|numpy|numba|gymnasium|ale-py|rich) "
	build/lowest/bin/python -m pytest -q
