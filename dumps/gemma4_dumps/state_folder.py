"""Where this user's dumps and runs are kept unless told otherwise."""

import os
import sys
from pathlib import Path


def state_folder() -> Path:
    """Return our folder below the user's state directory: XDG_STATE_HOME, or what stands for it where that is unset."""
    below = "~/Library/Application Support" if sys.platform == "darwin" else "~/.local/state"
    # Unset and blank mean the same.
    home = os.environ.get("XDG_STATE_HOME", "").strip() or os.path.expanduser(below)
    return Path(home) / "gemma4-triage"
