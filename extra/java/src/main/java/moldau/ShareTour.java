package moldau;

import static moldau.ShareGroups.EXPLICIT;
import static moldau.ShareGroups.acknowledge;
import static moldau.ShareGroups.commit;
import static moldau.ShareGroups.deliveryCounts;
import static moldau.ShareGroups.isDrained;
import static moldau.ShareGroups.poll;
import static moldau.ShareGroups.values;
import static moldau.Tour.equal;
import static moldau.Tour.isTrue;
import static moldau.Tour.rejected;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;

/** What a Java program does with share groups: acknowledge in every way, renew, look, reset and clean up. */
final class ShareTour {
    private static final int LIMIT = 3;

    private final Clients clients;
    private final Admin admin;
    private final ShareGroups groups;

    private ShareTour(Clients clients, Admin admin) {
        this.clients = clients;
        this.admin = admin;
        this.groups = new ShareGroups(clients, admin);
    }

    /** Argument: the servers. Locks of the broker last two seconds. */
    public static void main(String[] arguments) {
        Clients clients = new Clients(arguments[0]);
        Tour tour = new Tour();
        try (Admin admin = clients.admin()) {
            new ShareTour(clients, admin).plan(tour);
            System.exit(tour.run() == 0 ? 0 : 1);
        }
    }

    private void plan(Tour tour) {
        tour.step("the next poll accepts the records of the last", this::implicit);
        tour.step("each record is accepted, released or rejected", this::explicit);
        tour.step("a record is archived after its last attempt", this::archived);
        tour.step("a member that closes releases what it has not acknowledged", this::closed);
        tour.step("the callback gets asynchronous commits", this::callback);
        tour.step("an expired lock releases its records", this::expired);
        tour.step("a renewed lock does not expire", this::renewed);
        tour.step("members share a partition", this::shared);
        tour.step("a member gets no more records than its limit", this::limited);
        tour.step("aborted records are skipped", this::aborted);
        tour.step("groups of a topic are independent", this::independent);
        tour.step("a group is described and listed", this::described);
        tour.step("offsets are listed, altered and deleted", this::altered);
        tour.step("an empty group is deleted", this::deleted);
    }

