import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Debezium's embedded engine as a contestant: `go` on standard input lets it read all events once, with offsets of its own.
 *
 * java DebeziumDrain.java json|connect|latency EVENTS NAME=VALUE...
 */
public class DebeziumDrain {
    private static final Pattern AT = Pattern.compile("\\\\\"at_us\\\\\": ?(?:\\{\\\\\"\\$numberLong\\\\\": ?\\\\\")?(\\d+)");

    private final String kind;
    private final long events;
    private final long warm;
    private long seen;
    private final List<Long> latencies = new ArrayList<>();
    private CountDownLatch done;

    DebeziumDrain(String kind, long events) {
        this.kind = kind;
        this.events = events;
        this.warm = Math.max(1, events / 3);
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.setProperty(pair[0], pair[1]);
        }
        DebeziumDrain drain = new DebeziumDrain(arguments[0], Long.parseLong(arguments[1]));
        System.out.println("@ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        while ("go".equals(orders.readLine())) {
            drain.run(properties);
        }
        System.exit(0);
    }

    /** The system's monotonic clock, in seconds, as other processes see it. */
    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private void run(Properties given) throws Exception {
        Path folder = Files.createTempDirectory("debezium-");
        Properties properties = new Properties();
        properties.putAll(given);
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        properties.setProperty("offset.storage.file.filename", folder.resolve("offsets").toString());
        seen = 0;
        System.out.println("@warm 0 " + now());
        latencies.clear();
        done = new CountDownLatch(1);
        ExecutorService executor = Executors.newSingleThreadExecutor();
        try (DebeziumEngine<?> engine = kind.equals("connect") ? connect(properties) : json(properties)) {
            executor.execute(engine);
            done.await();
        }
        executor.shutdown();
        Files.deleteIfExists(folder.resolve("offsets"));
        Files.deleteIfExists(folder);
        if (kind.equals("latency")) {
            System.out.println("@latencies " + latencies);
        }
        System.out.flush();
    }

    private DebeziumEngine<?> json(Properties properties) {
        return DebeziumEngine.create(Json.class).using(properties).using(this::started).notifying(
            (List<ChangeEvent<String, String>> records, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) -> {
                for (ChangeEvent<String, String> record : records) {
                    if (kind.equals("latency")) {
                        time(record.value());
                    }
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
                count(records.size());
            }).build();
    }

    private DebeziumEngine<?> connect(Properties properties) {
        return DebeziumEngine.create(Connect.class).using(properties).using(this::started).notifying(
            (List<ChangeEvent<org.apache.kafka.connect.source.SourceRecord, org.apache.kafka.connect.source.SourceRecord>> records,
             DebeziumEngine.RecordCommitter<ChangeEvent<org.apache.kafka.connect.source.SourceRecord, org.apache.kafka.connect.source.SourceRecord>> committer) -> {
                for (ChangeEvent<org.apache.kafka.connect.source.SourceRecord, org.apache.kafka.connect.source.SourceRecord> record : records) {
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
                count(records.size());
            }).build();
    }

    private void started(boolean success, String message, Throwable error) {
        if (error != null) {
            System.out.println("@failed " + String.valueOf(message).replace('\n', ' ') + " " + error);
        }
    }

    private void time(String value) {
        if (value == null) {
            return;
        }
        if (seen++ == 0) {
            System.out.println("@open");
        }
        if (value.contains("last_one")) {
            done.countDown();
        }
        Matcher at = AT.matcher(value);
        if (at.find()) {
            Instant now = Instant.now();
            latencies.add(now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000 - Long.parseLong(at.group(1)));
        }
    }

    private void count(int records) {
        if (kind.equals("latency")) {
            return;
        }
        long before = seen;
        seen += records;
        if (before < warm && seen >= warm && seen < events) {
            System.out.println("@warm " + seen + " " + now());
        }
        if (before < events && seen >= events) {
            System.out.println("@done " + seen + " " + now());
            done.countDown();
        }
        System.out.flush();
    }
}
