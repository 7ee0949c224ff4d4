package moldau;

import static moldau.ShareGroups.EXPLICIT;
import static moldau.ShareGroups.acknowledge;
import static moldau.ShareGroups.commit;
import static moldau.ShareGroups.poll;
import static moldau.ShareGroups.values;
import static moldau.Tour.equal;
import static moldau.Tour.isTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.consumer.group.ShareGroupCommand;

/** Kafka's kafka-share-groups tool: list, describe, reset and delete offsets, delete groups. */
final class ShareToolTour {
    private final String servers;
    private final ShareGroups groups;

    private ShareToolTour(String servers, ShareGroups groups) {
        this.servers = servers;
        this.groups = groups;
    }

    /** Argument: the servers. */
    public static void main(String[] arguments) {
        Clients clients = new Clients(arguments[0]);
        Tour tour = new Tour();
        try (Admin admin = clients.admin()) {
            new ShareToolTour(arguments[0], new ShareGroups(clients, admin)).plan(tour);
            System.exit(tour.run() == 0 ? 0 : 1);
        }
    }

    private void plan(Tour tour) {
        tour.step("a group with a member is described and listed", this::described);
        tour.step("offsets are reset", this::reset);
        tour.step("offsets and groups are deleted", this::deleted);
        tour.step("a group with records of every state is left behind", this::left);
    }

    /** Runs the tool; returns the words of each line of its output. */
    private List<List<String>> tool(String... options) {
        PrintStream before = System.out;
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> {
            throw new AssertionError("exit " + code + ": " + message + output);
        });
        try {
            List<String> all = new ArrayList<>(List.of("--bootstrap-server", servers));
            all.addAll(List.of(options));
            ShareGroupCommand.main(all.toArray(new String[0]));
        } finally {
            System.setOut(before);
            Exit.resetExitProcedure();
        }
        String text = output.toString(StandardCharsets.UTF_8);
        isTrue(!text.contains("Error"), text);
        return text.lines().filter(line -> !line.isBlank()).map(line -> List.of(line.strip().split("\\s+"))).toList();
    }

    private static void has(List<List<String>> lines, String... words) {
        isTrue(lines.stream().anyMatch(line -> line.size() >= words.length && line.containsAll(List.of(words))),
                String.join(" ", words) + " is not in " + lines);
    }

    private void described() throws Exception {
        String topic = groups.create("tool-described", 10);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, EXPLICIT)) {
            acknowledge(consumer, poll(consumer, 10), AcknowledgeType.ACCEPT);
            has(tool("--list"), topic);
            has(tool("--describe", "--group", topic), topic, "0", "10", "0");
            has(tool("--describe", "--group", topic, "--members", "--verbose"), topic, topic + ":0");
            has(tool("--describe", "--group", topic, "--state"), topic, "Stable", "1");
        }
        has(tool("--list", "--state", "Empty"), topic);
    }

    private void reset() throws Exception {
        String topic = groups.create("tool-reset", 10);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            poll(consumer, 10);
            commit(consumer);
        }
        has(tool("--reset-offsets", "--group", topic, "--topic", topic, "--to-earliest", "--execute"), topic, "0");
        has(tool("--describe", "--group", topic, "--offsets", "--verbose"), topic, "0", "10");
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            equal(10, values(poll(consumer, 10)).size());
        }
    }

    private void deleted() throws Exception {
        String topic = groups.create("tool-deleted", 1);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, Map.of())) {
            poll(consumer, 1);
            commit(consumer);
        }
        has(tool("--delete-offsets", "--group", topic, "--topic", topic), topic, "Successful");
        isTrue(tool("--describe", "--group", topic).stream().noneMatch(line -> line.contains("1")), "offsets are left");
        tool("--delete", "--group", topic);
        isTrue(!tool("--list").contains(List.of(topic)), "the group is left");
    }

    private void left() throws Exception {
        String topic = groups.create("tool-left", 4);
        try (KafkaShareConsumer<byte[], byte[]> consumer = groups.join(topic, topic, EXPLICIT)) {
            acknowledge(consumer, poll(consumer, 4), AcknowledgeType.RELEASE, AcknowledgeType.ACCEPT,
                    AcknowledgeType.REJECT, AcknowledgeType.RELEASE);
        }
    }
}
