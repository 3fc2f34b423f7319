"""Files of questions as MMLU is published, and files that are none."""

import csv
import io
import json
import os
import tarfile

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_repro.quality.mmlu import prompt
from gemma4_repro.quality.questions import LETTERS, QuestionsUnreadable, draw, fingerprint, read_questions

ROWS = [
    ("What is 1 + 1?", ["1", "2", "3", "4"], "B"),
    ('Which is "quoted",\nand on two lines?', ["a, b", 'c "d"', "", "é"], "D"),
    ("Which separator\u2028is no line's end?", ["x", "y", "z", "w"], "A"),
]


def csv_text(rows):
    file = io.StringIO(newline="")
    csv.writer(file).writerows([text, *choices, answer] for text, choices, answer in rows)
    return file.getvalue()


def hugging_face(rows, subject="zoology"):
    return [
        {"question": text, "subject": subject, "choices": choices, "answer": LETTERS.index(answer)}
        for text, choices, answer in rows
    ]


def write(folder, form, rows=ROWS):
    text = csv_text(rows)
    if form == "csv":
        path = folder / "zoology_test.csv"
        path.write_text(text, newline="")
    elif form == "csv of a spreadsheet":
        path = folder / "zoology_test.csv"
        path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    elif form == "folder":
        path = folder / "data"
        (path / "test").mkdir(parents=True)
        (path / "dev").mkdir()
        (path / "test" / "zoology_test.csv").write_text(text, newline="")
        (path / "dev" / "zoology_dev.csv").write_text(csv_text(rows[:1]), newline="")
    elif form == "tar":
        path = folder / "data.tar"
        with tarfile.open(path, "w") as archive:
            members = {"data/test/zoology_test.csv": text.encode(), "data/test/._zoology_test.csv": b"\0\5\x16\7"}
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    elif form == "jsonl":
        path = folder / "test.jsonl"
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in hugging_face(rows)))
    else:
        path = folder / "test-00000-of-00001.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(hugging_face(rows)), path)
    return path


@pytest.mark.parametrize("form", ["csv", "csv of a spreadsheet", "folder", "tar", "jsonl", "parquet"])
def test_every_published_form_holds_the_same_questions(tmp_path, form):
    found = read_questions(write(tmp_path, form), "test")
    assert [(one.text, list(one.choices), one.answer, one.subject) for one in found] == [
        (*row, "zoology") for row in ROWS
    ]
    assert len({one.id for one in found}) == len(ROWS)
    assert fingerprint(found) == fingerprint(read_questions(write(tmp_path / ".", "jsonl"), "test"))


def test_examples_are_the_dev_rows_of_a_folder(tmp_path):
    assert [one.text for one in read_questions(write(tmp_path, "folder"), "dev")] == ["What is 1 + 1?"]


TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)


@given(
    st.lists(
        st.tuples(
            TEXT.filter(str.strip), st.lists(TEXT, min_size=4, max_size=4).filter("".join), st.sampled_from(LETTERS)
        ).filter(lambda row: any(choice.strip() for choice in row[1])),
        min_size=1,
        max_size=5,
    )
)
def test_what_a_writer_wrote_is_read_back(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("questions")
    for form in ("csv", "jsonl"):
        found = read_questions(write(folder, form, rows), "test")
        assert [(one.text, list(one.choices), one.answer) for one in found] == rows


@given(st.binary(max_size=200), st.sampled_from(["x_test.csv", "x.jsonl", "x.parquet", "x.tar"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data, name):
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(data)
    try:
        assert read_questions(path, "test")
    except QuestionsUnreadable as error:
        assert str(error)
        assert error.hint
        assert "\n" not in str(error)


GOOD = "q,a,b,c,d,A\n"
BAD = {
    "a row short": (GOOD + "q,a,b,c,A\n", "row 2: 5 columns, expected 6"),
    "another letter": (GOOD + "q,a,b,c,d,E\n", "row 2: the answer 'E' is no letter from A to D"),
    "two letters": ("q,a,b,c,d,AB\n", "row 1: the answer 'AB' is no letter"),
    "a header": ("question,A,B,C,D,answer\n" + GOOD, "row 1: the answer 'answer' is no letter"),
    "no question": (",a,b,c,d,A\n", "row 1: the question or all of its choices are empty"),
    "no choices": ("q,,, ,,A\n", "row 1: the question or all of its choices are empty"),
    "an open quote": (GOOD + '"q,a,b,c,d,A\n', "row 2: unexpected end of data"),
    "nothing": ("", "holds no questions"),
    "blank lines": ("\n\r\n\n", "holds no questions"),
    "NUL": ("q,a,\0,c,d,A\n", "holds NUL characters"),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=list(BAD))
def test_a_csv_that_is_none_is_refused_by_row(tmp_path, text, said):
    path = tmp_path / "x_test.csv"
    path.write_text(text, newline="")
    with pytest.raises(QuestionsUnreadable, match=said):
        read_questions(path, "test")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"question": "q", "choices": ["a", "b", "c"], "answer": 0}', "choices: List should have at least 4 items"),
        ('{"question": "q", "choices": ["a", "b", "c", "d"], "answer": 4}', "answer: Input should be less than"),
        (
            '{"question": "q", "choices": ["a", "b", "c", "d"], "answer": "A"}',
            "answer: .* valid integer",
        ),
        (
            '{"question": "q", "choices": ["a", "b", "c", "d"], "answer": true}',
            "answer: .* valid integer",
        ),
        ('{"choices": ["a", "b", "c", "d"], "answer": 0}', "question: Field required"),
        ("[1]", "Input should be"),
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
    ],
)
def test_json_lines_that_are_none_are_refused_by_row(tmp_path, row, said):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(hugging_face(ROWS)[0]) + "\n" + row)
    with pytest.raises(QuestionsUnreadable, match=f"row 2: .*{said}"):
        read_questions(path, "test")


def test_what_is_no_file_of_questions_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin_test.csv").write_bytes("q é,a,b,c,d,A\n".encode("latin-1"))
    os.mkfifo(tmp_path / "pipe_test.csv")
    for name, said in {
        "notes.txt": "is no file of questions",
        "empty": "holds no questions",
        "missing.csv": "No such file",
        "missing": "No such file",
        "latin_test.csv": "is not UTF-8 text: byte 2",
        "pipe_test.csv": "is no regular file",
    }.items():
        with pytest.raises(QuestionsUnreadable, match=said):
            read_questions(tmp_path / name, "test")


class TestTheDraw:
    def test_it_is_the_same_for_a_seed_and_in_the_files_order(self, tmp_path):
        rows = [(f"q{number}", ["a", "b", "c", "d"], "A") for number in range(100)]
        found = read_questions(write(tmp_path, "csv", rows), "test")
        drawn = draw(found, 10, 0)
        assert drawn == draw(found, 10, 0) != draw(found, 10, 1)
        assert list(drawn) == [question for question in found if question in drawn]
        assert len(set(drawn)) == 10

    def test_fewer_are_all(self, tmp_path):
        found = read_questions(write(tmp_path, "csv"), "test")
        assert draw(found, 500, 0) == found


def test_the_prompt_is_the_published_one(tmp_path):
    first, second, _ = read_questions(write(tmp_path, "csv"), "test")
    assert prompt(first, [second]) == (
        "The following are multiple choice questions (with answers) about zoology.\n\n"
        'Which is "quoted",\nand on two lines?\nA. a, b\nB. c "d"\nC. \nD. é\nAnswer: D\n\n'
        "What is 1 + 1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    )
