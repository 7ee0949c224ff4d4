package moldau;

import static moldau.Clients.bytes;
import static moldau.Clients.numbered;
import static moldau.Clients.record;
import static moldau.Tour.equal;
import static moldau.Tour.isTrue;
import static moldau.Tour.rejected;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.record.TimestampType;

/** What a Java program does with a broker: produce and consume in every way. */
final class ClientTour {
    private static final long START_MS = 1_700_000_000_000L;
    private static final Map<String, Object> DEFAULTS = Map.of();

    private final Clients clients;
    private final Admin admin;

    private ClientTour(Clients clients, Admin admin) {
        this.clients = clients;
        this.admin = admin;
    }

    public static void main(String[] arguments) {
        Clients clients = new Clients(arguments[0]);
        Tour tour = new Tour();
        try (Admin admin = clients.admin()) {
            new ClientTour(clients, admin).plan(tour);
            new AdminTour(clients, admin).plan(tour);
            System.exit(tour.run() == 0 ? 0 : 1);
        }
    }

    private void plan(Tour tour) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            tour.step("records come back with " + codec, () -> comeBack(codec));
        }
        tour.step("every acks is served", this::everyAcks);
        tour.step("an idempotent producer fills a partition in order", this::idempotent);
        tour.step("null keys and null values come back", this::nulls);
        tour.step("a consumer begins at any offset", this::anyOffset);
        tour.step("a consumer begins at any time", this::anyTime);
        tour.step("a consumer finds the beginning and the end", this::beginningAndEnd);
        tour.step("an offset out of range is told", this::outOfRange);
        tour.step("a waiting consumer gets a record soon", this::longPoll);
        tour.step("many partitions come in one poll", this::manyPartitions);
        tour.step("the log's own time is told", this::logAppendTime);
        tour.step("a record of a mebibyte goes through", this::large);
        tour.step("a record that is too large is rejected", this::tooLarge);
        tour.step("a record from the far future is rejected", this::farFuture);
        tour.step("a topic that is not there is told", this::unknownTopic);
    }

    private String topic(int partitions, Map<String, String> configs) throws Exception {
        String name = "java-" + UUID.randomUUID();
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs))).all().get();
        return name;
    }

    private void comeBack(String codec) throws Exception {
        String topic = topic(1, Map.of());
        List<RecordMetadata> told = clients.send(Map.of("compression.type", codec), numbered(topic, 300, START_MS));
        equal(299L, told.get(299).offset());
        for (String isolation : List.of("read_committed", "read_uncommitted")) {
            List<ConsumerRecord<byte[], byte[]>> got = clients.read(topic, 0, 300, Map.of("isolation.level", isolation));
            for (int number = 0; number < 300; number++) {
                ConsumerRecord<byte[], byte[]> each = got.get(number);
                equal((long) number, each.offset());
                equal(START_MS + number * 1000L, each.timestamp());
                equal("k" + number, new String(each.key()));
                equal("" + number, new String(each.value()));
                equal("" + number, new String(each.headers().lastHeader("number").value()));
                equal(null, each.headers().lastHeader("null").value());
            }
        }
    }

    private void everyAcks() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = topic(1, Map.of());
            clients.send(Map.of("acks", acks, "enable.idempotence", false), numbered(topic, 20, START_MS));
            equal(20, clients.read(topic, 0, 20, DEFAULTS).size());
        }
    }

    private void idempotent() throws Exception {
        String topic = topic(1, Map.of());
        Map<String, Object> small = Map.of("enable.idempotence", true, "batch.size", 200, "linger.ms", 0);
        List<RecordMetadata> told = clients.send(small, numbered(topic, 2000, START_MS));
        equal(Tour.range(0, 2000), told.stream().map(RecordMetadata::offset).toList());
        List<String> values = clients.read(topic, 0, 2000, DEFAULTS).stream().map(each -> new String(each.value())).toList();
        equal(Tour.range(0, 2000).stream().map(String::valueOf).toList(), values);
    }

    private void nulls() throws Exception {
        String topic = topic(1, Map.of());
        clients.send(DEFAULTS, List.of(
                new ProducerRecord<>(topic, 0, bytes("tombstone"), null),
                new ProducerRecord<>(topic, 0, null, bytes("keyless")),
                new ProducerRecord<>(topic, 0, null, null)));
        List<ConsumerRecord<byte[], byte[]>> got = clients.read(topic, 0, 3, DEFAULTS);
        equal(null, got.get(0).value());
        equal(null, got.get(1).key());
        equal(null, got.get(2).value());
    }

    private void anyOffset() throws Exception {
        String topic = topic(1, Map.of("segment.bytes", "1048576", "index.interval.bytes", "100"));
        clients.send(Map.of("batch.size", 500), numbered(topic, 500, START_MS));
        for (int first : new int[] {0, 1, 17, 250, 499}) {
            List<ConsumerRecord<byte[], byte[]>> got = clients.read(topic, first, 500 - first, DEFAULTS);
            equal(Tour.range(first, 500), got.stream().map(ConsumerRecord::offset).toList());
        }
    }

    private void anyTime() throws Exception {
        String topic = topic(1, Map.of("index.interval.bytes", "100"));
        clients.send(Map.of("batch.size", 500), numbered(topic, 500, START_MS));
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = clients.consumer(DEFAULTS)) {
            for (int number : new int[] {0, 1, 250, 499}) {
                Map<TopicPartition, Long> requested = Map.of(partition, START_MS + number * 1000L);
                OffsetAndTimestamp found = consumer.offsetsForTimes(requested).get(partition);
                equal((long) number, found.offset());
                equal(START_MS + number * 1000L, found.timestamp());
            }
            equal(null, consumer.offsetsForTimes(Map.of(partition, START_MS + 500_000)).get(partition));
        }
    }

    private void beginningAndEnd() throws Exception {
        String topic = topic(1, Map.of());
        clients.send(DEFAULTS, numbered(topic, 10, START_MS));
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = clients.consumer(DEFAULTS)) {
            equal(Map.of(partition, 0L), consumer.beginningOffsets(Set.of(partition)));
            equal(Map.of(partition, 10L), consumer.endOffsets(Set.of(partition)));
            consumer.assign(List.of(partition));
            consumer.seekToEnd(List.of(partition));
            equal(10L, consumer.position(partition));
            consumer.seekToBeginning(List.of(partition));
            equal(10, Clients.poll(consumer, 10).size());
        }
    }

    private void outOfRange() throws Exception {
        String topic = topic(1, Map.of());
        rejected(OffsetOutOfRangeException.class, () -> clients.read(topic, 5, 1, DEFAULTS));
    }

    private void longPoll() throws Exception {
        String topic = topic(1, Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = clients.consumer(Map.of("fetch.max.wait.ms", 10_000));
                KafkaProducer<byte[], byte[]> producer = clients.producer(Map.of("linger.ms", 0))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 0);
            List<Long> waitsMs = new ArrayList<>();
            for (int turn = 0; turn < 20; turn++) {
                long sentNs = System.nanoTime();
                producer.send(record(topic, "" + turn)).get();
                equal("" + turn, new String(Clients.poll(consumer, 1).get(0).value()));
                waitsMs.add((System.nanoTime() - sentNs) / 1_000_000);
            }
            waitsMs.sort(null);
            isTrue(waitsMs.get(10) < 100, "the median was " + waitsMs.get(10) + " ms");
        }
    }

    private void manyPartitions() throws Exception {
        String topic = topic(50, Map.of());
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        List<TopicPartition> partitions = new ArrayList<>();
        for (int index = 0; index < 50; index++) {
            partitions.add(new TopicPartition(topic, index));
            records.add(new ProducerRecord<>(topic, index, null, bytes("" + index)));
        }
        clients.send(DEFAULTS, records);
        try (KafkaConsumer<byte[], byte[]> consumer = clients.consumer(Map.of("auto.offset.reset", "earliest"))) {
            consumer.assign(partitions);
            equal(50L, Clients.poll(consumer, 50).stream().map(ConsumerRecord::partition).distinct().count());
        }
    }

    private void logAppendTime() throws Exception {
        String topic = topic(1, Map.of("message.timestamp.type", "LogAppendTime"));
        List<RecordMetadata> told = clients.send(DEFAULTS, numbered(topic, 1, START_MS));
        ConsumerRecord<byte[], byte[]> got = clients.read(topic, 0, 1, DEFAULTS).get(0);
        equal(TimestampType.LOG_APPEND_TIME, got.timestampType());
        isTrue(got.timestamp() > START_MS, "it is newer");
        equal(got.timestamp(), told.get(0).timestamp());
    }

    private void large() throws Exception {
        String topic = topic(1, Map.of("max.message.bytes", "2097152"));
        byte[] value = new byte[1 << 20];
        Arrays.fill(value, (byte) 'x');
        clients.send(Map.of("max.request.size", 1 << 21), List.of(new ProducerRecord<>(topic, 0, null, value)));
        equal(1 << 20, clients.read(topic, 0, 1, DEFAULTS).get(0).value().length);
    }

    private void tooLarge() throws Exception {
        String topic = topic(1, Map.of("max.message.bytes", "1000"));
        rejected(RecordTooLargeException.class, () -> clients.send(DEFAULTS, List.of(record(topic, "x".repeat(2000)))));
        equal(50, clients.send(Map.of("batch.size", 500), numbered(topic, 50, START_MS)).size());
    }

    private void farFuture() throws Exception {
        String topic = topic(1, Map.of());
        rejected(InvalidTimestampException.class, () -> clients.send(DEFAULTS, numbered(topic, 1, 4_102_444_800_000L)));
    }

    private void unknownTopic() throws Exception {
        Map<String, Object> impatient = Map.of("max.block.ms", 500);
        rejected(TimeoutException.class, () -> clients.send(impatient, List.of(record("nowhere", "to go"))));
    }
}
