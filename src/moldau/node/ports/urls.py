"""Small documents at a URL: a file, or a page of a web server."""

import urllib.request
from typing import Final
from urllib.parse import urlsplit

DOCUMENT_BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
SCHEMES: Final = ("file", "http", "https")


def fetch_document(url: str) -> bytes:
    """Return the document; `OSError` if it cannot be read or is too large. Blocks, so run it in a thread."""
    if urlsplit(url).scheme not in SCHEMES:
        raise OSError(f"{url} is not a URL that begins with {', '.join(SCHEMES)}")
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        document: bytes = response.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise OSError(f"{url} has more than {DOCUMENT_BYTES_MAX} bytes")
    return document
