"""Records of `__transaction_state`: what is known of one transactional id, or that it is forgotten."""

from typing import Final

from moldau.wire import messages

Record = tuple[messages.TransactionLogKey, messages.TransactionLogValue | None]

VALUE_VERSION: Final = 1
"""The version to write a value in: the first that says which version of transactions the client speaks."""
