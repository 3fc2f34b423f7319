"""What the tests of `collect` ask of its zip."""

import zipfile
from pathlib import Path


def opened(path: Path) -> dict[str, bytes]:
    """Return the files of a zip by their names."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
