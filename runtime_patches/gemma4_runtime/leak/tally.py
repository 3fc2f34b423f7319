"""How much was audited: a small JSON file per process, so that silence can be told from not having looked."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

from gemma4_runtime.whole_file import write_whole

SCHEMA_VERSION = "1.0"
FOLDER = "audits"

logger = logging.getLogger(__name__)

_refused: set[int] = set()
"""Processes whose tally was refused by the disk, and that have said so. A fork says it for itself."""


def write_tally(root: Path, tally: dict[str, Any]) -> None:
    """Replace `<root>/audits/<host>_p<pid>.json`. A disk that refuses it is only logged, once per process."""
    process = os.getpid()
    path = root / FOLDER / f"{socket.gethostname()}_p{process}.json"
    try:
        write_whole(path, json.dumps({"schema_version": SCHEMA_VERSION, "pid": process} | tally, indent=1))
    except OSError as error:
        if process not in _refused:
            _refused.add(process)
            logger.error("gemma4-triage: the audit's tally could not be written, now or later: %s", error)
