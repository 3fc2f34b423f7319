"""The catalog: the explicit tuple of every patch, a module per kind, two of optimisations.

Importing it needs neither torch nor sglang.
"""

from __future__ import annotations

from gemma4_runtime.catalog.faults import FAULTS
from gemma4_runtime.catalog.fixes import FIXES
from gemma4_runtime.catalog.host_leaves import HOST_LEAVES
from gemma4_runtime.catalog.layer_ops import LAYER_OPS
from gemma4_runtime.catalog.optimisations import OPTIMISATIONS
from gemma4_runtime.catalog.probes import PROBES
from gemma4_runtime.patch import Patch

CATALOG: tuple[Patch, ...] = (*HOST_LEAVES, *FAULTS, *FIXES, *LAYER_OPS, *OPTIMISATIONS, *PROBES)
