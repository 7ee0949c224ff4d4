"""Every metric by name, with its kind, labels and a sentence. The names are those that Kafka dashboards use."""

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "gauge", "summary", "histogram"]
COUNTER: Final[Kind] = "counter"
GAUGE: Final[Kind] = "gauge"
CLIENT_METRICS_PREFIX: Final = "kafka_client_"  # of metrics that clients push


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
    "kafka_server_brokertopicmetrics_messagesin_total", "Records appended; without a topic: to all topics.", "topic"
)
BYTES_IN: Final = _counter(
    "kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches appended.", "topic"
)
BYTES_OUT: Final = _counter(
    "kafka_server_brokertopicmetrics_bytesout_total", "Bytes of record batches sent to consumers.", "topic"
)
REPLICATION_IN: Final = _counter(
    "kafka_server_brokertopicmetrics_replicationbytesin_total",
    "Bytes of record batches fetched from leaders.",
    "topic",
)
REPLICATION_OUT: Final = _counter(
    "kafka_server_brokertopicmetrics_replicationbytesout_total",
    "Bytes of record batches sent to followers.",
    "topic",
)
BYTES_REJECTED: Final = _counter(
    "kafka_server_brokertopicmetrics_bytesrejected_total", "Bytes of rejected record batches."
)
PRODUCES: Final = _counter(
    "kafka_server_brokertopicmetrics_totalproducerequests_total", "Batches in Produce requests.", "topic"
)
FETCHES: Final = _counter(
    "kafka_server_brokertopicmetrics_totalfetchrequests_total",
    "Partitions read by Fetch requests; a session reads those with news.",
    "topic",
)
FAILED_PRODUCES: Final = _counter("kafka_server_brokertopicmetrics_failedproducerequests_total", "Rejected batches.")
FAILED_FETCHES: Final = _counter(
    "kafka_server_brokertopicmetrics_failedfetchrequests_total", "Partitions that could not be read."
)

REQUESTS: Final = _counter("kafka_network_requestmetrics_requests_total", "Completed requests.", "request")
REQUEST_ERRORS: Final = _counter(
    "kafka_network_requestmetrics_errors_total", "Requests that failed with an unexpected error.", "request"
)
REQUEST_TIME: Final = Metric(
    "kafka_network_requestmetrics_totaltimems",
    "summary",
    "Milliseconds from a request's arrival to its response; quantiles are upper bounds within a factor of two.",
    ("request",),
)

LOG_SIZE: Final = _gauge("kafka_log_log_size", "Bytes of a partition's log.", "topic", "partition")
LOG_START: Final = _gauge("kafka_log_log_logstartoffset", "The first offset of a log.", "topic", "partition")
LOG_END: Final = _gauge("kafka_log_log_logendoffset", "The log end offset.", "topic", "partition")
LOG_SEGMENTS: Final = _gauge("kafka_log_log_numlogsegments", "Segments of a log.", "topic", "partition")
PARTITION_END: Final = _gauge(
    "kafka_topic_partition_current_offset",
    "The high watermark of a partition that this broker leads.",
    "topic",
    "partition",
)
GROUP_OFFSET: Final = _gauge(
    "kafka_consumergroup_current_offset",
    "The committed offset of a group for a partition.",
    "consumergroup",
    "topic",
    "partition",
)
GROUP_LAG: Final = _gauge(
    "kafka_consumergroup_lag",
    "Records of a partition beyond the committed offset of a group.",
    "consumergroup",
    "topic",
    "partition",
)
STABLE_LAG: Final = _gauge(
    "kafka_cluster_partition_laststableoffsetlag",
    "Records between the last stable offset and the high watermark of a partition that this broker leads.",
    "topic",
    "partition",
)
OPEN_TRANSACTIONS: Final = _gauge("moldau_transactions_open", "Incomplete transactions that this broker coordinates.")
OLDEST_TRANSACTION: Final = _gauge(
    "moldau_transaction_oldest_milliseconds", "The age of the oldest incomplete transaction."
)
ENDED_TRANSACTIONS: Final = _counter(
    "moldau_transactions_ended_total", "Completed transactions that this broker coordinated, by outcome.", "outcome"
)
MARKERS_WAITING: Final = _gauge(
    "moldau_transaction_markers_waiting", "Partitions that wait for the marker of an ended transaction."
)
SHARE_IN_FLIGHT: Final = _gauge(
    "kafka_server_sharepartitionmetrics_inflightmessagecount",
    "Records between the start and end offsets of the share partitions that this broker leads, by share group.",
    "group",
)
SHARE_RECORDS: Final = _gauge(
    "moldau_share_group_records",
    "In-flight records of a share group on this broker, by state: available, waiting for the end of a back-off, "
    "acquired by a member, or archiving: waiting for a dead letter.",
    "group",
    "state",
)
SHARE_OLDEST_AGE: Final = _gauge(
    "moldau_share_group_oldest_unacknowledged_milliseconds",
    "The age, by its timestamp, of the oldest in-flight record of a share group on this broker.",
    "group",
)
SHARE_REDELIVERIES: Final = _counter(
    "moldau_share_group_redeliveries_total",
    "Records that members of a share group acquired and that were delivered before.",
    "group",
)
SHARE_DEAD_LETTERS: Final = _counter(
    "moldau_share_group_dead_letters_total", "Dead letters that this broker wrote for a share group.", "group"
)
SHARE_DEAD_LETTER_FAILURES: Final = _counter(
    "moldau_share_dead_letter_failures_total",
    "Failed attempts to write dead letters; they are repeated, and the log has the reason.",
)
SHARE_ACKNOWLEDGEMENTS: Final = _counter(
    "kafka_server_sharegroupmetrics_recordacknowledgements_total",
    "Records that members of share groups acknowledged, by type: Accept, Release, Reject, Renew.",
    "acktype",
)
SHARE_LOCK_TIMEOUTS: Final = _counter(
    "kafka_server_sharepartitionmetrics_acquisitionlocktimeout_total",
    "Records of share groups whose acquisition lock expired.",
)
SHARE_LATENCY: Final = Metric(
    "moldau_share_acknowledgement_milliseconds",
    "summary",
    "Milliseconds until the acknowledgements of a member were durable, per partition.",
)
FLUSH_TIME: Final = Metric(
    "kafka_log_logflushstats_logflushrateandtimems", "summary", "Milliseconds that flushes to disk took."
)

