"""A pytest plugin that tells coverage which test runs, in this process and in those that the test starts.

`coverage run -m pytest -p contexts_of_tests`, with coverage's patch `subprocess`. A context is what pytest calls the
test and, in brackets, whether it is set up, called or torn down; lines that are reached while tests are collected have
an empty one.
"""

import base64
import json
import os

import coverage
import pytest

_VARIABLE = "COVERAGE_PROCESS_CONFIG"
"""What coverage gives to processes that are started: its settings, as JSON in base64."""


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
