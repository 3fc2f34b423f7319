"""Zips of evidence: what is taken, and that bombs, links and names outside leave nothing behind."""

import os
import tempfile
import zipfile

import pytest

from gemma4_dumps import unpacked
from gemma4_dumps.errors import DumpError, DumpNotFound
from gemma4_dumps.store import DumpStore
from gemma4_dumps.unpacked import ArchiveRefused, inside, is_zip, origin, unpack


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Return a temporary folder of the test's own, to see what is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def zip_of(path, *entries: tuple[zipfile.ZipInfo | str, bytes]):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def test_files_lie_where_the_zip_says_and_are_named_by_it(tmp_path):
    path = zip_of(tmp_path / "a.zip", ("one/b.txt", b"text"), ("empty/", b""))
    folder = unpack(path)
    assert (folder / "one/b.txt").read_bytes() == b"text"
    assert (folder / "one/b.txt").stat().st_mode & 0o777 == 0o600
    assert unpack(path) == folder
    assert origin(folder / "one") == f"{path}/one"
    assert origin(tmp_path) == str(tmp_path)
    assert inside(f"{path}/one/b.txt") == folder / "one/b.txt"
    assert inside(str(tmp_path / "b.txt")) is None


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a\\..\\x", "C:x", "a" * 300, "a/" * 40 + "x"])
def test_a_name_that_leads_outside_is_refused_whole(tmp_path, temporary, name):
    path = zip_of(tmp_path / "a.zip", ("fine.txt", b"1"), (name, b"2"))
    with pytest.raises(ArchiveRefused):
        unpack(path)
    assert list(temporary.iterdir()) == []
    assert not (tmp_path.parent / "x").exists()


def test_a_link_is_refused(tmp_path, temporary):
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with pytest.raises(ArchiveRefused, match="a link or no file"):
        unpack(zip_of(tmp_path / "a.zip", (link, b"/etc/passwd")))
    assert list(temporary.iterdir()) == []


def test_a_bomb_is_refused(tmp_path, temporary):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros", "w") as entry:
        for _ in range(70):
            entry.write(bytes(1024**2))
    with pytest.raises(ArchiveRefused, match="grows more than 500 times"):
        unpack(path)
    assert list(temporary.iterdir()) == []


def test_a_size_that_lies_is_found_out(tmp_path, temporary):
    path = zip_of(tmp_path / "a.zip", ("x", bytes(100_000)))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = (10).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(DumpError):
        unpack(path)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("keep", [30, -1, -40])
def test_a_torn_zip_is_an_error(tmp_path, temporary, keep):
    path = zip_of(tmp_path / "a.zip", ("x", os.urandom(1000)))
    path.write_bytes(path.read_bytes()[:keep])
    assert is_zip(path)
    with pytest.raises(ArchiveRefused, match="damaged"):
        unpack(path)
    assert list(temporary.iterdir()) == []


def test_twice_the_same_name_and_a_foreign_packing_are_refused(tmp_path):
    path = zip_of(tmp_path / "a.zip", ("x", b"1"), ("y", b"2"))
    path.write_bytes(path.read_bytes().replace(b"y", b"x"))
    with pytest.raises(ArchiveRefused, match="twice"):
        unpack(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x", b"1")
    with pytest.raises(ArchiveRefused, match="method 12"):
        unpack(tmp_path / "b.zip")


def test_a_locked_zip_and_one_of_too_much_are_refused(tmp_path, temporary, monkeypatch):
    path = zip_of(tmp_path / "a.zip", ("x", bytes(600)), ("y", bytes(600)))
    locked = bytearray(path.read_bytes())
    locked[locked.index(b"PK\x01\x02") + 8] |= 1  # the flag of an encrypted entry
    (tmp_path / "b.zip").write_bytes(locked)
    with pytest.raises(ArchiveRefused, match="encrypted"):
        unpack(tmp_path / "b.zip")
    monkeypatch.setattr(unpacked, "MAX_TOTAL_BYTES", 1000)
    with pytest.raises(ArchiveRefused, match="unpacks to 1200 bytes"):
        unpack(path)
    monkeypatch.setattr(unpacked, "MAX_ENTRIES", 1)
    with pytest.raises(ArchiveRefused, match="2 entries; at most 1"):
        unpack(path)
    assert list(temporary.iterdir()) == []


def test_a_store_says_what_a_zip_holds(tmp_path):
    store = DumpStore(tmp_path)
    with pytest.raises(DumpNotFound, match="no dump in"):
        store.resolve(zip_of(tmp_path / "a.zip", ("x", b"1")))
    both = zip_of(tmp_path / "b.zip", ("one/manifest.json", b"{}"), ("two/manifest.json", b"{}"))
    with pytest.raises(DumpNotFound, match="holds 2 dumps: one, two"):
        store.resolve(both)
    assert store.resolve(f"{both}/two").name == "two"
    with pytest.raises(DumpNotFound):
        store.resolve(f"{both}/three")
