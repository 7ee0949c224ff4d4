"""For all tests: run each `async def` test on its own event loop, enable SIGINT, and ignore the user's profiles."""

import asyncio
import inspect
import os
import signal

import pytest

NO_CONFIG = "/nonexistent/config"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_configure() -> None:
    """Restore the SIGINT handler: shell jobs started with `&` and their children ignore SIGINT, but tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["XDG_CONFIG_HOME"] = NO_CONFIG
    os.environ.pop("MOLDAU_PROFILE", None)
