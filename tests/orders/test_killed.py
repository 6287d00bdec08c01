"""The shop with real workers on SQLite; one is killed between the payment and the booking."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection
from orders.bank import our_bank
from orders.models import Order, Sales
from orders.shop import place

from django_emq import inspector
from tests.conformance.wire import books_balance
from tests.processes import Worker, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SHOP = {"DJANGO_SETTINGS_MODULE": "orders.settings"}
WORK = ("orders", "mail", "--lease", "1", "--processes", "1")


def all_invoiced() -> bool:
    return not Order.objects.filter(invoiced_at=None).exists()


def mails(shop: Path) -> list[str]:
    """The subjects of all mails, one for each."""
    lines = [line for mail in (shop / "mails").iterdir() for line in mail.read_text().splitlines()]
    return sorted(line for line in lines if line.startswith("Subject:"))


def test_a_worker_is_killed_between_the_payment_and_the_booking(client, shop):
    """The bank has taken the money, the shop does not know: the next run learns it, by the key."""
    order = place(Order(email="ada@example.org", article="tea", cents=500))
    with connection.cursor() as cursor, Worker(*WORK, **SHOP) as worker:
        cursor.execute("BEGIN IMMEDIATE")  # so the booking waits
        wait_until(lambda: our_bank().charges() == [500])
        worker.kill_all()
        cursor.execute("ROLLBACK")
    order.refresh_from_db()
    assert order.payment == ""
    with Worker(*WORK, **SHOP) as worker:
        wait_until(all_invoiced)
        wait_until(lambda: inspector.totals(client, "mail").get("completed") == 1)
        worker.terminate()
        assert worker.wait() == 0, worker.output
    order.refresh_from_db()
    assert order.payment == "PAY-1"
    assert our_bank().charges() == [500]
    assert mails(shop) == [f"Subject: Invoice {order.pk}"]
    assert inspector.row(client, "orders", order.job)["attempts"] == "2"
    books_balance(client, "orders")


def shop_says(*args: str) -> str:
    out = StringIO()
    call_command("orders", *args, stdout=out)
    return out.getvalue()


def test_a_bank_that_is_away_for_a_while(client, shop):
    """From the command line: orders are placed, wait for the bank, and are added up at night."""
    our_bank().away.touch()
    assert shop_says("place", "2").count("job JOB") == 2
    with Worker("reports", *WORK, **SHOP) as worker:
        wait_until(lambda: inspector.totals(client, "orders").get("failed", 0) >= 2)
        told = shop_says("show")
        assert told.count("not paid, not invoiced; job ") == 2
        assert told.count(" after orders.bank.BankAway: 503 Service Unavailable\n") == 2
        our_bank().away.unlink()
        wait_until(all_invoiced)
        day = Order.objects.values_list("placed_at__date", flat=True)[0]
        assert shop_says("report", str(day)).startswith("job JOB")
        wait_until(lambda: inspector.totals(client, "reports").get("completed") == 1)
        wait_until(lambda: inspector.totals(client, "orders").get("completed") == 2)
        worker.terminate()
        assert worker.wait() == 0, worker.output
    assert sorted(our_bank().charges()) == [500, 501]
    assert shop_says("show").count(", invoiced; job done") == 2
    assert Sales.objects.values_list("day", "orders", "cents").get() == (day, 2, 1001)
