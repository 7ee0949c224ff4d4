package moldau;

import static moldau.Clients.record;
import static moldau.Tour.equal;
import static moldau.Tour.isTrue;
import static moldau.Tour.rejected;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** What a Java program does with groups: share partitions in every way, commit, come back, look and clean up. */
final class GroupTour {
    private static final int PARTITIONS = 6;
    private static final int RECORDS = 120;

    private final Clients clients;
    private final Admin admin;
    private final Map<String, Map<String, Object>> ways = new HashMap<>();

    private GroupTour(Clients clients, Admin admin, boolean hasConsumerProtocol) {
        this.clients = clients;
        this.admin = admin;
        for (String name : List.of("Range", "RoundRobin", "Sticky", "CooperativeSticky")) {
            ways.put(name.toLowerCase(), Map.of("partition.assignment.strategy",
                    "org.apache.kafka.clients.consumer." + name + "Assignor"));
        }
        if (hasConsumerProtocol) {
            for (String assignor : List.of("uniform", "range")) {
                ways.put("consumer-" + assignor,
                        Map.of("group.protocol", "consumer", "group.remote.assignor", assignor));
            }
        }
    }

    /** Arguments: the servers, and whether this client knows the server-side protocol. */
    public static void main(String[] arguments) {
        Clients clients = new Clients(arguments[0]);
        Tour tour = new Tour();
        try (Admin admin = clients.admin()) {
            new GroupTour(clients, admin, Boolean.parseBoolean(arguments[1])).plan(tour);
            System.exit(tour.run() == 0 ? 0 : 1);
        }
    }

    private void plan(Tour tour) {
        for (String way : new TreeSet<>(ways.keySet())) {
            tour.step("members come, share and go: " + way, () -> comeAndGo(way));
            tour.step("a group goes on where it was: " + way, () -> goesOn(way));
            tour.step("new partitions are given out: " + way, () -> grows(way));
        }
        tour.step("each group sees everything", this::eachSeesAll);
        tour.step("a static member comes back without a rebalance", this::staticMember);
        tour.step("offsets are committed with their notes", this::commits);
        tour.step("whoever was thrown out cannot commit", this::fenced);
        tour.step("a live group is described", this::described);
        tour.step("offsets of a group are altered and deleted", this::altered);
        tour.step("a group is deleted once it is empty", this::deleted);
    }

