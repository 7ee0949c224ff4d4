"""Every metric by name, with its kind, labels and a sentence. The names are those that Kafka dashboards use."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "summary", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of samples."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


def _counter(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, "counter", doc, labels)


def _gauge(name: str, doc: str, *labels: str) -> Metric:
    return Metric(name, "gauge", doc, labels)


MESSAGES_IN: Final = _counter(
    "kafka_server_brokertopicmetrics_messagesin_total", "Records appended; without a topic: to all of them.", "topic"
)
BYTES_IN: Final = _counter(
    "kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches appended.", "topic"
)
BYTES_OUT: Final = _counter(
    "kafka_server_brokertopicmetrics_bytesout_total", "Bytes of record batches handed to fetches.", "topic"
)
REPLICATION_IN: Final = _counter(
    "kafka_server_brokertopicmetrics_replicationbytesin_total",
    "Bytes of record batches fetched from leaders.",
    "topic",
)
REPLICATION_OUT: Final = _counter(
    "kafka_server_brokertopicmetrics_replicationbytesout_total",
    "Bytes of record batches handed to followers.",
    "topic",
)
BYTES_REJECTED: Final = _counter(
    "kafka_server_brokertopicmetrics_bytesrejected_total", "Bytes of record batches that were refused."
)
PRODUCES: Final = _counter(
    "kafka_server_brokertopicmetrics_totalproducerequests_total", "Batches that producers asked to append.", "topic"
)
FETCHES: Final = _counter(
    "kafka_server_brokertopicmetrics_totalfetchrequests_total", "Partitions that fetches asked to read.", "topic"
)
FAILED_PRODUCES: Final = _counter(
    "kafka_server_brokertopicmetrics_failedproducerequests_total", "Batches that were refused."
)
FAILED_FETCHES: Final = _counter(
    "kafka_server_brokertopicmetrics_failedfetchrequests_total", "Partitions that could not be read."
)

REQUESTS: Final = _counter("kafka_network_requestmetrics_requests_total", "Requests answered.", "request")
REQUEST_ERRORS: Final = _counter(
    "kafka_network_requestmetrics_errors_total", "Requests that failed by a mistake of ours.", "request"
)
REQUEST_TIME: Final = Metric(
    "kafka_network_requestmetrics_totaltimems",
    "summary",
    "Milliseconds from a request's arrival to its answer; quantiles are upper bounds within a factor of two.",
    ("request",),
)

LOG_SIZE: Final = _gauge("kafka_log_log_size", "Bytes a partition's log holds.", "topic", "partition")
LOG_START: Final = _gauge("kafka_log_log_logstartoffset", "The first offset of a log.", "topic", "partition")
LOG_END: Final = _gauge("kafka_log_log_logendoffset", "The offset the next record gets.", "topic", "partition")
LOG_SEGMENTS: Final = _gauge("kafka_log_log_numlogsegments", "Segments of a log.", "topic", "partition")
PARTITION_END: Final = _gauge(
    "kafka_topic_partition_current_offset", "Where a partition led here ends for readers.", "topic", "partition"
)
GROUP_OFFSET: Final = _gauge(
    "kafka_consumergroup_current_offset",
    "What a group has committed for a partition.",
    "consumergroup",
    "topic",
    "partition",
)
GROUP_LAG: Final = _gauge(
    "kafka_consumergroup_lag",
    "How many records of a partition a group has not committed yet.",
    "consumergroup",
    "topic",
    "partition",
)
STABLE_LAG: Final = _gauge(
    "kafka_cluster_partition_laststableoffsetlag",
    "Records of a partition led here that readers of committed records cannot see yet: a transaction is open before.",
    "topic",
    "partition",
)
OPEN_TRANSACTIONS: Final = _gauge(
    "moldau_transactions_open", "Transactions coordinated here that have begun and are not complete."
)
OLDEST_TRANSACTION: Final = _gauge(
    "moldau_transaction_oldest_milliseconds", "For how long the oldest of them has been open."
)
ENDED_TRANSACTIONS: Final = _counter(
    "moldau_transactions_ended_total", "Transactions coordinated here that are complete, by their outcome.", "outcome"
)
MARKERS_WAITING: Final = _gauge(
    "moldau_transaction_markers_waiting", "Partitions that have not got the marker of a transaction that ended."
)
FLUSH_TIME: Final = Metric(
    "kafka_log_logflushstats_logflushrateandtimems", "summary", "Milliseconds that flushes to disk took."
)

PARTITIONS: Final = _gauge("kafka_server_replicamanager_partitioncount", "Partitions on this broker.")
LEADERS: Final = _gauge("kafka_server_replicamanager_leadercount", "Partitions this broker leads.")
UNDER_REPLICATED: Final = _gauge(
    "kafka_server_replicamanager_underreplicatedpartitions", "Partitions led here with replicas out of sync."
)
UNDER_MIN_ISR: Final = _gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Partitions led here with too few replicas in sync: writes with acks=all are refused.",
)
AT_MIN_ISR: Final = _gauge(
    "kafka_server_replicamanager_atminisrpartitioncount",
    "Partitions led here with no replica in sync more than they need.",
)
REASSIGNING: Final = _gauge(
    "kafka_server_replicamanager_reassigningpartitions", "Partitions led here that are being moved."
)
OFFLINE_REPLICAS: Final = _gauge(
    "kafka_server_replicamanager_offlinereplicacount", "Replicas of this broker whose log cannot be used."
)
ISR_SHRINKS: Final = _counter(
    "kafka_server_replicamanager_isrshrinks_total", "Replicas that left the ISR of a partition led here."
)
ISR_EXPANDS: Final = _counter(
    "kafka_server_replicamanager_isrexpands_total", "Replicas that joined the ISR of a partition led here."
)
ISR_FAILURES: Final = _counter(
    "kafka_server_replicamanager_failedisrupdates_total", "Changes of an ISR that the controller did not accept."
)
FOLLOWER_LAG: Final = _gauge(
    "moldau_follower_lag_max_records", "Records that the slowest follower of a partition led here lacks."
)
IMBALANCE: Final = _gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions that another than their first replica leads.",
)
ACTIVE_BROKERS: Final = _gauge("kafka_controller_kafkacontroller_activebrokercount", "Brokers that serve.")
FENCED_BROKERS: Final = _gauge(
    "kafka_controller_kafkacontroller_fencedbrokercount", "Brokers that are registered and do not serve."
)
OFFLINE: Final = _gauge("kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without a leader.")
ACTIVE_CONTROLLERS: Final = _gauge(
    "kafka_controller_kafkacontroller_activecontrollercount", "1 where this node controls the cluster."
)
TOPICS: Final = _gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics in the cluster.")
ALL_PARTITIONS: Final = _gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions in the cluster.")
RAFT_STATE: Final = _gauge(
    "kafka_server_raft_metrics_current_state", "1 for what this node is in the quorum: leader, follower …", "state"
)
RAFT_LEADER: Final = _gauge(
    "kafka_server_raft_metrics_current_leader", "Who leads the quorum, as this node knows it; -1: nobody it knows."
)
RAFT_EPOCH: Final = _gauge("kafka_server_raft_metrics_current_epoch", "The quorum's epoch.")
RAFT_HIGH_WATERMARK: Final = _gauge(
    "kafka_server_raft_metrics_high_watermark", "Up to where the metadata log is committed."
)
RAFT_END: Final = _gauge("kafka_server_raft_metrics_log_end_offset", "Where this node's metadata log ends.")
RAFT_VOTERS: Final = _gauge("kafka_server_raft_metrics_number_of_voters", "Voters of the quorum.")
FETCH_SESSIONS: Final = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions that are remembered."
)
SESSION_PARTITIONS: Final = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in all fetch sessions."
)
SESSION_EVICTIONS: Final = _counter(
    "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", "Fetch sessions that made room for others."
)
CONNECTIONS: Final = _gauge("kafka_server_socketservermetrics_connection_count", "Open client connections.")
REFUSED_CONNECTIONS: Final = _counter(
    "moldau_connections_refused_total", "Connections closed on arrival because a limit was reached."
)
LOOP_STALL: Final = Metric(
    "moldau_loop_stall_seconds", "histogram", "How late timers of the event loop fired; everything waits for it."
)
BUGS: Final = _counter("moldau_bugs_total", "Requests on which this broker failed by a mistake of its own.")
DISK_FREE: Final = _gauge("moldau_disk_free_bytes", "Bytes free where the data is.")
DISK_TOTAL: Final = _gauge("moldau_disk_total_bytes", "Bytes in all where the data is.")
DISK_ERRORS: Final = _counter("moldau_disk_errors_total", "Reads and writes of logs that the disk refused.")
METADATA_OFFSET: Final = _gauge(
    "kafka_server_broker_metadata_metrics_last_applied_record_offset", "The newest metadata record in effect here."
)

CATALOGUE: Final[tuple[Metric, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
