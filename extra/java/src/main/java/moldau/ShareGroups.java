package moldau;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;

/** Topics with one partition, each with a share group of the same name that starts at the beginning. */
final class ShareGroups {
    static final Map<String, Object> EXPLICIT = Map.of("share.acknowledgement.mode", "explicit");

    private final Clients clients;
    private final Admin admin;

    ShareGroups(Clients clients, Admin admin) {
        this.clients = clients;
        this.admin = admin;
    }

    String create(String name, int records) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
        configure(name, "share.auto.offset.reset", "earliest");
        produce(name, Map.of(), 0, records);
        return name;
    }

    void configure(String group, String config, String value) throws Exception {
        AlterConfigOp operation = new AlterConfigOp(new ConfigEntry(config, value), AlterConfigOp.OpType.SET);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all().get();
    }

    void produce(String topic, Map<String, Object> settings, int first, int end) throws Exception {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = first; number < end; number++) {
            records.add(Clients.record(topic, "" + number));
        }
        clients.send(settings, records);
    }

    KafkaShareConsumer<byte[], byte[]> join(String group, String topic, Map<String, Object> settings) {
        KafkaShareConsumer<byte[], byte[]> consumer = clients.shareConsumer(group, new HashMap<>(settings));
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    /** Polls until so many records have come. All of a poll must be acknowledged before the next if that is explicit. */
    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaShareConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.nanoTime() + Clients.WAIT.toNanos();
        while (records.size() < count) {
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
            Tour.isTrue(System.nanoTime() < deadline, records.size() + " of " + count + " records came");
        }
        return records;
    }

    static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(each -> new String(each.value(), StandardCharsets.UTF_8)).toList();
    }

    static List<Integer> deliveryCounts(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(each -> (int) each.deliveryCount().orElse((short) 0)).toList();
    }

    /** Acknowledges the records with these types, one after the other, and waits until that is durable. */
    static void acknowledge(KafkaShareConsumer<byte[], byte[]> consumer, List<ConsumerRecord<byte[], byte[]>> records,
            AcknowledgeType... types) {
        for (int index = 0; index < records.size(); index++) {
            consumer.acknowledge(records.get(index), types[Math.min(index, types.length - 1)]);
        }
        commit(consumer);
    }

    static void commit(KafkaShareConsumer<byte[], byte[]> consumer) {
        consumer.commitSync(Clients.WAIT).forEach((partition, error) ->
                Tour.isTrue(error.isEmpty(), "the acknowledgement failed: " + error));
    }

    /** Nothing is delivered for half a second. */
    static void isDrained(KafkaShareConsumer<byte[], byte[]> consumer) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        consumer.poll(Duration.ofMillis(500)).forEach(found::add);
        Tour.equal(List.of(), values(found));
    }
}
