"""Wheels are built in a folder of their own: setuptools packs whatever an earlier build left in build/.

They carry the records of known issues as one file, since a hundred small ones take a block of a disk each, and as
JSON, which is sooner read than TOML; the public incidents, the table of SGLang's arguments and the constraints packed;
and other JSON without spaces. Files that only say what a package is for are left out of them too: each takes a block,
and what is compiled of it another.
"""

import ast
import gzip
import json
import shutil
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup
from setuptools.command.build_py import build_py


class PackRecords(build_py):
    """Copies the packages, and packs data in the copy; an editable install has the files themselves."""

    def run(self) -> None:
        """Copy, then pack."""
        super().run()
        package = Path(self.build_lib) / "gemma4_triage"
        folder, table = package / "known_issues" / "records", package / "diagnose" / "sglang_arguments.json"
        if folder.is_dir() and not self.editable_mode:
            files = sorted(folder.rglob("*.toml"))
            said = {str(file.relative_to(folder)): tomllib.loads(file.read_text(encoding="utf-8")) for file in files}
            packed = gzip.compress(json.dumps(said, ensure_ascii=False).encode(), mtime=0)
            folder.with_suffix(".json.gz").write_bytes(packed)
            shutil.rmtree(folder)
            incidents = package / "known_issues" / "incidents.json"
            incidents.with_suffix(".json.gz").write_bytes(gzip.compress(incidents.read_bytes(), mtime=0))
            incidents.unlink()
            table.with_suffix(".json.gz").write_bytes(gzip.compress(table.read_bytes(), mtime=0))
            table.unlink()
            for lock in Path().glob("constraints*.txt"):
                packed = gzip.compress(lock.read_bytes(), mtime=0)
                (package / "cli" / f"{lock.name}.gz").write_bytes(packed)
            for published in Path(self.build_lib).rglob("*.json"):
                read = json.loads(published.read_text(encoding="utf-8"))
                published.write_text(json.dumps(read, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
            for said_alone in Path(self.build_lib).glob("*/**/__init__.py"):
                outermost = said_alone.parent.parent == Path(self.build_lib)
                # Python takes a folder within a package for one without it, too.
                if not outermost and all(isinstance(one, ast.Expr) for one in ast.parse(said_alone.read_bytes()).body):
                    said_alone.unlink()


with TemporaryDirectory() as fresh:
    setup(options={"build": {"build_base": fresh}}, cmdclass={"build_py": PackRecords})
