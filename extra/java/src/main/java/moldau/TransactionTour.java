package moldau;

import static moldau.Clients.bytes;
import static moldau.Tour.equal;
import static moldau.Tour.isTrue;
import static moldau.Tour.rejected;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** What a Java program does with transactions: commit, abort, take over, offsets inside, and what an admin sees. */
final class TransactionTour {
    private static final Map<String, Object> COMMITTED = Map.of("isolation.level", "read_committed");
    private static final int IN_A_ROW = 100;

    private final Clients clients;
    private final Admin admin;
    private final boolean isV2;

    private TransactionTour(Clients clients, Admin admin, boolean isV2) {
        this.clients = clients;
        this.admin = admin;
        this.isV2 = isV2;
    }

    /** Arguments: the servers, and whether this client speaks transactions of version 2. */
    public static void main(String[] arguments) {
        Clients clients = new Clients(arguments[0]);
        Tour tour = new Tour();
        try (Admin admin = clients.admin()) {
            new TransactionTour(clients, admin, Boolean.parseBoolean(arguments[1])).plan(tour);
            System.exit(tour.run() == 0 ? 0 : 1);
        }
    }

    private void plan(Tour tour) {
        tour.step("the cluster has transactions of version 2", this::hasFeature);
        tour.step("what is committed is read, what is aborted is not", this::commitsAndAborts);
        tour.step("an open transaction holds readers up", this::holdsReadersUp);
        tour.step("many transactions in a row", this::manyInARow);
        tour.step("offsets are part of the transaction", this::offsetsInside);
        tour.step("a zombie is fenced", this::fencesZombie);
        tour.step("a transaction that takes too long is aborted", this::timesOut);
        tour.step("each transaction of version 2 has an epoch of its own", this::raisesEpochs);
        tour.step("an admin sees who has what open", this::isSeen);
        tour.step("an admin fences a producer", this::adminFences);
        tour.step("what is not there is not found", this::isNotFound);
    }

    private void hasFeature() throws Exception {
        Map<String, FinalizedVersionRange> features = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
        isTrue(features.containsKey("transaction.version"), "the features are " + features);
        equal((short) 2, features.get("transaction.version").maxVersionLevel());
    }

