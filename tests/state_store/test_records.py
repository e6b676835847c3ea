"""Records as bytes: what a newer, an older or a broken writer leaves."""

import pytest

from state_store.records import ReplicaRecord

RECORD = ReplicaRecord("r", "m", "t", "http://h:1", "s", "ready", "", "a", 4, 1.0, 99.5, 7, 2)


def test_a_record_comes_back_as_it_was() -> None:
    assert ReplicaRecord.from_bytes(RECORD.to_bytes()) == RECORD


def test_a_newer_writer_s_fields_are_ignored() -> None:
    raw = RECORD.to_bytes().replace(b'{"replica"', b'{"colour":"red","replica"')
    assert ReplicaRecord.from_bytes(raw) == RECORD


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"{}", b'{"replica":"r"}', b"\xff"])
def test_a_broken_value_is_none(raw: bytes) -> None:
    assert ReplicaRecord.from_bytes(raw) is None
