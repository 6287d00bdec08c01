"""The shop has an outbox, and a bank of its own for each test."""

import pytest


@pytest.fixture(autouse=True)
def shop(settings, tmp_path, monkeypatch):
    """The shop's settings for this process, and its folder for workers too; the folder."""
    settings.EMQ = {**settings.EMQ, "OUTBOX": True}
    settings.SHOP_DIR = tmp_path / "shop"
    monkeypatch.setenv("SHOP_DIR", str(settings.SHOP_DIR))
    return settings.SHOP_DIR
