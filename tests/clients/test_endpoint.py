"""Server addresses."""

from __future__ import annotations

import pytest

from tritonstack.client.endpoint import parse_endpoint
from tritonstack.errors import UsageError


@pytest.mark.parametrize(
    ("url", "protocol", "text"),
    [
        ("127.0.0.1:8001", None, "grpc://127.0.0.1:8001"),
        ("localhost", None, "grpc://localhost:8001"),
        ("localhost:9", "http", "http://localhost:9"),
        ("localhost", "http", "http://localhost:8000"),
        ("grpc://h:1", "grpc", "grpc://h:1"),
        ("grpcs://h", None, "grpcs://h:443"),
        ("https://h/triton/", None, "https://h:443/triton"),
        ("http://[::1]:8000", None, "http://[::1]:8000"),
        ("[::1]:8001", None, "grpc://[::1]:8001"),
    ],
)
def test_good_addresses(url: str, protocol: str | None, text: str) -> None:
    assert str(parse_endpoint(url, protocol=protocol)) == text


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("", None),
        ("grpc://", None),
        ("ftp://h", None),
        ("grpc://h:99999", None),
        ("h:port", None),
        ("grpc://h/path", None),
        ("http://h:1", "grpc"),
        ("grpc://h:1", "http"),
        ("h:1", "htpp"),
        ("http://h:1?x=1", None),
        ("http://user:word@h:1", None),
        ("http://h:1/a b", None),
        ("http://h:1\r\nX: y", None),
    ],
)
def test_bad_addresses(url: str, protocol: str | None) -> None:
    with pytest.raises(UsageError):
        parse_endpoint(url, protocol=protocol)  # type: ignore[arg-type]


def test_tls_options_turn_tls_on() -> None:
    assert parse_endpoint("h:1", tls=True).secure
