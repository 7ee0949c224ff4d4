"""Messages for people about failed TLS handshakes: the cause, and the remedy."""

import ssl
from typing import Final

# By OpenSSL's reason, in lower case with blanks.
_HINTS: Final = {
    "tlsv1 alert unknown ca": "the peer does not trust our certificate: its truststore lacks the authority",
    "sslv3 alert bad certificate": "the peer rejected our certificate",
    "sslv3 alert certificate expired": "our certificate has expired",
    "sslv3 alert certificate unknown": "the peer does not trust our certificate or its host name",
    "tlsv13 alert certificate required": "the peer requires a client certificate (ssl.client.auth=required)",
    "peer did not return a certificate": "the client sent no certificate (ssl.client.auth=required)",
    "sslv3 alert handshake failure": "the peer found no common cipher suite or version, or requires a certificate",
    "no shared cipher": "no cipher suite in common (ssl.cipher.suites)",
    "unsupported protocol": "no TLS version in common (ssl.enabled.protocols)",
    "tlsv1 alert protocol version": "no TLS version in common (ssl.enabled.protocols)",
    "wrong version number": "the peer does not speak TLS: is its listener or client plain text (security.protocol)?",
    "http request": "the peer sent a plain HTTP request",
}
_UNTRUSTED: Final = ": ssl.truststore.location must contain the authority that has signed it"
# By OpenSSL's code of a failed verification.
_ADVICE: Final = {
    10: ": renew it, and replace the file of ssl.keystore.location",
    **dict.fromkeys((18, 19, 20, 21), _UNTRUSTED),
    62: " (the certificate must name the host; see ssl.endpoint.identification.algorithm)",
    64: " (the certificate must name the address; see ssl.endpoint.identification.algorithm)",
}
_PLAIN_STARTS: Final = ((b"GET ", "HTTP"), (b"POST", "HTTP"), (b"HEAD", "HTTP"), (b"PUT ", "HTTP"), (b"SSH-", "SSH"))
HANDSHAKE_RECORD: Final = 0x16
ALERT_RECORD: Final = 0x15


def explain(error: ssl.SSLError) -> str:
    """Return the cause of a failed handshake or of a broken connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message}{_ADVICE.get(error.verify_code, '')}"
    reason = (error.reason or error.strerror or str(error)).replace("_", " ").lower()
    hint = _HINTS.get(reason)
    return f"{hint} ({reason})" if hint else reason


def describe_plaintext(first: bytes) -> str:
    """Describe a peer whose first bytes are not TLS."""
    for start, name in _PLAIN_STARTS:
        if first.startswith(start):
            return f"the peer speaks {name}, not TLS"
    if first[:2] == b"\x00\x00":  # the length of a short Kafka request
        return "the peer sent a Kafka request in plain text: set its security.protocol to SSL or SASL_SSL"
    return f"the first bytes {bytes(first[:4])!r} are not TLS"
