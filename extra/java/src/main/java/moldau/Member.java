package moldau;

import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** A member of a group that reads in a thread of its own until it is closed. What it owns and has read can be seen. */
final class Member implements AutoCloseable {
    private static final long WAIT_MS = 30_000;

    final Set<String> seen = new ConcurrentSkipListSet<>();
    final Set<Integer> owned = new ConcurrentSkipListSet<>();
    final AtomicInteger assignments = new AtomicInteger();

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Thread thread;
    private volatile boolean isClosing;
    private volatile Throwable failure;

    Member(Clients clients, String group, String topic, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("group.id", group, "auto.offset.reset", "earliest",
                "auto.commit.interval.ms", 100, "metadata.max.age.ms", 500));
        if (!"consumer".equals(settings.get("group.protocol"))) {
            all.putAll(Map.of("session.timeout.ms", 6000, "heartbeat.interval.ms", 200));
        }
        all.putAll(settings);
        consumer = clients.consumer(all);
        consumer.subscribe(List.of(topic), new Ownership());
        thread = new Thread(this::read, "member of " + group);
        thread.start();
    }

    private void read() {
        try (consumer) {
            while (!isClosing) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(50))) {
                    seen.add(each.partition() + "/" + each.offset());
                }
            }
        } catch (Throwable problem) {
            failure = problem;
        }
    }

    @Override
    public void close() throws Exception {
        isClosing = true;
        thread.join(WAIT_MS);
        Tour.isTrue(!thread.isAlive(), "the member does not end");
        if (failure != null) {
            throw new AssertionError("the member failed", failure);
        }
    }

    interface Condition {
        boolean holds();
    }

    static void until(String what, Condition condition) throws InterruptedException {
        long deadline = System.nanoTime() + WAIT_MS * 1_000_000;
        while (!condition.holds()) {
            Tour.isTrue(System.nanoTime() < deadline, "it did not come to this: " + what);
            Thread.sleep(10);
        }
    }

    /** All partitions, each with one of the members, and nearly as many with each. */
    static boolean isShared(int partitions, Member... members) {
        Set<Integer> all = new TreeSet<>();
        int count = 0;
        for (Member each : members) {
            List<Integer> owned = List.copyOf(each.owned); // a sorted set that changes cannot be copied as one
            if (owned.size() < partitions / members.length) {
                return false;
            }
            count += owned.size();
            all.addAll(owned);
        }
        return count == partitions && all.size() == partitions;
    }

    private final class Ownership implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments.incrementAndGet();
            partitions.forEach(each -> owned.add(each.partition()));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            partitions.forEach(each -> owned.remove(each.partition()));
        }
    }
}