PARTITIONS: Final = _gauge("kafka_server_replicamanager_partitioncount", "Partitions on this broker.")
LEADERS: Final = _gauge("kafka_server_replicamanager_leadercount", "Partitions this broker leads.")
UNDER_REPLICATED: Final = _gauge(
    "kafka_server_replicamanager_underreplicatedpartitions",
    "Partitions that this broker leads with out-of-sync replicas.",
)
UNDER_MIN_ISR: Final = _gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Partitions that this broker leads with an ISR below min.insync.replicas: acks=all is rejected.",
)
AT_MIN_ISR: Final = _gauge(
    "kafka_server_replicamanager_atminisrpartitioncount",
    "Partitions that this broker leads with an ISR of exactly min.insync.replicas.",
)
REASSIGNING: Final = _gauge(
    "kafka_server_replicamanager_reassigningpartitions", "Partitions that this broker leads that are being reassigned."
)
OFFLINE_REPLICAS: Final = _gauge(
    "kafka_server_replicamanager_offlinereplicacount", "Replicas of this broker whose log cannot be used."
)
ISR_SHRINKS: Final = _counter(
    "kafka_server_replicamanager_isrshrinks_total", "Replicas that left the ISR of a partition that this broker leads."
)
ISR_EXPANDS: Final = _counter(
    "kafka_server_replicamanager_isrexpands_total",
    "Replicas that joined the ISR of a partition that this broker leads.",
)
ISR_FAILURES: Final = _counter(
    "kafka_server_replicamanager_failedisrupdates_total", "ISR changes that the controller rejected."
)
FOLLOWER_LAG: Final = _gauge(
    "moldau_follower_lag_max_records", "The largest lag of a follower, over all partitions that this broker leads."
)
IMBALANCE: Final = _gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions whose leader is not the preferred replica.",
)
ACTIVE_BROKERS: Final = _gauge("kafka_controller_kafkacontroller_activebrokercount", "Unfenced brokers.")
FENCED_BROKERS: Final = _gauge(
    "kafka_controller_kafkacontroller_fencedbrokercount", "Registered brokers that are fenced."
)
OFFLINE: Final = _gauge("kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without a leader.")
ACTIVE_CONTROLLERS: Final = _gauge(
    "kafka_controller_kafkacontroller_activecontrollercount", "1 if this node is the active controller."
)
TOPICS: Final = _gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics in the cluster.")
ALL_PARTITIONS: Final = _gauge("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions in the cluster.")
RAFT_STATE: Final = _gauge(
    "kafka_server_raft_metrics_current_state", "1 for the role of this node in the quorum: leader, follower …", "state"
)
RAFT_LEADER: Final = _gauge("kafka_server_raft_metrics_current_leader", "The id of the quorum leader; -1: unknown.")
RAFT_EPOCH: Final = _gauge("kafka_server_raft_metrics_current_epoch", "The quorum's epoch.")
RAFT_HIGH_WATERMARK: Final = _gauge(
    "kafka_server_raft_metrics_high_watermark", "The high watermark of the metadata log."
)
RAFT_END: Final = _gauge("kafka_server_raft_metrics_log_end_offset", "The log end offset of this node's metadata log.")
RAFT_VOTERS: Final = _gauge("kafka_server_raft_metrics_number_of_voters", "Voters of the quorum.")
FETCH_SESSIONS: Final = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Incremental fetch sessions."
)
SESSION_PARTITIONS: Final = _gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in all fetch sessions."
)
SESSION_EVICTIONS: Final = _counter(
    "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total", "Evicted fetch sessions."
)
CONNECTIONS: Final = _gauge("kafka_server_socketservermetrics_connection_count", "Open client connections.")
REJECTED_CONNECTIONS: Final = _counter(
    "moldau_connections_refused_total", "Connections closed on arrival because a limit was reached."
)
CONNECTIONS_ACCEPTED: Final = _counter(
    "kafka_server_socketservermetrics_connection_creation_total", "Client connections that were accepted."
)
CONNECTIONS_DELAYED: Final = _counter(
    "moldau_connections_delayed_total", "Connections that were served later because of max.connection.creation.rate."
)
CONNECTIONS_OVER_IP_RATE: Final = _counter(
    "moldau_connections_over_ip_rate_total", "Connections closed because of an address's connection_creation_rate."
)
PRODUCE_QUOTA_RATE: Final = _gauge(
    "kafka_server_produce_byte_rate", "Bytes per second of produce requests, by quota entity.", "user", "client_id"
)
PRODUCE_THROTTLE_TIME: Final = _gauge(
    "kafka_server_produce_throttle_time", "Average throttle time in milliseconds.", "user", "client_id"
)
FETCH_QUOTA_RATE: Final = _gauge(
    "kafka_server_fetch_byte_rate", "Bytes per second of fetched records, by quota entity.", "user", "client_id"
)
FETCH_THROTTLE_TIME: Final = _gauge(
    "kafka_server_fetch_throttle_time", "Average throttle time in milliseconds.", "user", "client_id"
)
REQUEST_QUOTA_TIME: Final = _gauge(
    "kafka_server_request_request_time",
    "Time of request handlers in percent of one core, by quota entity.",
    "user",
    "client_id",
)
REQUEST_THROTTLE_TIME: Final = _gauge(
    "kafka_server_request_throttle_time", "Average throttle time in milliseconds.", "user", "client_id"
)
MUTATION_QUOTA_RATE: Final = _gauge(
    "kafka_server_controllermutation_mutation_rate",
    "Partitions created and deleted per second, by quota entity, on the active controller.",
    "user",
    "client_id",
)
MUTATION_TOKENS: Final = _gauge(
    "kafka_server_controllermutation_tokens",
    "Partitions that may be created or deleted at once; negative: the quota is exceeded.",
    "user",
    "client_id",
)
MUTATION_THROTTLE_TIME: Final = _gauge(
    "kafka_server_controllermutation_throttle_time", "Average throttle time in milliseconds.", "user", "client_id"
)
CLIENT_INSTANCES: Final = _gauge(
    "kafka_server_client_metrics_instance_count", "Client instances that push metrics to this broker."
)
CLIENT_PUSHES: Final = _counter("kafka_server_client_metrics_plugin_export_total", "Pushes of metrics by clients.")
CLIENT_FAILED_PUSHES: Final = _counter(
    "kafka_server_client_metrics_plugin_error_total", "Pushes of metrics that could not be read."
)
CLIENT_THROTTLES: Final = _counter(
    "kafka_server_client_metrics_throttle_total", "Telemetry requests that came before the push interval was over."
)
CLIENT_UNKNOWN_SUBSCRIPTIONS: Final = _counter(
    "kafka_server_client_metrics_unknown_subscription_request_total", "Pushes for an outdated subscription."
)
CLIENT_DROPPED_METRICS: Final = _counter(
    "moldau_client_metrics_dropped_total", "Pushed metrics that were not requested, or exceed the limits of the page."
)
LOOP_STALL: Final = Metric(
    "moldau_loop_stall_seconds", "histogram", "Lag of the event loop: how late a periodic timer fired."
)
BUGS: Final = _counter("moldau_bugs_total", "Requests that failed because of a bug in the broker.")
DISK_FREE: Final = _gauge("moldau_disk_free_bytes", "Free bytes of a log dir's file system.", "log_dir")
DISK_TOTAL: Final = _gauge("moldau_disk_total_bytes", "Total bytes of a log dir's file system.", "log_dir")
DISK_ERRORS: Final = _counter("moldau_disk_errors_total", "Failed reads and writes of logs.")
OFFLINE_LOG_DIRS: Final = _gauge(
    "kafka_log_logmanager_offlinelogdirectorycount", "Log dirs that cannot be written: they are full or failing."
)
LOG_DIR_OFFLINE: Final = _gauge(
    "kafka_log_logmanager_logdirectoryoffline", "1 if this log dir cannot be written.", "log_dir"
)
SCRUBBED_BYTES: Final = _counter("moldau_scrub_bytes_total", "Bytes of closed segments that the scrubber verified.")
SCRUB_PASSES: Final = _counter("moldau_scrub_passes_total", "Complete passes of the scrubber over all closed segments.")
SCRUB_PROGRESS: Final = _gauge("moldau_scrub_progress_ratio", "The share of the current pass that is done.")
CORRUPT_RANGES: Final = _counter("moldau_scrub_corrupt_ranges_total", "Corrupt ranges found by verifying segments.")
RESTORED_INDEXES: Final = _counter(
    "moldau_scrub_restored_indexes_total", "Segments whose index files did not match the log and were computed again."
)
METADATA_OFFSET: Final = _gauge(
    "kafka_server_broker_metadata_metrics_last_applied_record_offset",
    "The offset of the newest metadata record in effect on this broker.",
)

CATALOGUE: Final[tuple[Metric, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