    private void implicit() throws Exception {
        String topic = groups.create("share-implicit", 50);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            equal(50, Set.copyOf(values(poll(consumer, 50))).size());
            isDrained(consumer);
        }
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            groups.produce(topic, Map.of(), 50, 51);
            equal(List.of("50"), values(poll(consumer, 1)));
        }
    }

    private void explicit() throws Exception {
        String topic = groups.create("share-explicit", 4);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, EXPLICIT)) {
            List<ConsumerRecord<byte[], byte[]>> first = poll(consumer, 4);
            equal(List.of(1, 1, 1, 1), deliveryCounts(first));
            acknowledge(consumer, first, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT,
                    AcknowledgeType.RELEASE);
            List<ConsumerRecord<byte[], byte[]>> again = new ArrayList<>();
            while (again.size() < 2) {
                List<ConsumerRecord<byte[], byte[]>> more = poll(consumer, 1);
                acknowledge(consumer, more, AcknowledgeType.ACCEPT);
                again.addAll(more);
            }
            equal(List.of("1", "3"), values(again));
            equal(List.of(2, 2), deliveryCounts(again));
            isDrained(consumer);
        }
    }

    private void archived() throws Exception {
        String topic = groups.create("share-archived", 1);
        groups.configure(topic, "share.delivery.count.limit", "" + LIMIT);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, EXPLICIT)) {
            for (int attempt = 1; attempt <= LIMIT; attempt++) {
                List<ConsumerRecord<byte[], byte[]>> records = poll(consumer, 1);
                equal(List.of(attempt), deliveryCounts(records));
                acknowledge(consumer, records, AcknowledgeType.RELEASE);
            }
            isDrained(consumer);
        }
    }

    private void closed() throws Exception {
        String topic = groups.create("share-closed", 3);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, EXPLICIT)) {
            consumer.acknowledge(poll(consumer, 3).get(1)); // its session ends with this acknowledgement
        }
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            equal(List.of("0", "2"), values(poll(consumer, 2)));
        }
    }

    private void callback() throws Exception {
        String topic = groups.create("share-callback", 3);
        Set<Long> committed = new TreeSet<>();
        List<Exception> errors = new ArrayList<>();
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                offsets.values().forEach(committed::addAll);
                if (error != null) {
                    errors.add(error);
                }
            });
            poll(consumer, 3);
            consumer.commitAsync();
            Member.until("the callback is called", () -> {
                consumer.poll(Duration.ofMillis(50));
                return committed.size() == 3;
            });
        }
        equal(List.of(), errors);
        equal(Set.of(0L, 1L, 2L), committed);
    }

    private void expired() throws Exception {
        String topic = groups.create("share-expired", 2);
        try (KafkaShareConsumer<byte[], byte[]> holder = groups.join(topic, topic, EXPLICIT);
                KafkaShareConsumer<byte[], byte[]> other = groups.join(topic, topic, Map.of())) {
            List<ConsumerRecord<byte[], byte[]>> held = poll(holder, 2);
            equal(Optional.of(2000), holder.acquisitionLockTimeoutMs());
            List<ConsumerRecord<byte[], byte[]>> again = poll(other, 2);
            equal(List.of("0", "1"), values(again));
            equal(List.of(2, 2), deliveryCounts(again));
            commit(other);
            held.forEach(each -> holder.acknowledge(each));
            holder.commitSync(Clients.WAIT).forEach((partition, error) ->
                    isTrue(error.isPresent(), "an acknowledgement after the lock had expired was accepted"));
        }
    }

    private void renewed() throws Exception {
        String topic = groups.create("share-renewed", 1);
        try (KafkaShareConsumer<byte[], byte[]> holder = groups.join(topic, topic, EXPLICIT);
                KafkaShareConsumer<byte[], byte[]> other = groups.join(topic, topic, Map.of())) {
            ConsumerRecord<byte[], byte[]> record = poll(holder, 1).get(0);
            long end = System.nanoTime() + Duration.ofSeconds(3).toNanos();
            while (System.nanoTime() < end) {
                holder.acknowledge(record, AcknowledgeType.RENEW);
                commit(holder);
                record = poll(holder, 1).get(0); // the client returns renewed records at the next poll
                equal(1, deliveryCounts(List.of(record)).get(0));
                equal(0, other.poll(Duration.ofMillis(300)).count());
            }
            acknowledge(holder, List.of(record), AcknowledgeType.ACCEPT);
            isDrained(other);
        }
    }

    private void shared() throws Exception {
        String topic = groups.create("share-shared", 0);
        Set<String> all = new TreeSet<>();
        Set<String> expected = new TreeSet<>();
        int received = 0;
        try (KafkaShareConsumer<byte[], byte[]> one = groups.join(topic, topic, Map.of());
                KafkaShareConsumer<byte[], byte[]> two = groups.join(topic, topic, Map.of())) {
            one.poll(Duration.ofMillis(300));
            two.poll(Duration.ofMillis(300));
            for (int number = 0; number < 40; number += 4) {
                groups.produce(topic, Map.of(), number, number + 4);
            }
            for (int number = 0; number < 40; number++) {
                expected.add("" + number);
            }
            long deadline = System.nanoTime() + Clients.WAIT.toNanos();
            while (received < 40) {
                isTrue(System.nanoTime() < deadline, received + " of 40 records came");
                for (KafkaShareConsumer<byte[], byte[]> each : List.of(one, two)) {
                    for (ConsumerRecord<byte[], byte[]> record : each.poll(Duration.ofMillis(100))) {
                        all.add(values(List.of(record)).get(0));
                        received++;
                    }
                }
            }
            isDrained(one);
            isDrained(two);
        }
        equal(expected, all);
        equal(40, received);
    }

    private void limited() throws Exception {
        String topic = groups.create("share-limited", 10);
        Map<String, Object> settings = new HashMap<>(EXPLICIT);
        settings.putAll(Map.of("share.acquire.mode", "record_limit", "max.poll.records", 3));
        try (KafkaShareConsumer<byte[], byte[]> one = groups.join(topic, topic, settings);
                KafkaShareConsumer<byte[], byte[]> two = groups.join(topic, topic, settings)) {
            equal(List.of("0", "1", "2"), values(poll(one, 1)));
            equal(List.of("3", "4", "5"), values(poll(two, 1)));
        }
    }

    private void aborted() throws Exception {
        String topic = groups.create("share-aborted", 1);
        groups.configure(topic, "share.isolation.level", "read_committed");
        try (KafkaProducer<byte[], byte[]> producer = clients.producer(Map.of("transactional.id", "share-aborted"))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(Clients.record(topic, "aborted")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(Clients.record(topic, "committed")).get();
            producer.commitTransaction();
        }
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            equal(List.of("0", "committed"), values(poll(consumer, 2)));
            isDrained(consumer);
        }
    }

    private void independent() throws Exception {
        String topic = groups.create("share-independent", 5);
        groups.configure("share-other", "share.auto.offset.reset", "earliest");
        for (String group : List.of(topic, "share-other")) {
            try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(group, topic, Map.of())) {
                equal(List.of("0", "1", "2", "3", "4"), values(poll(consumer, 5)));
            }
        }
    }

    private ShareGroupDescription describe(String group) throws Exception {
        return admin.describeShareGroups(List.of(group)).all().get().get(group);
    }

    private void described() throws Exception {
        String topic = groups.create("share-described", 1);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            poll(consumer, 1);
            ShareGroupDescription found = describe(topic);
            equal(GroupState.STABLE, found.groupState());
            equal(Set.of(new TopicPartition(topic, 0)), found.members().iterator().next().assignment().topicPartitions());
            rejected(GroupNotEmptyException.class, () -> admin.deleteShareGroups(List.of(topic)).all().get());
            rejected(GroupNotEmptyException.class, () -> admin.alterShareGroupOffsets(topic,
                    Map.of(new TopicPartition(topic, 0), 0L)).all().get());
        }
        equal(GroupState.EMPTY, describe(topic).groupState());
        Map<String, String> listed = new HashMap<>();
        admin.listGroups().all().get().forEach(each -> listed.put(each.groupId(), "" + each.type().orElse(null)));
        equal("Share", listed.get(topic));
    }

    private SharePartitionOffsetInfo offset(String group) throws Exception {
        return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group)
                .get().get(new TopicPartition(group, 0));
    }

    private void altered() throws Exception {
        String topic = groups.create("share-altered", 10);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            poll(consumer, 10);
            commit(consumer);
        }
        equal(10L, offset(topic).startOffset());
        equal(Optional.of(0L), offset(topic).lag());
        admin.alterShareGroupOffsets(topic, Map.of(new TopicPartition(topic, 0), 7L)).all().get();
        equal(7L, offset(topic).startOffset());
        equal(Optional.of(3L), offset(topic).lag());
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            equal(List.of("7", "8", "9"), values(poll(consumer, 3)));
        }
        admin.deleteShareGroupOffsets(topic, Set.of(topic)).all().get();
        equal(null, offset(topic));
    }

    private void deleted() throws Exception {
        String topic = groups.create("share-deleted", 1);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            poll(consumer, 1);
        }
        admin.deleteShareGroups(List.of(topic)).all().get();
        rejected(GroupIdNotFoundException.class, () -> describe(topic));
        rejected(GroupIdNotFoundException.class, () -> admin.deleteShareGroups(List.of(topic)).all().get());
    }
}
