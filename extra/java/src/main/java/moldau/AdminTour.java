package moldau;

import static moldau.Tour.equal;
import static moldau.Tour.isTrue;
import static moldau.Tour.rejected;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** What a Java program does to look after a cluster. */
final class AdminTour {
    private static final long START_MS = 1_700_000_000_000L;

    private final Clients clients;
    private final Admin admin;

    AdminTour(Clients clients, Admin admin) {
        this.clients = clients;
        this.admin = admin;
    }

    void plan(Tour tour) {
        tour.step("a topic is created, described, listed and deleted", this::lifeOfATopic);
        tour.step("a topic is found and deleted by its id", this::byId);
        tour.step("creating tells what was created", this::creatingTells);
        tour.step("invalid topics are rejected", this::rejections);
        tour.step("configs are described with their sources", this::configs);
        tour.step("configs are changed one by one", this::changes);
        tour.step("the broker's configs are described and changed", this::brokerConfigs);
        tour.step("a topic grows", this::grows);
        tour.step("records are deleted", this::deleteRecords);
        tour.step("offsets are listed by spec", this::listOffsets);
        tour.step("the cluster and its features are described", this::cluster);
        tour.step("the log folders are described", this::logFolders);
    }

    private String topic(int partitions) throws Exception {
        String name = "java-" + UUID.randomUUID();
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
        return name;
    }

    private void lifeOfATopic() throws Exception {
        String name = topic(3);
        isTrue(admin.listTopics().names().get().contains(name), "it is listed");
        TopicDescription described = admin.describeTopics(List.of(name)).allTopicNames().get().get(name);
        equal(3, described.partitions().size());
        equal(1, described.partitions().get(2).isr().size());
        isTrue(!described.topicId().equals(Uuid.ZERO_UUID), "it has an id");
        admin.deleteTopics(List.of(name)).all().get();
        isTrue(!admin.listTopics().names().get().contains(name), "it is gone");
        rejected(UnknownTopicOrPartitionException.class, () -> admin.describeTopics(List.of(name)).allTopicNames().get());
    }

