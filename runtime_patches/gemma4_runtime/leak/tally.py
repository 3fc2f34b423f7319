"""How much was audited: a small JSON file per process, so that silence can be told from not having looked."""

from __future__ import annotations

import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

SCHEMA_VERSION = "1.0"
FOLDER = "audits"

logger = logging.getLogger(__name__)


def write_tally(root: Path, tally: dict[str, Any]) -> None:
    """Replace `<root>/audits/<host>_p<pid>.json` (0600 in a 0700 folder). A disk that refuses it is only logged."""
    folder = root / FOLDER
    path = folder / f"{socket.gethostname()}_p{os.getpid()}.json"
    temporary = path.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"schema_version": SCHEMA_VERSION, "pid": os.getpid()} | tally, file, indent=1)
        temporary.rename(path)
    except OSError as error:
        logger.error("gemma4-triage: the audit's tally could not be written: %s", error)
