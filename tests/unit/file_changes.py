"""Changes to the files of a dump: damage, and alterations that its manifest vouches for."""

import json
from hashlib import sha256
from pathlib import Path


def flip(file: Path, at: int = -1) -> None:
    """Flip the lowest bit of a byte, the last one unless told."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def renew_hashes(folder: Path) -> None:
    """Write the sizes and SHA-256 of the dump's files into its manifest anew."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, record in manifest["files"].items():
        data = (folder / name).read_bytes()
        record |= {"sha256": sha256(data).hexdigest(), "size_bytes": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