    private void commitsAndAborts() throws Exception {
        create("deeds", 2);
        try (KafkaProducer<byte[], byte[]> producer = transactional("doer", Map.of())) {
            for (String word : List.of("one", "two", "three")) {
                producer.beginTransaction();
                send(producer, "deeds", 0, word);
                send(producer, "deeds", 1, word);
                if (word.equals("two")) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    commit(producer);
                }
            }
        }
        for (int partition = 0; partition < 2; partition++) {
            equal(List.of("one", "three"), read("deeds", partition, 2, COMMITTED));
            equal(List.of("one", "two", "three"), read("deeds", partition, 3, Map.of()));
        }
    }

    private void holdsReadersUp() throws Exception {
        create("held", 1);
        clients.send(Map.of(), List.of(Clients.record("held", "before")));
        try (KafkaProducer<byte[], byte[]> producer = transactional("holder", Map.of())) {
            producer.beginTransaction();
            send(producer, "held", 0, "inside");
            producer.flush();
            clients.send(Map.of(), List.of(Clients.record("held", "behind")));
            equal(1L, stableEnd("held"));
            commit(producer);
        }
        equal(List.of("before", "inside", "behind"), read("held", 0, 3, COMMITTED));
    }

    private void manyInARow() throws Exception {
        create("row", 3);
        try (KafkaProducer<byte[], byte[]> producer = transactional("walker", Map.of())) {
            for (int number = 0; number < IN_A_ROW; number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    send(producer, "row", partition, "" + number);
                }
                commit(producer);
            }
        }
        List<String> expected = new ArrayList<>();
        Tour.range(0, IN_A_ROW).forEach(number -> expected.add("" + number));
        for (int partition = 0; partition < 3; partition++) {
            equal(expected, read("row", partition, IN_A_ROW, COMMITTED));
        }
    }

    private void offsetsInside() throws Exception {
        create("source", 1);
        create("target", 1);
        clients.send(Map.of(), Clients.numbered("source", 20, 0));
        Map<String, Object> settings = new HashMap<>(COMMITTED);
        settings.putAll(Map.of("group.id", "transformers", "enable.auto.commit", false, "auto.offset.reset", "earliest"));
        try (KafkaProducer<byte[], byte[]> producer = transactional("transformer", Map.of());
                KafkaConsumer<byte[], byte[]> consumer = clients.consumer(settings)) {
            consumer.subscribe(List.of("source"));
            Clients.poll(consumer, 20);
            transform(producer, consumer, 7);
            commit(producer);
            equal(7L, committed("transformers"));
            transform(producer, consumer, 13);
            producer.abortTransaction();
            equal(7L, committed("transformers"));
            transform(producer, consumer, 20);
            commit(producer);
            equal(20L, committed("transformers"));
        }
        equal(List.of("up to 7", "up to 20"), read("target", 0, 2, COMMITTED));
    }

    private void transform(KafkaProducer<byte[], byte[]> producer, KafkaConsumer<byte[], byte[]> consumer, long offset) {
        producer.beginTransaction();
        send(producer, "target", 0, "up to " + offset);
        producer.sendOffsetsToTransaction(
                Map.of(new TopicPartition("source", 0), new OffsetAndMetadata(offset)), consumer.groupMetadata());
    }

    private void fencesZombie() throws Exception {
        create("contested", 1);
        try (KafkaProducer<byte[], byte[]> zombie = transactional("contender", Map.of())) {
            zombie.beginTransaction();
            send(zombie, "contested", 0, "of the zombie");
            zombie.flush();
            try (KafkaProducer<byte[], byte[]> successor = transactional("contender", Map.of())) {
                successor.beginTransaction();
                send(successor, "contested", 0, "of the successor");
                commit(successor);
                rejected(KafkaException.class, zombie::commitTransaction);
            }
        }
        equal(List.of("of the successor"), read("contested", 0, 1, COMMITTED));
    }

    private void timesOut() throws Exception {
        create("forgotten", 1);
        try (KafkaProducer<byte[], byte[]> producer = transactional("sleeper", Map.of("transaction.timeout.ms", 1000))) {
            producer.beginTransaction();
            send(producer, "forgotten", 0, "too late");
            producer.flush();
            clients.send(Map.of(), List.of(Clients.record("forgotten", "behind")));
            equal(List.of("behind"), read("forgotten", 0, 1, COMMITTED));
            rejected(KafkaException.class, producer::commitTransaction);
        }
    }

    private void raisesEpochs() throws Exception {
        create("epochs", 1);
        try (KafkaProducer<byte[], byte[]> producer = transactional("counter", Map.of())) {
            int first = describe("counter").producerEpoch();
            for (int number = 0; number < 5; number++) {
                producer.beginTransaction();
                send(producer, "epochs", 0, "" + number);
                commit(producer);
            }
            equal(isV2 ? first + 5 : first, describe("counter").producerEpoch());
        }
    }

    private void isSeen() throws Exception {
        create("seen", 2);
        TopicPartition place = new TopicPartition("seen", 1);
        try (KafkaProducer<byte[], byte[]> producer = transactional("seen-doer", Map.of())) {
            producer.beginTransaction();
            send(producer, "seen", 1, "open");
            producer.flush();
            TransactionDescription described = describe("seen-doer");
            equal(TransactionState.ONGOING, described.state());
            equal(Set.of(place), described.topicPartitions());
            isTrue(described.transactionStartTimeMs().isPresent(), "it has begun");
            List<ProducerState> producers =
                    admin.describeProducers(List.of(place)).partitionResult(place).get().activeProducers();
            equal(1, producers.size());
            equal(described.producerId(), producers.get(0).producerId());
            equal(0L, producers.get(0).currentTransactionStartOffset().getAsLong());
            equal(TransactionState.ONGOING, listed("seen-doer"));
            commit(producer);
        }
        long deadlineNs = System.nanoTime() + Clients.WAIT.toNanos();
        while (describe("seen-doer").state() != TransactionState.COMPLETE_COMMIT) {
            isTrue(System.nanoTime() < deadlineNs, "it is never complete");
        }
    }

    private void adminFences() throws Exception {
        create("fenced", 1);
        try (KafkaProducer<byte[], byte[]> producer = transactional("fenced-doer", Map.of())) {
            producer.beginTransaction();
            send(producer, "fenced", 0, "never read");
            producer.flush();
            admin.fenceProducers(List.of("fenced-doer")).all().get();
            rejected(KafkaException.class, producer::commitTransaction);
        }
        clients.send(Map.of(), List.of(Clients.record("fenced", "behind")));
        equal(List.of("behind"), read("fenced", 0, 1, COMMITTED));
    }

    private void isNotFound() throws Exception {
        rejected(TransactionalIdNotFoundException.class,
                () -> admin.describeTransactions(List.of("nobody")).description("nobody").get());
    }

    private void create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
    }

    private KafkaProducer<byte[], byte[]> transactional(String id, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("transactional.id", id));
        all.putAll(settings);
        KafkaProducer<byte[], byte[]> producer = clients.producer(all);
        producer.initTransactions();
        return producer;
    }

    /** With the records out first: clients of version 2 may otherwise end the transaction ahead of its first record. */
    private static void commit(KafkaProducer<byte[], byte[]> producer) {
        producer.flush();
        producer.commitTransaction();
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String topic, int partition, String value) {
        producer.send(new ProducerRecord<>(topic, partition, null, bytes(value)));
    }

    private List<String> read(String topic, int partition, int count, Map<String, Object> settings) {
        TopicPartition place = new TopicPartition(topic, partition);
        try (KafkaConsumer<byte[], byte[]> consumer = clients.consumer(settings)) {
            consumer.assign(List.of(place));
            consumer.seek(place, 0);
            List<String> values = new ArrayList<>();
            Clients.poll(consumer, count).forEach(record -> values.add(new String(record.value())));
            consumer.poll(Duration.ZERO).forEach(record -> values.add(new String(record.value())));
            return values;
        }
    }

    private long stableEnd(String topic) throws Exception {
        TopicPartition place = new TopicPartition(topic, 0);
        ListOffsetsOptions options = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
        return admin.listOffsets(Map.of(place, OffsetSpec.latest()), options).partitionResult(place).get().offset();
    }

    private long committed(String group) throws Exception {
        return admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                .get(new TopicPartition("source", 0)).offset();
    }

    private TransactionDescription describe(String id) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get();
    }

    private TransactionState listed(String id) throws Exception {
        for (TransactionListing each : admin.listTransactions().all().get()) {
            if (each.transactionalId().equals(id)) {
                return each.state();
            }
        }
        throw new AssertionError(id + " is not listed");
    }
}
