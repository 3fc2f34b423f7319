"""Where the toy checkpoints lie: in the source tree, or where an install put them."""

import sys
from pathlib import Path

TARGET_NAME = "toy-e4b"
ASSISTANT_NAME = "toy-e4b-assistant"
EXPERTS_NAME = "toy-26b"
EXPERTS_ASSISTANT_NAME = "toy-26b-assistant"

_SHARE = Path("share", "gemma4-triage", "toys")


def _candidates(name: str) -> list[Path]:
    package_parent = Path(__file__).resolve().parents[2]  # repro/ in the source tree, site-packages/ in an install
    # An install from a clone that runs in it finds the clone's own.
    here = Path("repro", "toys").absolute()
    return [
        package_parent / "toys" / name,
        here / name,
        Path(sys.prefix) / _SHARE / name,
        package_parent / _SHARE / name,
    ]


def toy_path(name: str) -> Path:
    """Return the folder of a toy checkpoint, such as `toy-e4b`, `toy-e4b-assistant`, `toy-26b` or `toy-26b-assistant`.

    Raises:
        FileNotFoundError: names every folder that was looked at.
    """
    candidates = _candidates(name)
    for folder in candidates:
        if (folder / "config.json").is_file():
            return folder
    looked = "\n  ".join(str(folder) for folder in candidates)
    raise FileNotFoundError(
        f"no toy checkpoint named {name!r}: none of these folders holds a config.json\n  {looked}\n"
        "in a clone: pip install ./repro/toys"
    )
