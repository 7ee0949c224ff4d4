"""Transactions: one shard of transactional ids as a replicated machine."""

from moldau.machines.transactions.effects import SendMarkers
from moldau.machines.transactions.init_producer_id import ProducerIdNeeded
from moldau.machines.transactions.machine import TransactionsMachine
from moldau.machines.transactions.records import VALUE_VERSION, Record
from moldau.machines.transactions.settings import TransactionSettings
from moldau.machines.transactions.state import ProducerIdentity, Transaction, TransactionsState, TransactionState

__all__ = [
    "VALUE_VERSION",
    "ProducerIdNeeded",
    "ProducerIdentity",
    "Record",
    "SendMarkers",
    "Transaction",
    "TransactionSettings",
    "TransactionState",
    "TransactionsMachine",
    "TransactionsState",
]
