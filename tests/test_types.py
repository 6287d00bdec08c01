"""The package is typed, and what `tests/typed.py` says of it also runs."""

from importlib import resources

from tests import typed


def test_the_package_says_that_it_is_typed():
    """PEP 561: a type checker reads the package only with this file in it."""
    assert resources.files("django_emq").joinpath("py.typed").is_file()


def test_what_the_type_checker_is_told_is_so():
    """`make lint` holds the types against the code; here the same lines are run."""
    typed.own_tasks()