    private void byId() throws Exception {
        String name = topic(2);
        Uuid id = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).topicId();
        TopicCollection ids = TopicCollection.ofTopicIds(List.of(id));
        equal(name, admin.describeTopics(ids).allTopicIds().get().get(id).name());
        admin.deleteTopics(ids).all().get();
        rejected(UnknownTopicIdException.class, () -> admin.describeTopics(ids).allTopicIds().get());
    }

    private void creatingTells() throws Exception {
        String name = "java-" + UUID.randomUUID();
        NewTopic wanted = new NewTopic(name, 4, (short) 1).configs(Map.of("retention.ms", "1000"));
        CreateTopicsResult told = admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true));
        equal(4, told.numPartitions(name).get());
        equal("1000", told.config(name).get().get("retention.ms").value());
        isTrue(!admin.listTopics().names().get().contains(name), "it was validated only");
        told = admin.createTopics(List.of(wanted));
        equal(1, told.replicationFactor(name).get());
        isTrue(!told.topicId(name).get().equals(Uuid.ZERO_UUID), "it has an id");
    }

    private void rejections() throws Exception {
        String name = topic(2);
        rejected(TopicExistsException.class, () -> create(new NewTopic(name, 1, (short) 1)));
        rejected(InvalidTopicException.class, () -> create(new NewTopic("not a name", 1, (short) 1)));
        rejected(InvalidPartitionsException.class, () -> create(new NewTopic(name + "-x", 0, (short) 1)));
        rejected(InvalidReplicationFactorException.class, () -> create(new NewTopic(name + "-x", 1, (short) 3)));
        rejected(InvalidConfigurationException.class,
                () -> create(new NewTopic(name + "-x", 1, (short) 1).configs(Map.of("no.such", "1"))));
        rejected(UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of(name + "-x")).all().get());
    }

    private void create(NewTopic topic) throws Exception {
        admin.createTopics(List.of(topic)).all().get();
    }

    private void configs() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(1));
        DescribeConfigsOptions everything = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config = admin.describeConfigs(List.of(resource), everything).all().get().get(resource);
        ConfigEntry entry = config.get("segment.bytes");
        equal("1073741824", entry.value());
        equal(ConfigEntry.ConfigSource.DEFAULT_CONFIG, entry.source());
        equal(ConfigEntry.ConfigType.INT, entry.type());
        equal("log.segment.bytes", entry.synonyms().get(0).name());
        isTrue(entry.documentation() != null && !entry.documentation().isEmpty(), "it is documented");
        equal(ConfigEntry.ConfigType.LIST, config.get("cleanup.policy").type());
    }

    private void changes() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic(1));
        change(resource, "retention.ms", "5000", AlterConfigOp.OpType.SET);
        change(resource, "cleanup.policy", "compact", AlterConfigOp.OpType.APPEND);
        equal("5000", value(resource, "retention.ms"));
        equal("delete,compact", value(resource, "cleanup.policy"));
        change(resource, "cleanup.policy", "delete", AlterConfigOp.OpType.SUBTRACT);
        change(resource, "retention.ms", null, AlterConfigOp.OpType.DELETE);
        equal("604800000", value(resource, "retention.ms"));
        equal("compact", value(resource, "cleanup.policy"));
        rejected(InvalidConfigurationException.class,
                () -> change(resource, "retention.ms", "never", AlterConfigOp.OpType.SET));
    }

    private void change(ConfigResource resource, String name, String value, AlterConfigOp.OpType how) throws Exception {
        AlterConfigOp operation = new AlterConfigOp(new ConfigEntry(name, value), how);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(operation))).all().get();
    }

    private String value(ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name).value();
    }

    private void brokerConfigs() throws Exception {
        String id = admin.describeCluster().controller().get().idString();
        ConfigResource one = new ConfigResource(ConfigResource.Type.BROKER, id);
        ConfigResource all = new ConfigResource(ConfigResource.Type.BROKER, "");
        change(all, "log.retention.ms", "777000", AlterConfigOp.OpType.SET);
        equal("777000", value(one, "log.retention.ms"));
        equal("777000", value(all, "log.retention.ms"));
        change(one, "log.retention.ms", "888000", AlterConfigOp.OpType.SET);
        equal("888000", value(one, "log.retention.ms"));
        change(one, "log.retention.ms", null, AlterConfigOp.OpType.DELETE);
        change(all, "log.retention.ms", null, AlterConfigOp.OpType.DELETE);
        isTrue(!"777000".equals(value(one, "log.retention.ms")), "it is as before");
    }

    private void grows() throws Exception {
        String name = topic(1);
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(5))).all().get();
        equal(5, admin.describeTopics(List.of(name)).allTopicNames().get().get(name).partitions().size());
        rejected(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(name, NewPartitions.increaseTo(2))).all().get());
    }

    private void deleteRecords() throws Exception {
        String name = topic(1);
        TopicPartition partition = new TopicPartition(name, 0);
        clients.send(Map.of(), Clients.numbered(name, 10, START_MS));
        equal(4L, delete(partition, 4));
        equal(4L, clients.read(name, 4, 6, Map.of()).get(0).offset());
        rejected(OffsetOutOfRangeException.class, () -> delete(partition, 11));
        equal(10L, delete(partition, -1));
    }

    private long delete(TopicPartition partition, long before) throws Exception {
        Map<TopicPartition, RecordsToDelete> requested = Map.of(partition, RecordsToDelete.beforeOffset(before));
        return admin.deleteRecords(requested).lowWatermarks().get(partition).get().lowWatermark();
    }

    private void listOffsets() throws Exception {
        String name = topic(1);
        clients.send(Map.of(), Clients.numbered(name, 10, START_MS));
        equal(0L, offset(name, OffsetSpec.earliest()).offset());
        equal(10L, offset(name, OffsetSpec.latest()).offset());
        equal(3L, offset(name, OffsetSpec.forTimestamp(START_MS + 2001)).offset());
        ListOffsetsResultInfo newest = offset(name, OffsetSpec.maxTimestamp());
        equal(9L, newest.offset());
        equal(START_MS + 9000, newest.timestamp());
        equal(0L, offset(name, OffsetSpec.earliestLocal()).offset());
        equal(-1L, offset(name, OffsetSpec.latestTiered()).offset());
    }

    private ListOffsetsResultInfo offset(String topic, OffsetSpec spec) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
    }

    private void cluster() throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        equal(22, cluster.clusterId().get().length());
        equal(1, cluster.nodes().get().size());
        FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
        isTrue(features.finalizedFeatures().containsKey("metadata.version"), "metadata.version is finalized");
    }

    private void logFolders() throws Exception {
        String name = topic(1);
        clients.send(Map.of(), Clients.numbered(name, 100, START_MS));
        int id = admin.describeCluster().controller().get().id();
        Map<String, LogDirDescription> folders = admin.describeLogDirs(Set.of(id)).allDescriptions().get().get(id);
        LogDirDescription folder = folders.values().iterator().next();
        equal(null, folder.error());
        isTrue(folder.replicaInfos().get(new TopicPartition(name, 0)).size() > 1000, "it takes room");
        isTrue(folder.totalBytes().getAsLong() > folder.usableBytes().getAsLong(), "there is room");
    }
}
