"""Accounts, and a queue with jobs in every set.

Django is set up after this module is imported, so what needs it is imported in the fixtures.
"""

from collections.abc import Callable

import pytest


@pytest.fixture
def account(db) -> Callable[..., object]:
    """A browser in which somebody with these permissions is signed in."""

    from django.contrib.auth.models import Permission, User
    from django.test import Client as Browser

    def make(*permissions: str, name: str = "anna", staff: bool = True):
        user = User.objects.create_user(name, password="pw", is_staff=staff)
        found = Permission.objects.filter(
            content_type__app_label="django_emq", codename__in=permissions
        )
        assert len(found) == len(permissions)
        user.user_permissions.set(found)
        browser = Browser()
        browser.force_login(user)
        return browser

    return make


@pytest.fixture
def operator(account):
    """Anna, who may do everything."""
    from tests.admin.yard import ACTS, VIEWS

    return account(*VIEWS, *ACTS)


@pytest.fixture
def yard(client, queue):
    """3 pending, 1 active, 2 scheduled, 4 dead, 1 done."""
    from tests.admin.yard import make_yard

    return make_yard(client, queue)
