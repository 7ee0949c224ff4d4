"""Subjects of certificates, written as Java writes them."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from moldau.node.ports.distinguished_name import MalformedCertificate, subject_of

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(*names: list[tuple[x509.ObjectIdentifier, str]]) -> bytes:
    subject = x509.Name(
        [x509.RelativeDistinguishedName([x509.NameAttribute(oid, value) for oid, value in each]) for each in names]
    )
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(KEY, hashes.SHA256())
    )
    return built.public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([[(NameOID.COUNTRY_NAME, "DE")], [(NameOID.COMMON_NAME, "alice")]], "CN=alice,C=DE"),
        (
            [
                [(NameOID.DOMAIN_COMPONENT, "org")],
                [(NameOID.STATE_OR_PROVINCE_NAME, "BE"), (NameOID.LOCALITY_NAME, "Berlin")],
                [(NameOID.ORGANIZATION_NAME, "Example"), (NameOID.ORGANIZATIONAL_UNIT_NAME, "Ops")],
                [(NameOID.USER_ID, "a1")],
            ],
            None,
        ),
        ([[(NameOID.COMMON_NAME, 'a,b+c"d\\e<f>g;h')]], 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h'),
        ([[(NameOID.COMMON_NAME, " #lead and trail ")]], "CN=\\ #lead and trail\\ "),
        ([[(NameOID.COMMON_NAME, "#1")]], "CN=\\#1"),
        ([[(NameOID.COMMON_NAME, "Zoë Ω")]], "CN=Zoë Ω"),
        ([[(NameOID.EMAIL_ADDRESS, "a@b")], [(NameOID.COMMON_NAME, "x")]], "CN=x,1.2.840.113549.1.9.1=#1603614062"),
        ([], ""),
    ],
)
def test_subject_is_written_as_in_rfc_2253(
    names: list[list[tuple[x509.ObjectIdentifier, str]]], text: str | None
) -> None:
    subject = subject_of(certificate(*names))
    if text is None:
        assert subject.startswith("UID=a1,")
        assert subject.endswith(",DC=org")
        assert set(subject.split(",")[1].split("+")) == {"O=Example", "OU=Ops"}
    else:
        assert subject == text


def test_bytes_that_are_no_certificate_are_rejected() -> None:
    whole = certificate([(NameOID.COMMON_NAME, "alice")])
    for cut in (b"", b"\x30", whole[:40], whole[:-1], bytes(50)):
        with pytest.raises(MalformedCertificate):
            subject_of(cut)
