"""Parsing of bootstrap addresses."""

from typing import Final

from moldau.model.ids import Address

DEFAULT_PORT: Final = 9092


def parse_bootstrap(text: str) -> list[Address]:
    """Parse `host:port,host:port`; the default port is 9092, an IPv6 host is in brackets."""
    addresses = [parse_address(part) for part in text.split(",") if part.strip()]
    if not addresses:
        raise ValueError("no bootstrap server given; use host:port, separated by commas")
    return addresses


def parse_address(text: str) -> Address:
    """Parse one `host:port`; Kafka's `PROTOCOL://` prefix is accepted and dropped."""
    rest = text.strip().split("://", 1)[-1]
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        port = tail[1:] if tail.startswith(":") else tail
        is_well_formed = bool(bracket) and (not tail or tail.startswith(":"))
    else:
        host, _, port = rest.partition(":")
        is_well_formed = ":" not in port
    if not is_well_formed or not host or not (port or ":" not in rest or rest.startswith("[")):
        raise ValueError(f"{text.strip()} is not an address; use host:port, or [host]:port for IPv6")
    return Address(host, _port(port, text))


def _port(port: str, text: str) -> int:
    if not port:
        return DEFAULT_PORT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text.strip()} has an invalid port; use a number from 1 to 65535")
    return int(port)
