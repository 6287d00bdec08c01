"""Pictures of every page for the docs: `make screenshots`."""

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tests.browser.pages import pages_of
from tests.browser.scene import play

TARGET = Path(os.environ.get("SCREENSHOTS", "docs/screenshots"))
LOOKS = {
    "light": ({"width": 1280, "height": 800}, "light"),
    "dark": ({"width": 1280, "height": 800}, "dark"),
    "narrow": ({"width": 390, "height": 844}, "light"),
}

pytestmark = pytest.mark.django_db(transaction=True)


def test_pictures(page, client):
    hero = play(client)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, visit in pages_of(hero).items():
        for look, (size, scheme) in LOOKS.items():
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            visit(page)
            picture = page.screenshot(full_page=True)
            save(picture, TARGET / f"{name}-{look}.png")


def save(picture, path):
    """A picture of a page has few colours: a palette makes it a third as large."""
    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
