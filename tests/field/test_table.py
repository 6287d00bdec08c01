"""The table of field reports is that of the tests."""

import re

from tests.processes import ROOT

TEST = re.compile(r"^(?:async )?def (test_(B\d+)_\w+)\(", re.MULTILINE)
ROW = re.compile(r"^\| (B\d+) \| [^|]+ \| [^|]+ \| \[`(\w+)`\]\(\.\./(\S+)\) \|$", re.MULTILINE)


def test_each_report_has_one_test_and_one_row():
    """Named by its id, once each, at the place that the table names, and in order."""
    page = (ROOT / "docs" / "field-reports.md").read_text()
    table = ROW.findall(page)
    assert len(table) == page.count("\n| B")
    found = [
        (report, name, str(path.relative_to(ROOT)))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, report in TEST.findall(path.read_text())
    ]
    ids = [report for report, _, _ in found]
    assert sorted(ids) == sorted(set(ids)), "a report with two tests"
    assert sorted(table) == sorted(found)
    numbers = [int(report[1:]) for report, _, _ in table]
    assert numbers == sorted(numbers)
