"""The subject of a certificate as text (RFC 2253), exactly as Java writes it: principals and ACLs contain it.

Java abbreviates few attribute types; any other is written as its object identifier, with the value in hexadecimal.
"""

from collections.abc import Iterator
from typing import Final

_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_VERSION_TAG: Final = 0xA0
_ENCODINGS: Final = {12: "utf-8", 19: "ascii", 20: "latin-1", 22: "ascii", 28: "utf-32-be", 30: "utf-16-be"}


class MalformedCertificate(ValueError):
    """A certificate that OpenSSL accepted and that is not DER here."""


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate in DER, which OpenSSL has verified."""
    try:
        ((_, whole),) = _elements(certificate)
        _, to_be_signed = next(_elements(whole))
        fields = [field for field in _elements(to_be_signed) if field[0] != _VERSION_TAG]
        _, subject = fields[4]  # after serial number, algorithm, issuer and validity
        names = [_relative_name(content) for _, content in _elements(subject)]
    except (IndexError, ValueError, StopIteration, UnicodeError) as error:
        raise MalformedCertificate(f"the subject of the certificate cannot be read: {error}") from None
    return ",".join(reversed(names))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a sequence or set: tag and contents."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            raise ValueError("truncated element")
        yield tag, data[position : position + length]
        position += length


def _relative_name(content: bytes) -> str:
    return "+".join(_attribute(pair) for _, pair in _elements(content))


def _attribute(pair: bytes) -> str:
    (_, raw_type), (tag, value) = _elements(pair)
    identifier = _object_identifier(raw_type)
    name = _NAMES.get(identifier)
    if name is None or tag not in _ENCODINGS:
        return f"{name or identifier}=#{_encoded(tag, value).hex()}"
    return f"{name}={_escape(value.decode(_ENCODINGS[tag]))}"


def _encoded(tag: int, value: bytes) -> bytes:
    if len(value) < 0x80:
        return bytes((tag, len(value))) + value
    size = len(value).to_bytes((len(value).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + value


def _object_identifier(data: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _escape(text: str) -> str:
    escaped = "".join(f"\\{each}" if each in ',+<>;"\\' else each for each in text)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
