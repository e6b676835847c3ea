"""Records as bytes: what a newer, an older or a broken writer leaves."""

from dataclasses import replace
from typing import Any

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


@pytest.mark.parametrize("url", ["", "http://h:1", "http://10.0.0.1:8000/", "http://[fd00::1]:80"])
def test_a_supervisors_address_is_sound(url: str) -> None:
    assert replace(RECORD, url=url).is_sound


@pytest.mark.parametrize(
    "changed",
    [
        {"url": "http://169.254.169.254:80"},
        {"url": "http://[fe80::1]:80"},
        {"url": "http://0.0.0.0:1"},
        {"url": "http://user:pw@h:1"},
        {"url": "http://h:1/admin?x="},
        {"url": "http://h:1/path"},
        {"url": "http://h:99999"},
        {"url": "http://h"},
        {"url": "http://h:1\r\nx: y"},
        {"url": "file:///etc/passwd"},
        {"url": "gopher://h:1"},
        {"url": 5},
        {"slots": "many"},
        {"model": None},
    ],
)
def test_a_record_that_leads_elsewhere_is_not(changed: dict[str, Any]) -> None:
    assert not replace(RECORD, **changed).is_sound
