"""Wheels are built in a folder of their own: setuptools packs whatever an earlier build left in build/.

They carry the records of known issues as one archive, since a hundred small files take a block of a disk each.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import setup
from setuptools.command.build_py import build_py


class PackRecords(build_py):
    """Copies the packages, and packs the records in the copy; an editable install has the files themselves."""

    def run(self) -> None:
        """Copy, then pack."""
        super().run()
        folder = Path(self.build_lib) / "gemma4_triage" / "known_issues" / "records"
        if folder.is_dir() and not self.editable_mode:
            shutil.make_archive(str(folder), "zip", folder)
            shutil.rmtree(folder)


with TemporaryDirectory() as fresh:
    setup(options={"build": {"build_base": fresh}}, cmdclass={"build_py": PackRecords})
