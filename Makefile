# make run     the proxy in front of a demonstration server, on http://127.0.0.1:8080/mcp
# make test    every test
#
# Needs make and Python 3.11, 3.12 or 3.13. Everything else goes into .venv and .work; `make clean` removes it.

SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)
PY := .venv/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --retries 2
APT_PACKAGES := strace nginx caddy
LISTEN := 127.0.0.1:8080

# For a look at one part: make test ARGS=tests/test_config.py
ARGS ?=

# Most tests wait for other processes most of their time, so they run side by side. Those that would notice
# the others are marked `alone`, and run after them.
WORKERS ?= 4
EVERY_TEST = $(PY) -m pytest -n $(WORKERS) --dist worksteal -m 'not alone' && $(PY) -m pytest -m alone

.PHONY: run test check format tools bench faults lock clean
.DELETE_ON_ERROR:

run: .venv/run.done
	@cat examples/next_steps.txt
	@mkdir -p .work
	@exec .venv/bin/mcp-taskproxy --listen $(LISTEN) --store disk:.work/demo-data -- $(PY) examples/demo_server.py

test: .venv/dev.done tools
	$(if $(ARGS),$(PY) -m pytest $(ARGS),$(EVERY_TEST))

check: .venv/dev.done tools
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(EVERY_TEST)

format: .venv/dev.done
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

# What the tests need beside Python packages: system tools, other environments, npm packages.
tools: .venv/dev.done
	@missing=; for tool in $(APT_PACKAGES); do PATH="$$PATH:/usr/sbin" command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then \
		root=; [ "$$(id -u)" = 0 ] || root=sudo; \
		if command -v apt-get >/dev/null && { [ -z "$$root" ] || command -v sudo >/dev/null; }; then \
			$$root apt-get update -qq && $$root apt-get install -qq -y --no-install-recommends $$missing; \
		else \
			echo "make tools: please install$$missing; tests that need it fail" >&2; \
		fi; \
	fi
	$(PY) tests/setup_tools.py

bench: .venv/dev.done
	@for file in benchmarks/[a-z]*.py; do \
		echo "== $$file"; $(PY) -m benchmarks.$$(basename $$file .py) || exit 1; done

# Break everything around a running proxy, for as long as it is let: make faults ARGS="--kills 1000"
faults: .venv/dev.done
	$(PY) -m tests.faults $(ARGS)

# Pin the newest versions that pyproject.toml allows, for every supported Python at once.
PIN := .work/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	--no-emit-index-url --no-annotate --custom-compile-command 'make lock'
lock: .venv/pip.done
	@mkdir -p .work
	@test -x .work/lock/bin/uv || { $(PY) -m venv .work/lock && .work/lock/bin/python -m pip install --quiet uv; }
	$(PIN) pyproject.toml --output-file requirements/run.txt
	$(PIN) pyproject.toml --group dev --constraint requirements/run.txt --output-file requirements/dev.txt
	printf 'hatchling>=1.27\neditables\n' | $(PIN) - --output-file requirements/build.txt

clean:
	rm -rf .venv .work dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/pip.done:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12 or 3.13 is needed; name one with PYTHON=…" >&2; exit 1; }
	@$(PYTHON) -c '$(SUITABLE)' || { echo "make: $(PYTHON) is not Python 3.11, 3.12 or 3.13" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "make: $(PYTHON) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	@touch $@

# pip checks every archive against the hashes in the lock; ours alone has none, and needs nothing more.
NO_PACKAGES := { echo "make: the locked packages could not be installed (see above); is there a network?" >&2; exit 1; }
.venv/run.done: .venv/pip.done requirements/run.txt requirements/build.txt pyproject.toml
	$(INSTALL) --require-hashes -r requirements/build.txt -r requirements/run.txt || $(NO_PACKAGES)
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.done: .venv/run.done requirements/dev.txt
	$(INSTALL) --no-compile --require-hashes -r requirements/dev.txt || $(NO_PACKAGES)
	@touch $@
