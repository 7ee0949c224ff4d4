"""Records of `__transaction_state`: the state of a transactional id, or its tombstone."""

from typing import Final

from moldau.wire import messages

Record = tuple[messages.TransactionLogKey, messages.TransactionLogValue | None]

VALUE_VERSION: Final = 1
"""Version of written values: the first that includes the client's transaction version."""
