"""Multiple-choice questions from a local copy of MMLU, in each form in which it is published.

| form                                             | subject from     | a row                                   |
|--------------------------------------------------|------------------|-----------------------------------------|
| `<subject>_test.csv`, `<subject>_dev.csv`        | the file's name  | question, A, B, C, D, letter; no header |
| a folder of these, or `data.tar` that holds them | the files' names | the same                                |
| rows of Hugging Face's `cais/mmlu` as JSON lines | `subject`        | `question`, four `choices`, `answer`: 0-3|
| the same as Parquet                              | `subject`        | the same                                |
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, Field, Strict, ValidationError

from gemma4_dumps.errors import ExitCode
from gemma4_repro.errors import EnvironmentLacks, ReproError

LETTERS = "ABCD"
_FORMS = "a folder of <subject>_{split}.csv files, data.tar, or one .csv, .jsonl or .parquet file"
_MAX_BYTES = 256 * 1024**2
"""All of MMLU's test questions are 7 MB."""


class QuestionsUnreadable(ReproError):
    """The file of questions is missing, is no such file, or holds a row that is no question."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Question:
    """One question with four choices. `id` is its file and row, `subject` may be empty, `answer` is a letter."""

    id: str
    subject: str
    text: str
    choices: tuple[str, ...]
    answer: str


def read_questions(path: Path, split: str) -> tuple[Question, ...]:
    """Return all questions of a file or folder, in a fixed order.

    Args:
        path: One of the forms in the table above.
        split: Which files of a folder or an archive are read: "test", or "dev" for worked examples.

    Raises:
        QuestionsUnreadable: It is not there, not of one of the forms, or one of its rows is no question.
        EnvironmentLacks: It is a Parquet file, and nothing that reads one is installed.
    """
    path = path.expanduser()
    try:
        questions = tuple(_read(path, split))
    except OSError as error:
        raise QuestionsUnreadable(f"{path} cannot be read: {error.strerror or error}", "name another file") from error
    if not questions:
        raise QuestionsUnreadable(f"{path} holds no questions", f"expected: {_FORMS.format(split=split)}")
    return questions


def draw(questions: Sequence[Question], limit: int, seed: int) -> tuple[Question, ...]:
    """Return `limit` of the questions by a simple random draw, in the order in which they came; all if fewer."""
    if limit >= len(questions):
        return tuple(questions)
    return tuple(questions[index] for index in sorted(random.Random(seed).sample(range(len(questions)), limit)))


def fingerprint(questions: Sequence[Question]) -> str:
    """Return the SHA-256 of the questions as they were read, whatever form of file they came from."""
    rows = [list(asdict(question).values())[1:] for question in questions]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _read(path: Path, split: str) -> Iterator[Question]:
    if os.path.isdir(path):
        files = sorted(file for file in path.rglob(f"*_{split}.csv") if not file.name.startswith("."))
        for file in files:
            yield from _of_csv(_bytes(file), str(file.relative_to(path)))
        return
    suffix = path.suffix.lower()
    if suffix not in (*_READERS, ".tar") and os.path.exists(path):
        raise QuestionsUnreadable(f"{path} is no file of questions", f"expected: {_FORMS.format(split=split)}")
    if suffix == ".tar":
        yield from _of_archive(path, split)
    else:
        yield from _READERS.get(suffix, _of_csv)(_bytes(path), path.name)


def _bytes(path: Path) -> bytes:
    _refuse_pipe(path)
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise QuestionsUnreadable(f"{path} has {size} bytes; MMLU has 7 MB", "name the file of the test questions")
    return path.read_bytes()


def _refuse_pipe(path: Path) -> None:
    # One that nobody writes to would be waited for without end.
    if os.path.exists(path) and not os.path.isfile(path):
        raise QuestionsUnreadable(f"{path} is no regular file", "name a file or a folder of questions")


def _text(data: bytes, name: str) -> str:
    try:
        # Spreadsheets put a byte order mark in front.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise QuestionsUnreadable(f"{name} is not UTF-8 text: byte {error.start} cannot be decoded", _CSV) from error
    if "\0" in text:
        raise QuestionsUnreadable(f"{name} holds NUL characters: it is no text", _CSV)
    return text


_CSV = "expected: rows of question, A, B, C, D, letter, without a header, or JSON lines with question, choices, answer"


def _of_csv(data: bytes, name: str) -> Iterator[Question]:
    subject = PurePosixPath(name).stem
    for split in ("_test", "_dev", "_val"):
        if subject.endswith(split):
            subject = subject.removesuffix(split)
            break
    else:
        # The name says nothing of a subject.
        subject = ""
    rows = csv.reader(io.StringIO(_text(data, name), newline=""), strict=True)
    number = 0
    while True:
        number += 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise QuestionsUnreadable(f"{name}, row {number}: {error}", _CSV) from error
        if row is None:
            return
        if not row:
            continue
        where = f"{name}, row {number}"
        if len(row) != 6:
            raise QuestionsUnreadable(f"{where}: {len(row)} columns, expected 6", _CSV)
        text, *choices, answer = row
        answer = answer.strip()
        if len(answer) != 1 or answer not in LETTERS:
            raise QuestionsUnreadable(f"{where}: the answer {answer[:40]!r} is no letter from A to D", _CSV)
        yield _question(f"{name}:{number}", subject, text, choices, answer, where)


def _question(id: str, subject: str, text: str, choices: Sequence[str], answer: str, where: str) -> Question:
    if not text.strip() or not any(choice.strip() for choice in choices):
        raise QuestionsUnreadable(f"{where}: the question or all of its choices are empty", _CSV)
    return Question(id, subject, text, tuple(choices), answer)


class _Row(BaseModel):
    """A row of `cais/mmlu`; what else it has is passed over."""

    question: str
    choices: Annotated[list[str], Field(min_length=4, max_length=4)]
    answer: Annotated[int, Strict(), Field(ge=0, le=3)]
    subject: str = ""


def _of_json_lines(data: bytes, name: str) -> Iterator[Question]:
    # Only "\n" ends a line of JSON: splitlines() would cut at separators that a question may hold.
    for number, line in enumerate(_text(data, name).split("\n"), 1):
        if line.strip():
            yield _of_row(lambda line=line: _Row.model_validate_json(line), name, number)


def _of_row(read: Callable[[], _Row], name: str, number: int) -> Question:
    where = f"{name}, row {number}"
    try:
        row = read()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise QuestionsUnreadable(f"{where}: {place + ': ' if place else ''}{first['msg']}", _CSV) from error
    return _question(f"{name}:{number}", row.subject, row.question, row.choices, LETTERS[row.answer], where)


def _of_parquet(data: bytes, name: str) -> Iterator[Question]:
    try:
        # Comes with SGLang; the base install does without.
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise EnvironmentLacks(
            f"{name} is Parquet, and pyarrow, which reads it, is not installed", "pip install pyarrow, or give CSV"
        ) from None
    try:
        rows = parquet.read_table(io.BytesIO(data)).to_pylist()
    except (ArrowException, OSError) as error:
        raise QuestionsUnreadable(f"{name} is no Parquet file: {error}".splitlines()[0], _CSV) from error
    for number, row in enumerate(rows, 1):
        yield _of_row(lambda row=row: _Row.model_validate(row), name, number)


def _of_archive(path: Path, split: str) -> Iterator[Question]:
    _refuse_pipe(path)
    try:
        with tarfile.open(path) as archive:
            # An archive made on a Mac has a file `._NAME` beside each one.
            members = [
                member
                for member in archive
                if member.isfile()
                and member.name.endswith(f"_{split}.csv")
                and not PurePosixPath(member.name).name.startswith(".")
            ]
            for member in sorted(members, key=lambda member: member.name):
                if member.size > _MAX_BYTES or (file := archive.extractfile(member)) is None:
                    raise QuestionsUnreadable(f"{path}: {member.name} cannot be read", "unpack it, and name the folder")
                yield from _of_csv(file.read(), member.name)
    except (tarfile.TarError, EOFError) as error:
        raise QuestionsUnreadable(
            f"{path} is no tar archive: {error}".splitlines()[0], "name data.tar as it was published"
        ) from error


_READERS: dict[str, Callable[[bytes, str], Iterator[Question]]] = {
    ".csv": _of_csv,
    ".jsonl": _of_json_lines,
    ".json": _of_json_lines,
    ".parquet": _of_parquet,
}
