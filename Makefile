# Every target does all of its own set-up: a fresh clone, make and Python 3.11 or newer are enough.

PYTHON ?= python3
# More arguments for what runs in the end: make test ARGS="-k lease", make demo ARGS="--json FILE"
ARGS ?=

BIN := .venv/bin
MANAGE := $(BIN)/python testproject/manage.py
WITH_SERVER := $(BIN)/python testproject/private_server.py --

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-matrix lint clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/ready-demo  ## run real work through the queue and kill a worker on the way
	@$(WITH_SERVER) $(MANAGE) demo $(ARGS)

define ADMIN
from django.contrib.auth.models import User
if not User.objects.filter(username="demo").exists():
    User.objects.create_superuser("demo", password="demo")
endef
export ADMIN

serve: .venv/ready-demo  ## show the demo's data in the Django admin
	@$(MANAGE) migrate -v 0
	@$(MANAGE) shell -v 0 -c "$$ADMIN"
	@echo "http://127.0.0.1:8000/admin/ (user demo, password demo)"
	@$(WITH_SERVER) $(MANAGE) runserver $(ARGS)

test: .venv/ready-test  ## run the suite on Valkey, and the conformance suite on Redis too
	@tests/run.sh $(ARGS)

test-matrix:  ## run the suite on each Python that is here, with its Django
	@tests/matrix.sh $(ARGS)

lint: .venv/ready-lint  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove all that these targets made
	rm -rf .venv .venv-* build dist *.egg-info .coverage .coverage.* testproject/db.sqlite3*
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip comes last into a new environment: where it is, the rest is.
.venv/bin/pip:
	@tests/setup.sh venv $(PYTHON)
	$(PYTHON) -m venv .venv

.venv/ready-%: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet --editable '.[$*]'
	@touch $@
