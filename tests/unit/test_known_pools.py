"""A start whose pools no probe can follow is refused by name."""

from types import SimpleNamespace

import pytest

from gemma4_runtime.errors import SettingsError
from gemma4_runtime.probes import known_pools

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.mark.parametrize("arguments", [{}, {"enable_unified_memory": False}])
def test_other_starts_are_taken(arguments, monkeypatch):
    monkeypatch.setattr(known_pools, "settled", lambda one: one)
    known_pools.refuse_others(SimpleNamespace(**arguments))


def test_one_memory_of_both_pools_is_refused(monkeypatch):
    monkeypatch.setattr(known_pools, "settled", lambda one: one)
    with pytest.raises(SettingsError, match="--enable-unified-memory"):
        known_pools.refuse_others(SimpleNamespace(enable_unified_memory=True))
