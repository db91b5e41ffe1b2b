# Every target sets up what it needs, so `make test` works on a bare checkout.

PYTHON ?= python3
BENCH_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FOLDERS := $(wildcard src tests examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench soak rabbitmq clean

define HELP
make demo     a shop of three services, its crashes and its retries, live, on one SQLite file;
              SERVERS=1 on Postgres and NATS, STAY=1 keeps it running
make test     the static checks, then the tests
make check    the static checks only
make bench    the benchmarks; BENCH_ARGS="..." is passed on
make soak     the long tests that `make test` leaves out
make rabbitmq have apt install RabbitMQ, without its service, for the tests that skip where there is none
make clean    remove the virtual environment and every cache

PYTHON=python3.12 picks the interpreter, PYTEST_ARGS="-k claim" the tests.
endef

help:
	$(info $(HELP))
	@:

setup: $(READY)

demo: $(READY)
	$(BIN)/python -m examples.shop.demo $(if $(SERVERS),--servers) $(if $(STAY),--stay)

test: check
	$(BIN)/python -m pytest -n 2 --cov $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(FOLDERS)
	$(BIN)/lint-imports --no-logo

bench: $(READY)
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

soak: $(READY)
	$(BIN)/python -m pytest -m soak $(PYTEST_ARGS)

rabbitmq: $(READY)
	$(BIN)/python -c 'from onefold.testing.servers import install_rabbitmq; install_rabbitmq()'

clean:
	rm -rf $(VENV) .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache \
		.ruff_cache build dist htmlcov
	find $(FOLDERS) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is touched last: a set-up that was interrupted runs again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "onefold needs Python 3.11 or newer, and '$(PYTHON)' is not: name another with PYTHON=..." >&2; \
		exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { $(make_venv); }
	@echo "Installing onefold and its tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Debian ships Python without ensurepip: root gets the missing package, anyone else is told its name.
define make_venv
	if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
		package="$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "Installing $$package, which '$(PYTHON)' needs to make a virtual environment ..."; \
			apt-get update -qq && \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$package"; \
		fi; \
		$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
			echo "'$(PYTHON)' cannot make a virtual environment: its module ensurepip is missing." >&2; \
			echo "On Debian or Ubuntu: sudo apt-get install $$package. Then run make again." >&2; \
			exit 1; }; \
	fi; \
	$(PYTHON) -m venv --clear $(VENV)
endef
