"""The shop in the admin, where an order is placed within a request."""

import pytest
from orders.models import Order
from orders.tasks import add_up, take_payment

pytestmark = pytest.mark.django_db
FORM = {"email": "ada@example.org", "article": "tea", "cents": "500"}


def test_an_order_is_placed(admin_client, emq):
    """Adding one enqueues its job, and the list leads to the job's page."""
    with emq.commits():
        assert admin_client.post("/admin/orders/order/add/", FORM).status_code == 302
    order = Order.objects.get()
    emq.assert_enqueued(take_payment, args=[order.pk], count=1)
    page = admin_client.get("/admin/orders/order/").content.decode()
    assert "5.00 €" in page
    link = f"/admin/django_emq/queue/orders/job/{order.job}/"
    assert f'href="{link}"' in page
    assert admin_client.get(link).status_code == 200


def test_a_day_is_added_up(admin_client, emq):
    """By an action on orders, once for each day."""
    with emq.commits():
        admin_client.post("/admin/orders/order/add/", FORM)
        admin_client.post("/admin/orders/order/add/", FORM)
    emq.run_until_empty()
    chosen = list(Order.objects.values_list("pk", flat=True))
    with emq.commits():
        answer = admin_client.post(
            "/admin/orders/order/",
            {"action": "add_up_the_days", "_selected_action": chosen},
            follow=True,
        )
    assert "1 report is on its way." in answer.content.decode()
    emq.assert_enqueued(add_up, count=1)
    emq.run_until_empty()
    page = admin_client.get("/admin/orders/sales/").content.decode()
    assert '<td class="field-orders">2</td><td class="field-price">10.00 €</td>' in page


def test_nothing_is_changed_by_hand(admin_client):
    """Orders and sales are only looked at."""
    for model in ("order", "sales"):
        assert admin_client.get(f"/admin/orders/{model}/").status_code == 200
    assert admin_client.get("/admin/orders/sales/add/").status_code == 403
