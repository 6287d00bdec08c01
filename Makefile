# Every target does all of its own set-up: a fresh clone, make and Python 3.11 or newer are enough.

PYTHON ?= python3
# More arguments for what runs in the end: make test ARGS="-k lease", make demo ARGS="--json FILE"
ARGS ?=

BIN := .venv/bin
MANAGE := $(BIN)/python testproject/manage.py
WITH_SERVER := $(BIN)/python testproject/private_server.py
# What the queue's server held at the end of the demo, as db.sqlite3 is what Django's database held.
KEPT := testproject/db.rdb

.DEFAULT_GOAL := help
.PHONY: help demo serve test test-servers test-matrix proof chaos lint messages screenshots clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/ready-demo  ## run real work through the queue and kill a worker on the way
	@rm -f $(KEPT)
	@$(WITH_SERVER) --keep $(KEPT) -- $(MANAGE) demo $(ARGS)

serve: .venv/ready-demo  ## show the demo's data and a small shop in the Django admin
	@$(WITH_SERVER) --keep $(KEPT) -- env DJANGO_SETTINGS_MODULE=orders.settings $(MANAGE) serve $(ARGS)

test: .venv/ready-test  ## run the suite on Valkey, and the conformance suite on Redis too
	@tests/run.sh $(ARGS)

test-servers: .venv/ready-test  ## run what depends on the server on each one that is here (SERVERS=...)
	@tests/servers.sh $(ARGS)

test-matrix:  ## run the suite on each Python that is here, with its Django
	@tests/matrix.sh $(ARGS)

proof: .venv/ready-test  ## walk the model far, plant defects into the scripts; fills docs/proof.md
	$(BIN)/pytest -q -p no:randomly tests/model/proof.py $(ARGS)

chaos: .venv/ready-demo  ## run the queue for two minutes under every fault that can be made
	@$(MANAGE) chaos $(ARGS)

lint: .venv/ready-lint  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.check_mistyped

messages: .venv/ready-test  ## gather the strings to translate and compile the catalogues (needs gettext)
	cd django_emq && ../$(BIN)/django-admin makemessages -l de -l fr --add-location file --no-wrap
	cd django_emq && ../$(BIN)/django-admin compilemessages

screenshots: .venv/ready-screenshots  ## take the pictures of docs/admin.md again (needs chromium)
	@tests/setup.sh test >/dev/null
	$(BIN)/pytest -q tests/browser/screenshots.py

clean:  ## remove all that these targets made
	rm -rf .venv .venv-* build dist *.egg-info .coverage .coverage.* testproject/db.sqlite3* $(KEPT) testproject/shop
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip comes last into a new environment: where it is, the rest is.
.venv/bin/pip:
	@tests/setup.sh venv $(PYTHON)
	$(PYTHON) -m venv .venv

.venv/ready-%: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet --editable '.[$*]'
	@touch $@
