"""The rows of an unfinished draw: a line each, written as soon as a mutation is scored, so that a run can go on."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gemma4_repro.errors import OutputRefused
from gemma4_repro.mutations.grid import Server
from gemma4_repro.mutations.load import Probes
from gemma4_repro.mutations.score import Clean, Row
from gemma4_runtime.whole_file import write_whole

ROWS_NAME = "mutations.jsonl"


class _Line(BaseModel):
    """One line. The first one has the seed, SGLang's release and what looks at the engines."""

    model_config = ConfigDict(frozen=True)

    seed: int | None = None
    sglang_version: str = ""
    probes: Probes = Probes.TRAP
    clean: Clean | None = None
    row: Row | None = None


class RowsFile:
    """mutations.jsonl in a run's folder.

    Attributes:
        probes: What looked at the engines; None until a file is read or begun that says so.
        sglang_version: The release that was run.
        clean: The clean runs so far, by whether they had MTP and how else their server was started.
        rows: The rows so far, by their mutation's number.
    """

    def __init__(self, folder: Path, seed: int, probes: Probes | None = None) -> None:
        self._path = folder / ROWS_NAME
        self._seed = seed
        self.probes = probes
        self.sglang_version = ""
        self.clean: dict[tuple[bool, Server], Clean] = {}
        self.rows: dict[int, Row] = {}

    def read(self) -> None:
        """Read what an interrupted run left. A last line without its end is dropped.

        Raises:
            OutputRefused: there is no such file, it is of another seed or other probes, or a line of it is none.
        """
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            said = f"{self._path} cannot be read, and a run is resumed from it"
            raise OutputRefused(said, "name the --output of the run to resume, or leave --resume out") from error
        whole = [line for line in lines if line.endswith("\n")]
        for number, text in enumerate(whole, start=1):
            try:
                line = _Line.model_validate_json(text)
            except ValidationError as error:
                raise OutputRefused(
                    f"line {number} of {self._path} is no row", "start anew in another folder"
                ) from error
            self._take(line)
        # Otherwise it is left as it is: a page is drawn from such files while others read them.
        if len(whole) < len(lines):
            write_whole(self._path, "".join(whole))

    def _take(self, line: _Line) -> None:
        if line.seed is not None and line.seed != self._seed:
            said = f"{self._path} is of seed {line.seed}, not {self._seed}"
            raise OutputRefused(said, "resume a run with its own --seed, or name another --output")
        if line.seed is not None and self.probes not in (None, line.probes):
            said = f"{self._path} is of a run with --probes {line.probes}, not {self.probes}"
            raise OutputRefused(said, "resume a run with its own --probes, or name another --output")
        if line.seed is not None:
            self.probes = line.probes
        self.sglang_version = line.sglang_version or self.sglang_version
        if line.clean is not None:
            self.clean[line.clean.mtp, line.clean.server] = line.clean
        if line.row is not None:
            self.rows[line.row.mutation.number] = line.row

    def begin(self, sglang_version: str) -> None:
        """Begin anew."""
        self.sglang_version, self.probes = sglang_version, self.probes or Probes.TRAP
        self._path.write_text("", encoding="utf-8")
        self._append(_Line(seed=self._seed, sglang_version=sglang_version, probes=self.probes))

    def add_clean(self, clean: Clean) -> None:
        """Add a clean run."""
        self.clean[clean.mtp, clean.server] = clean
        self._append(_Line(clean=clean))

    def add(self, row: Row) -> None:
        """Add a scored mutation."""
        self.rows[row.mutation.number] = row
        self._append(_Line(row=row))

    def _append(self, line: _Line) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json(exclude_defaults=True) + "\n")
