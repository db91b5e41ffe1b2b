# Every target sets up what it needs, so `make test` works on a bare checkout.

PYTHON ?= python3
BENCH_ARGS ?=
PYTEST_ARGS ?=
#: More than the cores: half of the tests wait for servers, disks and processes.
WORKERS ?= 4
#: One that is done takes from the others what they have not begun.
SPREAD := -n $(WORKERS) --dist worksteal
#: Where memory is plenty, what tests write stays in it: a database of its own is three hundred files, and to make and
#: delete those on a disk takes as much of a core as many a test. A TMPDIR that is set is kept.
IN_MEMORY = $(if $(TMPDIR),,$(shell df -t tmpfs --output=avail /dev/shm 2>/dev/null | awk -v free="$$(awk \
	'/^MemAvailable/ { print $$2 }' /proc/meminfo 2>/dev/null)" 'NR == 2 && $$1 > 8e6 && free > 16e6 { print "TMPDIR=/dev/shm" }'))
QUICK := tests/contract tests/http tests/idempotency tests/inbox tests/kernel tests/outbox tests/policy tests/lint
#: Storms, fuzzers, what starts processes to kill them, what cuts or holds connections and what runs over every driver are
#: for `make test`; and one Postgres and ASGI are enough.
QUICK_WITHOUT := tests/contract/test_changes.py tests/contract/test_faults.py tests/contract/test_misuse.py \
	tests/http/test_constraints.py tests/http/test_cut_connections.py tests/http/test_forgotten_awaits.py \
	tests/http/test_fuzzing.py tests/http/test_garbage.py tests/http/test_interruption.py tests/http/test_isolation.py \
	tests/http/test_sessions.py tests/http/test_thread_savepoints.py tests/idempotency/test_fingerprint.py \
	tests/idempotency/test_server_timeouts.py tests/idempotency/test_traps.py tests/inbox/test_catching_up.py \
	tests/inbox/test_crash.py tests/inbox/test_drivers.py tests/inbox/test_order.py tests/inbox/test_plans.py \
	tests/inbox/test_redrive.py tests/inbox/test_sources.py tests/outbox/test_claims.py tests/outbox/test_debezium.py \
	tests/outbox/test_destinations.py tests/outbox/test_relay_lives.py tests/outbox/test_relay_storm.py \
	tests/outbox/test_write.py
may_install := [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null

# Tests start hundreds of processes: what is compiled is kept for the next, also where the shell would not have it.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FOLDERS := $(wildcard src tests examples benchmarks book)

#: The theme tells every build that it has a successor.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

.DEFAULT_GOAL := help
.PHONY: help setup demo docs docs-serve test quick check types bench coverage soak rabbitmq restate prometheus pgbouncer chromium clean

define HELP
make demo     a shop of four services, its crashes and its retries, live, on one SQLite file;
              SERVERS=1 on Postgres and NATS, SAGAS=restate on a server of it, STAY=1 keeps it running
make docs     the documentation as a site, in build/site; docs-serve shows it on port 8000, and what is edited at once
make test     the static checks, then the tests
make quick    two minutes of tests for every save: no server but SQLite and one Postgres
make check    the static checks only
make types    mypy and pyright, both strict, on a program of a user; pyright needs node
make bench    the benchmarks; BENCH_ARGS="..." is passed on
make coverage the tests, and what they do not reach
make soak     the long tests that `make test` leaves out
make rabbitmq have apt install RabbitMQ, without its service; `make test` does so by itself where it may
make prometheus  have apt install Prometheus, without its service; `make test` does so by itself where it may
make pgbouncer have apt install PgBouncer, without its service; `make test` does so by itself where it may
make chromium have apt install Chromium, for the tests of the console; `make test` does so by itself where it may
make restate  have npm put Restate's server into the virtual environment; `make test` does so where npm is
make clean    remove the virtual environment and every cache

PYTHON=python3.12 picks the interpreter, PYTEST_ARGS="-k claim" the tests.
endef

help:
	$(info $(HELP))
	@:

setup: $(READY)

demo: $(READY)
	$(BIN)/python -m examples.shop.demo $(if $(SERVERS),--servers) $(if $(SAGAS),--sagas $(SAGAS)) $(if $(STAY),--stay)

docs: $(READY)
	$(MKDOCS) build --strict --quiet
	@echo "build/site/index.html"

docs-serve: $(READY)
	$(MKDOCS) serve --strict --livereload

test: check
	@$(may_install) && $(MAKE) --no-print-directory rabbitmq || echo "RabbitMQ is not installed here: its tests are skipped"
	@$(may_install) && $(MAKE) --no-print-directory prometheus || echo "Prometheus is not installed here: its tests are skipped"
	@$(may_install) && $(MAKE) --no-print-directory pgbouncer || echo "PgBouncer is not installed here: its tests are skipped"
	@$(may_install) && $(MAKE) --no-print-directory chromium || echo "Chromium is not installed here: the tests in a browser are skipped"
	@command -v npm >/dev/null && $(MAKE) --no-print-directory restate || echo "Restate's server is not installed here: its tests are skipped"
	$(IN_MEMORY) $(BIN)/python -m pytest $(SPREAD) $(PYTEST_ARGS)

quick: $(READY)
	$(BIN)/ruff check .
	$(IN_MEMORY) $(BIN)/python -m pytest $(SPREAD) $(QUICK) $(addprefix --ignore=,$(QUICK_WITHOUT)) \
		-k "not postgres_16 and not wsgi" $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 $(FOLDERS)
	$(BIN)/lint-imports --no-logo

types: $(READY)
	$(BIN)/python -m pytest -m soak tests/packaging/test_types.py $(PYTEST_ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

coverage: $(READY)
	$(IN_MEMORY) $(BIN)/python -m pytest $(SPREAD) --cov $(PYTEST_ARGS)

soak: $(READY)
	$(BIN)/python -m pytest -m soak -o timeout=7200 $(PYTEST_ARGS)

rabbitmq: $(READY)
	$(BIN)/python -c 'from onefold.testing.servers import install_rabbitmq; install_rabbitmq()'

prometheus: $(READY)
	$(BIN)/python -m tests.support.prometheus_server

pgbouncer: $(READY)
	$(BIN)/python -c 'from tests.support.debian_packages import install_package; install_package("pgbouncer")'

chromium: $(READY)
	$(BIN)/python -m tests.support.chromium

restate: $(READY)
	$(BIN)/python -c 'from onefold.testing.servers import install_restate; install_restate()'

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
	@# Beside what it asks for: see pyproject.toml.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps arq
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
