"""The examples of docs/testing.md are tests that pass."""

import inspect
import sys
import types
import unittest

import pytest
from django.db import transaction

from django_emq import schedules
from django_emq.testing import Sandbox
from tests.probe import effects as tasks
from tests.probe import telling
from tests.probe.models import Payment
from tests.probe.tasks import mark
from tests.processes import ROOT
from tests.test_docs import Block, blocks, names, place, section

pytestmark = pytest.mark.django_db
PAGE = ROOT / "docs" / "testing.md"


def place_order(number, amount):
    """Pay when it is committed, once."""
    if not Payment.objects.filter(order_id=-number).exists():
        Payment.objects.create(order_id=-number, amount=amount)
        transaction.on_commit(lambda: tasks.pay.enqueue(number, amount=amount))


@pytest.fixture
def shop(monkeypatch):
    for name, values in {
        "shop": {},
        "shop.models": {"Payment": Payment},
        "shop.orders": {"place_order": place_order},
        "shop.tasks": {"pay": tasks.pay, "report": telling.report},
    }.items():
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**values))
    monkeypatch.setattr(schedules, "_decorated", {})
    schedules.cron("0 6 * * *", tz="Europe/Berlin", name="digest", args=[1])(mark)


@pytest.mark.parametrize("block", [b for b in blocks(PAGE) if b.language == "python"], ids=place)
def test_an_example_passes(block: Block, shop, request):
    """As pytest and unittest would run it."""
    module = types.ModuleType("docs_testing")
    exec(compile(block.text, place(block), "exec"), module.__dict__)
    ran = 0
    for name, value in list(vars(module).items()):
        if name.startswith("test_"):
            fixtures = inspect.signature(value).parameters
            value(**{fixture: request.getfixturevalue(fixture) for fixture in fixtures})
            ran += 1
        elif name.endswith("Tests"):
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(value).run(result)
            assert (result.errors, result.failures) == ([], [])
            ran += result.testsRun
    assert ran == 1


def test_all_that_a_sandbox_can_do_is_there():
    """Each public member, with its parameters."""
    text = section(PAGE, "What a sandbox can do")
    public = {name for name in vars(Sandbox) if not name.startswith("_")} | {"prefix"}
    assert {listed.partition("(")[0] for listed in names(text)} == public
    for name in public - {"prefix"}:
        for parameter in inspect.signature(getattr(Sandbox, name)).parameters:
            assert parameter == "self" or parameter in text, f"{name}: {parameter}"
