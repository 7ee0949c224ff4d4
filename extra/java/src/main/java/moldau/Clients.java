package moldau;

import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Makes producers, consumers and admin clients of one broker, and does the everyday things with them. */
final class Clients {
    static final Duration WAIT = Duration.ofSeconds(20);

    private final Map<String, Object> connection = new HashMap<>();

    /** CLIENT_CONFIG may name a properties file with the settings of TLS and SASL. */
    Clients(String servers) {
        String file = System.getenv("CLIENT_CONFIG");
        if (file != null) {
            Properties properties = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(file))) {
                properties.load(reader);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            properties.forEach((name, value) -> connection.put((String) name, value));
        }
        connection.put("bootstrap.servers", servers);
    }

    Admin admin() {
        return Admin.create(connection);
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(connection);
        all.put("linger.ms", 5);
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(connection);
        all.put("auto.offset.reset", "none");
        all.putAll(settings);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** A member of a share group; it must be of the thread that uses it. */
    KafkaShareConsumer<byte[], byte[]> shareConsumer(String group, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(connection);
        all.put("group.id", group);
        all.putAll(settings);
        return new KafkaShareConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Sends all, waits for all; where they went. */
    List<RecordMetadata> send(Map<String, Object> settings, List<ProducerRecord<byte[], byte[]>> records)
            throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(settings)) {
            List<Future<RecordMetadata>> waiting = new ArrayList<>();
            for (ProducerRecord<byte[], byte[]> record : records) {
                waiting.add(producer.send(record));
            }
            List<RecordMetadata> told = new ArrayList<>();
            for (Future<RecordMetadata> each : waiting) {
                told.add(each.get());
            }
            return told;
        }
    }

    /** The records of a partition from an offset on, so many. */
    List<ConsumerRecord<byte[], byte[]>> read(String topic, long offset, int count, Map<String, Object> settings) {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, offset);
            return poll(consumer, count);
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (records.size() < count) {
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
            Tour.isTrue(System.nanoTime() < deadline, records.size() + " of " + count + " records came");
        }
        return records;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static ProducerRecord<byte[], byte[]> record(String topic, String value) {
        return new ProducerRecord<>(topic, 0, null, bytes(value));
    }

    /** Numbered records, a second apart, with a header. */
    static List<ProducerRecord<byte[], byte[]>> numbered(String topic, int count, long startMs) {
        List<ProducerRecord<byte[], byte[]>> records = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            records.add(new ProducerRecord<>(topic, 0, startMs + number * 1000L, bytes("k" + number), bytes("" + number),
                    List.of(new RecordHeader("number", bytes("" + number)), new RecordHeader("null", null))));
        }
        return records;
    }
}
