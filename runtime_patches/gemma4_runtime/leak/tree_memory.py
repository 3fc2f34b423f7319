"""What nodes of the prefix cache held at the audit before: a node keeps its pages, in their order, while it lives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class TreeMemory:
    """Remembers each node's pages from one audit to the next.

    A node that lost its sliding window takes the pages of whoever computes its tokens again, so only nodes that have
    theirs at both audits are compared; one that was split is another node, or a shorter one.
    """

    def __init__(self) -> None:
        # The node itself, not its id alone: an id is given again once its node is gone.
        self._before: dict[int, tuple[Any, np.ndarray]] = {}

    def moved(self, nodes: Iterable[tuple[Any, np.ndarray]]) -> np.ndarray:
        """Return the pages that stand in a node where another one stood, and stood in the cache before: int64 [pages].

        Args:
            nodes: Each node that has its sliding window, and its pages in the order of its tokens.
        """
        now = {id(node): (node, pages) for node, pages in nodes}
        before, self._before = self._before, now
        changed = [
            pages[pages != before[key][1]]
            for key, (node, pages) in now.items()
            if key in before and before[key][0] is node and before[key][1].size == pages.size
        ]
        strange = np.unique(np.concatenate([np.empty(0, np.int64), *changed]))
        known = np.concatenate([np.empty(0, np.int64), *(pages for _, pages in before.values())])
        return strange[np.isin(strange, known)]
