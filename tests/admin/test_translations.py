"""The catalogues: nothing is missing, nothing is stale, and they go with those of Django."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.utils import translation
from django.utils.translation.template import templatize

from django_emq import inspector
from tests.admin.yard import url
from tests.processes import ROOT

PACKAGE = ROOT / "django_emq"
MARKS = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}
LANGUAGES = sorted(path.name for path in (PACKAGE / "locale").iterdir())
each_language = pytest.mark.parametrize("language", LANGUAGES)
DJANGO = Path(django.__file__).parent


def calls(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """What is marked in a Python source: a text, or a text and its plural."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MARKS:
            found = [arg.value for arg in node.args[:2] if isinstance(arg, ast.Constant)]
            yield tuple(text for text in found if isinstance(text, str))


def marked() -> Iterator[tuple[str, ...]]:
    """All that is marked in the package; templates as Django turns them into Python."""
    for path in PACKAGE.rglob("*.py"):
        yield from calls(ast.parse(path.read_text()))
    for path in PACKAGE.rglob("*.html"):
        for call in re.findall(r"\b(?:_|n?gettext)\(.*?\)(?= |$)", templatize(path.read_text())):
            yield from calls(ast.parse(call.replace(",count)", ",1)")))


def entries(language: str, kind: str = "po") -> dict[str, list[str]]:
    """A catalogue: its texts, those with a plural by their singular, and what they become."""
    path = PACKAGE / "locale" / language / "LC_MESSAGES" / f"django.{kind}"
    found: dict[str, list[str]] = {}
    if kind == "mo":
        with path.open("rb") as file:
            catalog = gettext.GNUTranslations(file)._catalog
        for key, value in catalog.items():
            found.setdefault(key[0] if isinstance(key, tuple) else key, []).append(value)
        return found
    for block in path.read_text().split("\n\n"):
        parts = re.findall(r'^(msg\w+)(?:\[\d\])? ((?:".*"\n?)+)', block, re.MULTILINE)
        texts = [(name, "".join(map(ast.literal_eval, text.splitlines()))) for name, text in parts]
        if texts:
            found[texts[0][1]] = [text for name, text in texts if name == "msgstr"]
    return found


def test_what_is_marked_is_found() -> None:
    """The search below sees each way of marking: plain, plural, in Python and in templates."""
    found = set(marked())
    assert ("Requeue",) in found
    assert ("%(count)d job was requeued.", "%(count)d jobs were requeued.") in found
    assert ("by %(by)s",) in found
    assert ("%(counter)s dead job.", "%(counter)s dead jobs.") in found
    assert len(found) > 250


@each_language
def test_every_text_is_translated(language: str) -> None:
    """`make messages` gathers what is new; somebody must say it in the other languages."""
    texts = entries(language)
    missing = [text for text, *_ in marked() if not all(texts.get(text, [""]))]
    assert missing == []
    stale = set(texts) - {text for text, *_ in marked()} - {""}
    assert stale == set()
    path = PACKAGE / "locale" / language / "LC_MESSAGES" / "django.po"
    assert "fuzzy" not in path.read_text()


@each_language
def test_a_translation_has_the_same_gaps(language: str) -> None:
    """A name too many or too few would break the page."""

    def gaps(text: str) -> list[str]:
        return sorted(re.findall(r"%\(\w+\)[sd]|</?\w+>", text))

    for text, becomes in entries(language).items():
        if text:
            assert all(gaps(one) == gaps(text) for one in becomes), text


@each_language
def test_the_compiled_catalogue_is_that_of_the_source(language: str) -> None:
    """What is shipped is what was last edited."""
    source, compiled = entries(language), entries(language, "mo")
    for catalogue in (source, compiled):
        catalogue.pop("")
    assert compiled == source


@each_language
@pytest.mark.parametrize("app", ["conf", "contrib/admin", "contrib/auth"])
def test_what_django_says_too_is_said_as_django_says_it(language: str, app: str) -> None:
    """All catalogues of a project are one: ours must not change the words of other pages."""
    path = DJANGO / app / "locale" / language / "LC_MESSAGES" / "django.mo"
    with path.open("rb") as file:
        theirs = gettext.GNUTranslations(file)._catalog
    ours = entries(language)
    for text in ours.keys() & theirs.keys() - {""}:
        assert ours[text] == [theirs[text]], text


@pytest.mark.parametrize(
    ("language", "words"),
    [("de", ["Warteschlangen", "Wartend", "offen"]), ("fr", ["Files", "En attente", "ouverte"])],
)
def test_a_page_in_another_language(operator, yard, settings, language, words):
    """Headings, states and buttons; the figures are there all the same."""
    settings.LANGUAGE_CODE = language
    with translation.override(language):
        text = operator.get(url("queue_changelist")).content.decode()
    for word in words:
        assert word in text
    assert yard.queue in text


def test_why_in_another_language(client, yard):
    """The words of `emq_why` and of a job's page."""
    with translation.override("de"):
        why = inspector.why(client, yard.queue, yard.dead[0])
    assert why.reasons[-1] == "Er läuft nur wieder, wenn jemand ihn neu einreiht."
