"""A pytest plugin that tells coverage which test runs, in this process and in those that the test starts.

`coverage run -m pytest -p contexts_of_tests`, with coverage's patch `subprocess`. A context is what pytest calls the
test and, in brackets, whether it is set up, called or torn down; lines that are reached while tests are collected have
an empty one. Tests that fail are written to the file that FAILED_TESTS names, one name a line.
"""

import base64
import json
import os

import coverage
import pytest

_VARIABLE = "COVERAGE_PROCESS_CONFIG"
"""What coverage gives to processes that are started: its settings, as JSON in base64."""
FAILED_TESTS = "FAILED_TESTS"
"""Variable of the environment: the file in which the names of failed tests are written."""


def _switch(item: pytest.Item, when: str) -> None:
    measured = coverage.Coverage.current()
    assert measured is not None, "pytest runs without coverage"
    context = f"{item.nodeid} ({when})"
    measured.switch_context(context)
    settings = json.loads(base64.b64decode(os.environ[_VARIABLE])) | {"context": context}
    os.environ[_VARIABLE] = base64.b64encode(json.dumps(settings).encode()).decode()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Name the test before its fixtures are made."""
    _switch(item, "setup")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Name the test before it is called."""
    _switch(item, "call")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Name the test before its fixtures end."""
    _switch(item, "teardown")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the test's name down if it failed."""
    if report.failed and (path := os.environ.get(FAILED_TESTS)):
        with open(path, "a") as file:
            file.write(f"{report.nodeid}\n")
