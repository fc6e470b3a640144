import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.Header;
import io.debezium.engine.format.Json;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Debezium's embedded engine, which prints every record that it makes: topic, key, value and headers, the latter three as
 * base64, `-` where there is none. It ends with its standard input.
 *
 * java DebeziumRecords.java NAME=VALUE...
 */
public class DebeziumRecords {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            properties.setProperty(pair[0], pair[1]);
        }
        ExecutorService executor = Executors.newSingleThreadExecutor();
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class).using(properties)
            .using((success, message, error) -> System.out.println("@ended " + success + " " + message + " " + error))
            .notifying(DebeziumRecords::print).build();
        executor.execute(engine);
        while (System.in.read() >= 0) {
        }
        engine.close();
        System.exit(0);
    }

    private static void print(ChangeEvent<String, String> record) {
        StringBuilder headers = new StringBuilder();
        for (Header<?> header : record.headers()) {
            headers.append(header.getKey()).append('=').append(header.getValue()).append('\n');
        }
        System.out.println(record.destination() + " " + encoded(record.key()) + " " + encoded(record.value()) + " "
            + encoded(headers.length() == 0 ? null : headers.toString()));
        System.out.flush();
    }

    private static String encoded(String text) {
        return text == null ? "-" : Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
