"""Host names that resolve to several addresses, as `localhost` usually does."""

import asyncio
import errno
import os
import re
import socket
from typing import Any, Final

from moldau.model.ids import Address

# Errors of an address family that this machine lacks: IPv6 is off in many containers.
_FAMILY_MISSING: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH}


async def hosts_to_listen_on(address: Address) -> list[str] | None:
    """Return the addresses of a name that this machine has. Before Python 3.13, asyncio binds all of them or fails."""
    if not address.host:
        return None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"cannot listen on {address}: {str(error.strerror).lower()}") from None
    local = [str(address_info[0]) for family, _, _, _, address_info in found if _is_local(family, address_info)]
    if not local:
        raise OSError(errno.EADDRNOTAVAIL, f"{address} is not an address of this machine")
    return [address.host] if len(local) == len(found) else local


def _is_local(family: int, address_info: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address_info)  # to any port
    except OSError as error:
        return error.errno not in _FAMILY_MISSING
    return True


def unify_errors(error: OSError) -> OSError:
    """Return one error with an errno if connecting to every address of a name failed for the same reason.

    asyncio combines the errors into one without an errno, so `ConnectionRefusedError` would not be recognised.
    """
    if error.errno is not None:
        return error
    reasons = {int(each) for each in re.findall(r"\[Errno (\d+)\]", str(error))} - _FAMILY_MISSING
    if len(reasons) != 1:
        return error
    (reason,) = reasons
    return OSError(reason, os.strerror(reason))
