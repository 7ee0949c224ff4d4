"""Names that stand for several addresses, as `localhost` mostly does: what is said of them all, in one."""

import asyncio
import errno
import os
import re
import socket
from typing import Any, Final

from moldau.model.ids import Address

# What we hear of an address of a kind that this machine does not have: IPv6 is off in many containers.
_NOT_HERE: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH}


async def hosts_to_listen_on(address: Address) -> list[str] | None:
    """Those of a name's addresses that this machine has. Before Python 3.13, asyncio wants all of them or none."""
    if not address.host:
        return None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise socket.gaierror(error.errno, f"cannot listen on {address}: {str(error.strerror).lower()}") from None
    here = [str(where[0]) for family, _, _, _, where in found if _is_here(family, where)]
    if not here:
        raise OSError(errno.EADDRNOTAVAIL, f"{address} is not an address of this machine")
    return [address.host] if len(here) == len(found) else here


def _is_here(family: int, where: Any) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(where)  # to any port
    except OSError as error:
        return error.errno not in _NOT_HERE
    return True


def plain(error: OSError) -> OSError:
    """Why nobody was reached at any address of a name, where it is the same at all: asyncio tells it in one error that
    has no number, and who waits for a refusal would not hear it."""
    if error.errno is not None:
        return error
    reasons = {int(each) for each in re.findall(r"\[Errno (\d+)\]", str(error))} - _NOT_HERE
    if len(reasons) != 1:
        return error
    (reason,) = reasons
    return OSError(reason, os.strerror(reason))
