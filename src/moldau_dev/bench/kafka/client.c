/* A producer on librdkafka: throughput, or the latency of single records at a fixed rate. Prints one line of JSON.
 *
 *   client produce SERVERS TOPIC PARTITIONS RECORD_BYTES SECONDS
 *   client latency SERVERS TOPIC PARTITIONS RECORD_BYTES SECONDS RECORDS_PER_SECOND
 *
 * The few declarations of librdkafka's API are repeated here, because the library inside of confluent-kafka's wheel comes
 * without its header.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_flush(rd_kafka_t *, int);

enum { PRODUCER = 0, COPY = 2, LATENCIES_MAX = 4000000 };

static double *latencies;
static long acknowledged, failed;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void delivered(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
    (void)client;
    (void)opaque;
    if (message->err) {
        failed++;
        return;
    }
    if (latencies && acknowledged < LATENCIES_MAX)
        latencies[acknowledged] = now() - *(double *)message->_private;
    free(message->_private);
    acknowledged++;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile_ms(double share) {
    long index = (long)(share * acknowledged);
    return latencies[index < acknowledged ? index : acknowledged - 1] * 1e3;
}

int main(int count, char **arguments) {
    if (count < 7)
        return fprintf(stderr, "too few arguments\n"), 2;
    int is_latency = !strcmp(arguments[1], "latency");
    int partitions = atoi(arguments[4]), bytes = atoi(arguments[5]);
    double seconds = atof(arguments[6]), rate = is_latency ? atof(arguments[7]) : 0;
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    const char *settings[][2] = {
        {"bootstrap.servers", arguments[2]},
        {"acks", "all"},
        {"linger.ms", is_latency ? "0" : "5"},
        {"queue.buffering.max.messages", "500000"},
        {"queue.buffering.max.kbytes", "1048576"},
        {"partitioner", "random"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (rd_kafka_conf_set(conf, settings[i][0], settings[i][1], error, sizeof error))
            return fprintf(stderr, "%s\n", error), 1;
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_t *client = rd_kafka_new(PRODUCER, conf, error, sizeof error);
    if (!client)
        return fprintf(stderr, "%s\n", error), 1;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(client, arguments[3], NULL);
    char *value = calloc(1, bytes);
    for (int i = 0; i < partitions; i++) /* connect first */
        rd_kafka_produce(topic, i, COPY, value, bytes, NULL, 0, is_latency ? calloc(1, sizeof(double)) : NULL);
    rd_kafka_flush(client, 10000);
    acknowledged = 0;
    latencies = is_latency ? malloc(sizeof *latencies * LATENCIES_MAX) : NULL;
    double started = now(), ends = started + seconds;
    long sent = 0;
    while (now() < ends) {
        if (is_latency) {
            double due = started + sent / rate;
            while (now() < due)
                rd_kafka_poll(client, 0);
            double *since = malloc(sizeof *since);
            *since = due;
            if (rd_kafka_produce(topic, sent % partitions, COPY, value, bytes, NULL, 0, since))
                return fprintf(stderr, "the queue is full\n"), 1;
            sent++;
        } else if (rd_kafka_produce(topic, sent % partitions, COPY, value, bytes, NULL, 0, NULL)) {
            rd_kafka_poll(client, 1);
        } else if (++sent % 256 == 0) {
            rd_kafka_poll(client, 0);
        }
    }
    rd_kafka_flush(client, 30000);
    double elapsed = now() - started;
    if (failed || !acknowledged)
        return fprintf(stderr, "%ld records failed, %ld were acknowledged\n", failed, acknowledged), 1;
    if (is_latency) {
        qsort(latencies, acknowledged, sizeof *latencies, ascending);
        printf("{\"records\": %ld, \"elapsed_s\": %f, \"p50_ms\": %f, \"p99_ms\": %f}\n", acknowledged, elapsed,
               quantile_ms(0.5), quantile_ms(0.99));
    } else {
        printf("{\"records\": %ld, \"elapsed_s\": %f}\n", acknowledged, elapsed);
    }
    return 0;
}