    private String newTopic(String name) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, PARTITIONS, (short) 1))).all().get();
        return name;
    }

    private Set<String> fill(String topic, int partitions) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = 0; number < RECORDS; number++) {
            records.add(new ProducerRecord<>(topic, number % partitions, null, Clients.bytes("" + number)));
        }
        Set<String> places = new TreeSet<>();
        clients.send(Map.of(), records).forEach(told -> places.add(told.partition() + "/" + told.offset()));
        return places;
    }

    private static Set<String> seenBy(Member... members) {
        Set<String> seen = new TreeSet<>();
        for (Member each : members) {
            seen.addAll(List.copyOf(each.seen));
        }
        return seen;
    }

    private void comeAndGo(String way) throws Exception {
        String topic = newTopic("come-and-go-" + way);
        Set<String> written = fill(topic, PARTITIONS);
        try (Member first = new Member(clients, topic, topic, ways.get(way))) {
            Member.until("one has all", () -> Member.isShared(PARTITIONS, first));
            try (Member second = new Member(clients, topic, topic, ways.get(way))) {
                Member.until("two share", () -> Member.isShared(PARTITIONS, first, second));
                try (Member third = new Member(clients, topic, topic, ways.get(way))) {
                    Member.until("three share", () -> Member.isShared(PARTITIONS, first, second, third));
                    written.addAll(fill(topic, PARTITIONS));
                    Member.until("all is read", () -> seenBy(first, second, third).containsAll(written));
                }
                Member.until("two share again", () -> Member.isShared(PARTITIONS, first, second));
            }
            Member.until("the first has all again", () -> Member.isShared(PARTITIONS, first));
        }
    }

    private void goesOn(String way) throws Exception {
        String topic = newTopic("goes-on-" + way);
        Set<String> before = fill(topic, PARTITIONS);
        try (Member member = new Member(clients, topic, topic, ways.get(way))) {
            Member.until("all is read", () -> member.seen.containsAll(before));
        }
        Set<String> after = fill(topic, PARTITIONS);
        try (Member member = new Member(clients, topic, topic, ways.get(way))) {
            Member.until("the rest is read", () -> member.seen.containsAll(after));
            equal(new TreeSet<>(after), new TreeSet<>(List.copyOf(member.seen)));
        }
    }

    private void grows(String way) throws Exception {
        String topic = newTopic("grows-" + way);
        try (Member first = new Member(clients, topic, topic, ways.get(way));
                Member second = new Member(clients, topic, topic, ways.get(way))) {
            Member.until("two share", () -> Member.isShared(PARTITIONS, first, second));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2 * PARTITIONS))).all().get();
            Member.until("two share more", () -> Member.isShared(2 * PARTITIONS, first, second));
            Set<String> written = fill(topic, 2 * PARTITIONS);
            Member.until("all is read", () -> seenBy(first, second).containsAll(written));
        }
    }

    private void eachSeesAll() throws Exception {
        String topic = newTopic("each-sees-all");
        Set<String> written = fill(topic, PARTITIONS);
        try (Member one = new Member(clients, "sees-all-1", topic, Map.of());
                Member another = new Member(clients, "sees-all-2", topic, Map.of())) {
            Member.until("one sees all", () -> one.seen.containsAll(written));
            Member.until("another sees all", () -> another.seen.containsAll(written));
        }
    }

    private void staticMember() throws Exception {
        String topic = newTopic("static");
        Map<String, Object> stays = Map.of("group.instance.id", "stays");
        try (Member other = new Member(clients, topic, topic, Map.of("group.instance.id", "other"))) {
            Set<Integer> had;
            try (Member member = new Member(clients, topic, topic, stays)) {
                Member.until("two share", () -> Member.isShared(PARTITIONS, member, other));
                had = new TreeSet<>(List.copyOf(member.owned));
            }
            int assignments = other.assignments.get();
            try (Member again = new Member(clients, topic, topic, stays)) {
                Member.until("it has what it had", () -> again.owned.equals(had));
                fill(topic, PARTITIONS);
                Member.until("both read", () -> !again.seen.isEmpty() && !other.seen.isEmpty());
                equal(assignments, other.assignments.get());
            }
        }
    }

    private void commits() throws Exception {
        String topic = newTopic("commits");
        TopicPartition place = new TopicPartition(topic, 0);
        Map<String, Object> settings = Map.of("group.id", topic, "enable.auto.commit", false);
        try (KafkaConsumer<byte[], byte[]> consumer = clients.consumer(settings)) {
            consumer.assign(List.of(place));
            consumer.commitSync(Map.of(place, new OffsetAndMetadata(3, "a note")));
            equal(new OffsetAndMetadata(3, "a note"), consumer.committed(Set.of(place)).get(place));
        }
        equal("a note", admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(place).metadata());
    }

    private void fenced() throws Exception {
        String topic = newTopic("fenced");
        Map<String, Object> settings = Map.of("group.id", topic, "auto.offset.reset", "earliest",
                "max.poll.interval.ms", 1500, "session.timeout.ms", 6000, "enable.auto.commit", false);
        fill(topic, PARTITIONS);
        try (KafkaConsumer<byte[], byte[]> slow = clients.consumer(settings)) {
            slow.subscribe(List.of(topic));
            long deadline = System.nanoTime() + Clients.WAIT.toNanos();
            while (slow.poll(Duration.ofMillis(100)).isEmpty()) {
                isTrue(System.nanoTime() < deadline, "nothing came");
            }
            Member.until("it is thrown out", () -> isEmpty(topic));
            rejected(org.apache.kafka.clients.consumer.CommitFailedException.class, slow::commitSync);
        }
    }

    private boolean isEmpty(String group) {
        try {
            return describe(group).members().isEmpty();
        } catch (Exception problem) {
            throw new AssertionError(problem);
        }
    }

    private ConsumerGroupDescription describe(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    private void described() throws Exception {
        String topic = newTopic("described");
        for (String way : new TreeSet<>(ways.keySet())) {
            try (Member member = new Member(clients, "described-" + way, topic, ways.get(way))) {
                Member.until("one has all", () -> Member.isShared(PARTITIONS, member));
                ConsumerGroupDescription told = describe("described-" + way);
                equal("STABLE", told.state().name());
                MemberDescription only = told.members().iterator().next();
                equal(PARTITIONS, only.assignment().topicPartitions().size());
                isTrue(only.host().startsWith("/127.0.0.1"), only.host());
            }
        }
        Set<String> listed = new TreeSet<>();
        admin.listConsumerGroups().all().get().forEach(each -> listed.add(each.groupId()));
        isTrue(listed.contains("described-range"), listed.toString());
    }

    private void altered() throws Exception {
        String topic = newTopic("altered");
        TopicPartition place = new TopicPartition(topic, 0);
        admin.alterConsumerGroupOffsets(topic, Map.of(place, new OffsetAndMetadata(7))).all().get();
        equal(7L, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(place).offset());
        try (Member member = new Member(clients, topic, topic, Map.of("enable.auto.commit", false))) {
            Member.until("one has all", () -> Member.isShared(PARTITIONS, member));
            rejected(UnknownMemberIdException.class,
                    () -> admin.alterConsumerGroupOffsets(topic, Map.of(place, new OffsetAndMetadata(1))).all().get());
        }
        admin.deleteConsumerGroupOffsets(topic, Set.of(place)).all().get();
        equal(Map.of(), admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get());
    }

    private void deleted() throws Exception {
        String topic = newTopic("deleted");
        try (Member member = new Member(clients, topic, topic, Map.of())) {
            Member.until("one has all", () -> Member.isShared(PARTITIONS, member));
            rejected(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
        }
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        rejected(GroupIdNotFoundException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
        clients.send(Map.of(), List.of(record(topic, "still there")));
    }
}
