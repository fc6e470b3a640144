import com.mongodb.kafka.connect.source.MongoSourceTask;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTaskContext;
import org.apache.kafka.connect.storage.OffsetStorageReader;
import org.apache.kafka.connect.storage.StringConverter;

/**
 * The task of MongoDB's Kafka connector as a contestant, polled directly, its records converted to bytes: no broker takes part.
 *
 * java MongoTaskDrain.java drain|latency EVENTS NAME=VALUE...
 */
public class MongoTaskDrain {
    private static final Pattern AT = Pattern.compile("\"at_us\": ?(?:\\{\"\\$numberLong\": ?\")?(\\d+)");

    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        System.out.println("@ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        while ("go".equals(orders.readLine())) {
            run(arguments[0].equals("latency"), Long.parseLong(arguments[1]), properties);
        }
        System.exit(0);
    }

    /** The system's monotonic clock, in seconds, as other processes see it. */
    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private static void run(boolean timed, long events, Map<String, String> properties) throws Exception {
        MongoSourceTask task = new MongoSourceTask();
        task.initialize(new WithoutOffsets(properties));
        task.start(properties);
        StringConverter converter = new StringConverter();
        converter.configure(Map.of(), false);
        List<Long> latencies = new ArrayList<>();
        long warm = Math.max(1, events / 3);
        long seen = 0;
        System.out.println("@warm 0 " + now());
        boolean over = false;
        while (timed ? !over : seen < events) {
            List<SourceRecord> records = task.poll();
            if (records == null) {
                continue;
            }
            for (SourceRecord record : records) {
                converter.fromConnectData(record.topic(), record.keySchema(), record.key());
                converter.fromConnectData(record.topic(), record.valueSchema(), record.value());
                if (timed) {
                    String value = String.valueOf(record.value());
                    time(value, latencies);
                    over |= value.contains("last_one");
                }
            }
            if (timed && seen == 0 && !records.isEmpty()) {
                System.out.println("@open");
            }
            long before = seen;
            seen += records.size();
            if (!timed && before < warm && seen >= warm && seen < events) {
                System.out.println("@warm " + seen + " " + now());
            }
        }
        if (!timed) {
            System.out.println("@done " + seen + " " + now());
        }
        task.stop();
        if (timed) {
            System.out.println("@latencies " + latencies);
        }
        System.out.flush();
    }

    private static void time(String value, List<Long> latencies) {
        Matcher at = AT.matcher(value);
        if (at.find()) {
            Instant now = Instant.now();
            latencies.add(now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000 - Long.parseLong(at.group(1)));
        }
    }

    private record WithoutOffsets(Map<String, String> configs) implements SourceTaskContext {
        @Override
        public OffsetStorageReader offsetStorageReader() {
            return new OffsetStorageReader() {
                @Override
                public <T> Map<String, Object> offset(Map<String, T> partition) {
                    return null;
                }

                @Override
                public <T> Map<Map<String, T>, Map<String, Object>> offsets(Collection<Map<String, T>> partitions) {
                    return new HashMap<>();
                }
            };
        }
    }
}
