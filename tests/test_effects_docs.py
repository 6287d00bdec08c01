"""The examples of docs/effects.md do what the page says."""

import subprocess
import sys
import types

import pytest
from django.test.utils import isolate_apps

import django_emq as emq
from django_emq import registry
from django_emq.signals import lease_lost
from tests.probe import models
from tests.processes import ROOT
from tests.test_docs import blocks
from tests.test_effects import in_job

pytestmark = pytest.mark.django_db

BLOCKS = [block.text for block in blocks(ROOT / "docs" / "effects.md")]


@pytest.fixture
def example(monkeypatch):
    """Runs the one block that contains a text, beside an app `shop`; its namespace."""
    bank = types.SimpleNamespace(keys=[])

    def charge(amount, *, idempotency_key):
        bank.keys.append(idempotency_key)
        return {"id": f"ch_{len(set(bank.keys))}"}

    bank.charge = charge
    shop_models = types.SimpleNamespace(
        Payment=models.Payment, Invoice=models.Invoice, lines_of=lambda pk: [3, 4]
    )
    shop = types.SimpleNamespace(bank=bank, models=shop_models)
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.models", shop_models)
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    def run(text):
        (block,) = (block for block in BLOCKS if text in block)
        module = types.ModuleType("tests.probe.example")
        with isolate_apps("tests.probe"):
            exec(compile(block, text, "exec"), module.__dict__)
        return types.SimpleNamespace(**module.__dict__, bank_keys=bank.keys)

    return run


def test_a_payment_is_booked_once(example, capsys):
    book = example("def book(").book
    for token in (1, 2):
        in_job(lambda: book(7, 100), token=token)
    pk = models.Payment.objects.get(order_id=7, amount=100).pk
    assert capsys.readouterr().out == f"payment {pk}\n" * 2


def test_a_service_is_given_the_same_key(example, monkeypatch):
    """It answered, and the process was killed before the COMMIT."""
    shop = example("def charge(")

    def killed(**kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(models.Payment.objects, "create", killed)
        with pytest.raises(KeyboardInterrupt):
            in_job(lambda: shop.charge(7, 100))
    for token in (2, 3):
        in_job(lambda: shop.charge(7, 100), token=token)
    assert shop.bank_keys == ["JOBa:charge"] * 2
    assert models.Payment.objects.get().reference == "ch_1"


def test_a_late_run_does_not_write_over_a_newer_one(example):
    """The model and the task of the page."""
    names = {field.name for field in example("class Invoice").Invoice._meta.get_fields()}
    assert {"total", "fence"} <= names
    shop = example("def add_up(")
    pk = models.Invoice.objects.create(number="a").pk
    in_job(lambda: shop.add_up(pk), fence=8)
    with pytest.raises(emq.StaleToken):
        in_job(lambda: shop.add_up(pk), fence=7)
    assert models.Invoice.objects.values_list("total", "fence").get() == (7, 8)
    assert shop.lines_changed(pk).status == "enqueued"


def test_a_long_task_stops(example, monkeypatch):
    """And so does the program that it has started."""
    render = example("def render(").render
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, command):
            emq.current_job().lose()
            started.append(command)
            super().__init__(["sleep", "60"])

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(emq.LeaseLost):
        in_job(lambda: render(["one", "two"]))
    assert started == [["true", "one"]]


def test_all_are_told_by_a_signal(example, capsys):
    receiver = example("def tell(").tell
    try:
        lease_lost.send(sender=emq.JobContext, job="job JOBa")
    finally:
        lease_lost.disconnect(receiver)
    assert capsys.readouterr().out == "job JOBa lost its lease\n"
