"""What `graceway check` says of certificates: the line, what is wrong, and the mend."""

from pathlib import Path

import pytest

from deploy.config import Config, ConfigError, load_config
from deploy.up import _refusal
from tests.certificates import Authority

TIERS = "models: {chat: {tiers: [{backend: canned}]}}\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def faults(folder: Path, tls: str) -> list[str]:
    file = folder / "c.yaml"
    file.write_text(f"{TIERS}server:\n  tls:\n{tls}")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return [line.replace(f"{folder}/", "") for line in str(caught.value).splitlines()]


def loaded(folder: Path, tls: str) -> Config:
    file = folder / "c.yaml"
    file.write_text(f"{TIERS}server:\n  tls:\n{tls}")
    return load_config(file)


def test_a_certificate_with_its_key_is_right(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.sign("a")
    tls = f"    cert_file: {pair.cert}\n    key_file: {pair.key}\n    client_ca_file: {authority.file}\n"
    config = loaded(tmp_path, tls)
    assert config.server.tls is not None
    assert _refusal(config) is None
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert "put a proxy in front" in (_refusal(config) or "")


def test_an_expired_certificate_is_named(tmp_path: Path, authority: Authority) -> None:
    late = authority.sign("late", has_expired=True)
    (fault,) = faults(tmp_path, f"    cert_file: {late.cert}\n    key_file: {late.key}\n")
    assert fault.startswith("c.yaml:4: the certificate 'ours-late.cert' has expired, on ")
    assert fault.endswith("Renew it")


def test_another_certificates_key_is_named(tmp_path: Path, authority: Authority) -> None:
    one, two = authority.sign("one"), authority.sign("two")
    assert faults(tmp_path, f"    cert_file: {one.cert}\n    key_file: {two.key}\n") == [
        "c.yaml:5: 'ours-two.key' is not the key of 'ours-one.cert'. Name the key that the certificate was made for"
    ]


@pytest.mark.parametrize(
    ("cert", "key", "expected"),
    [
        (
            "nowhere",
            "ours-a.key",
            "c.yaml:4: 'nowhere' is not there, or can't be read. Name a file in PEM form",
        ),
        ("ours-a.key", "ours-a.key", "c.yaml:4: 'ours-a.key' holds no certificate. Name a file in PEM form"),
        ("ours-a.cert", "nowhere", "c.yaml:5: 'nowhere' is not there. Name a file in PEM form"),
        ("ours-a.cert", "c.yaml", "c.yaml:5: 'c.yaml' holds no key that can be read"),
    ],
)
def test_what_is_no_certificate_is_named(
    tmp_path: Path, authority: Authority, cert: str, key: str, expected: str
) -> None:
    authority.sign("a")
    (fault,) = faults(tmp_path, f"    cert_file: {tmp_path}/{cert}\n    key_file: {tmp_path}/{key}\n")
    assert fault.startswith(expected)


def test_authorities_that_are_none_are_named(tmp_path: Path, authority: Authority) -> None:
    pair = authority.sign("a")
    tls = f"    cert_file: {pair.cert}\n    key_file: {pair.key}\n    client_ca_file: {pair.key}\n"
    (fault,) = faults(tmp_path, tls)
    assert fault.startswith("c.yaml:6: 'ours-a.key' holds no certificates")


def test_a_tiers_certificate_needs_its_key(tmp_path: Path, authority: Authority) -> None:
    file = tmp_path / "c.yaml"
    tier = f"{{backend: openai, served_model: m, replicas: [{{url: 'https://h:1'}}], cert_file: {authority.file}}}"
    file.write_text(f"models:\n  chat:\n    tiers:\n      - {tier}\n")
    with pytest.raises(ConfigError, match="'key_file' is missing"):
        load_config(file)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("ca=nowhere.pem", "'nowhere.pem' is not there. Name a file in PEM form"),
        ("cert=ours-one.cert&key=ours-two.key", "'ours-two.key' is not the key of 'ours-one.cert'"),
        ("cert=ours-one.cert", "'ours-one.cert' holds no key that can be read"),
        ("key=ours-one.key", "'cert_file' is missing. A certificate and its key go together"),
    ],
)
def test_files_of_the_state_stores_tls_are_looked_at(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, options: str, expected: str
) -> None:
    authority.sign("one")
    authority.sign("two")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "c.yaml"
    file.write_text(f'state_store: {{url: "rediss://h:1?{options}"}}\n{TIERS}')
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert f"c.yaml:1: {expected}" in str(caught.value)
