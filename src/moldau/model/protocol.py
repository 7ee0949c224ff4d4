"""Values and versions to which the Kafka protocol assigns a meaning, each declared once.

A name that ends in `_FROM` is the first version of an API that has a field or an ability.
"""

from typing import Final

from moldau.model.ids import TopicId

# Produce
ACKS_ALL: Final = -1
ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
PRODUCE_LEADER_HINTS_FROM: Final = 10  # KIP-951
PRODUCE_TOPIC_IDS_FROM: Final = 13

# Fetch
READ_COMMITTED: Final = 1
FETCH_SESSIONS_FROM: Final = 7
FETCH_FROM_FOLLOWERS_FROM: Final = 11  # KIP-392: a consumer may be directed to a follower, and fetch from one
FETCH_TOPIC_IDS_FROM: Final = 13
FETCH_REPLICA_STATE_FROM: Final = 15  # the broker epoch of a follower, without which it cannot join an ISR
FETCH_LEADER_HINTS_FROM: Final = 16  # KIP-951
NO_FETCH_SESSION: Final = 0
INITIAL_SESSION_EPOCH: Final = 0
FINAL_SESSION_EPOCH: Final = -1
SESSION_EPOCH_MAX: Final = 2**31 - 1

# ListOffsets: timestamps that stand for a position
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3

# OffsetCommit and OffsetFetch
OFFSETS_TOPIC_IDS_FROM: Final = 10

# The quorum
METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0
METADATA_TOPIC_ID: Final = TopicId(bytes(15) + b"\x01")
VOTER_KEY_FROM: Final = 1  # Vote and BeginQuorumEpoch name the voter that they are meant for
KRAFT_VERSION: Final = 1  # voters in the metadata log (KIP-853)
