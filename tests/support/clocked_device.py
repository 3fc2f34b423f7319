"""A device made up of a clock: graphs take the time that a test gives them, so that what times them can be tested."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch


class ClockedDevice:
    """What stands in for torch.cuda in this process. now_us: its clock. lost: whether it answers with errors alone."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.lost = False
        self.capturing: Graph | None = None

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    @contextmanager
    def graph(self, graph: Graph, stream: Any = None):
        self.capturing = graph
        yield
        self.capturing = None


class Graph:
    """A graph whose replay takes `takes_us`, or raises what it returns."""

    def __init__(self, device: ClockedDevice, name: str, takes_us: Callable[[], float], replayed: list[str]) -> None:
        self.device, self.name, self.takes_us, self.replayed = device, name, takes_us, replayed

    def replay(self) -> None:
        self.replayed.append(self.name)
        self.device.now_us += self.takes_us()


class _Stream:
    def wait_stream(self, other: Any) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ClockedDevice:
    """Put a clocked device in the place of torch.cuda's streams, events and graphs."""
    found = ClockedDevice()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_us = found.now_us

        def synchronize(self) -> None:
            found.synchronize()

        def elapsed_time(self, end: Event) -> float:
            return (end.at_us - self.at_us) / 1000

    @contextmanager
    def stream(_: Any):
        yield

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(found, "captured", lambda: 80.0, []))
    monkeypatch.setattr(torch.cuda, "graph", found.graph)
    return found
