"""What the shop promises, run in the transaction of each test."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from django.core import mail
from django.test import TestCase
from django.utils import timezone
from orders.bank import our_bank
from orders.models import Order, Sales
from orders.shop import place
from orders.tasks import nightly_report, report, take_payment

from django_emq.testing import EmqMixin


class ShopCase(EmqMixin, TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(TemporaryDirectory())
        self.enterContext(self.settings(SHOP_DIR=Path(folder)))  # with a bank of its own

    def place(self):
        """Place an order, and commit it."""
        with self.emq.commits():
            return place(Order(email="ada@example.org", article="tea", cents=500))


class OrderTests(ShopCase):
    def test_an_order_is_paid_and_invoiced(self):
        order = self.place()
        job = self.emq.assert_enqueued(take_payment, args=[order.pk], count=1)
        self.assertEqual(job.id, order.job)
        self.emq.run_until_empty()
        order.refresh_from_db()
        self.assertEqual(order.payment, "PAY-1")
        self.assertIsNotNone(order.invoiced_at)
        self.assertEqual([mail.to for mail in mail.outbox], [["ada@example.org"]])

    def test_an_order_that_is_rolled_back_leaves_no_job(self):
        with patch.object(Order, "save", side_effect=[None, ValueError]):
            self.assertRaises(ValueError, self.place)
        self.assertEqual(self.emq.waiting(), [])

    def test_the_bank_is_away(self):
        self.place()
        our_bank().away.touch()
        (run,) = self.emq.run_until_empty(raises=False)
        self.assertEqual((run.verb, str(run.error)), ("retry", "503 Service Unavailable"))
        self.assertEqual(len(mail.outbox), 0)
        our_bank().away.unlink()
        self.emq.run_until_empty(scheduled=True)
        self.assertEqual(Order.objects.get().payment, "PAY-1")
        self.assertEqual(len(mail.outbox), 1)


class CrashTests(ShopCase):
    def test_an_order_is_paid_once_whatever_happens(self):
        charges = []

        def check():
            charges.append(500)  # one more for each order that was tried
            self.assertEqual(our_bank().charges(), charges)
            order = Order.objects.get()
            self.assertEqual(order.payment, f"PAY-{len(charges)}")
            self.assertIsNotNone(order.invoiced_at)

        tried = self.emq.explore(self.place, check)
        self.assertGreater(len(tried), 15)


class ReportTests(ShopCase):
    def test_the_nightly_report_is_about_the_day_before(self):
        with self.emq.commits():
            nightly_report.enqueue()
        self.emq.run_until_empty()
        yesterday = timezone.localdate() - timedelta(days=1)
        self.assertEqual(Sales.objects.values_list("day", "orders").get(), (yesterday, 0))

    def test_a_slow_report_does_not_write_over_a_newer_one(self):
        self.place()
        self.emq.run_until_empty()
        today = timezone.localdate()
        get_or_create = Sales.objects.get_or_create

        def slow(**values):
            """Meanwhile, in the first report: another order, and a report with it."""
            if Order.objects.count() == 1:
                self.place()
                with self.emq.commits():
                    report(today)
                self.emq.run_until_empty()
            return get_or_create(**values)

        with self.emq.commits():
            report(today)
        with patch.object(Sales.objects, "get_or_create", slow):
            runs = self.emq.run_until_empty(scheduled=True, raises=False)
        self.assertEqual([(run.verb, run.token) for run in runs], [("retry", 1), ("complete", 2)])
        self.assertEqual(Sales.objects.values_list("orders", "cents").get(), (2, 1000))
