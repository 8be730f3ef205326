import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads whole transactions from a pipeline's output with Kafka's own client, nothing else.
 *
 * <pre>java -cp kafka-clients.jar:slf4j-api.jar WholeTransactions.java BOOTSTRAP COMMIT_TOPIC [OFFSET]</pre>
 *
 * Prints a line of JSON per commit record: the commit's id, its transaction and its documents. Begins at an offset
 * of the commit topic, or with its first record, and ends at what is there now. Comments name the requirements of
 * docs/specification.md. JSON is read by the class at the end, because kafka-clients brings no parser, and because
 * those that read numbers as floating-point numbers round LSNs (R14).
 */
public final class WholeTransactions {
    private static final BigInteger VERSION = BigInteger.TWO;
    private static final Duration WAIT = Duration.ofMillis(100);

    private final KafkaConsumer<byte[], byte[]> commits;
    private final KafkaConsumer<byte[], byte[]> documents;

    private WholeTransactions(String bootstrap) {
        commits = new KafkaConsumer<>(settings(bootstrap));
        documents = new KafkaConsumer<>(settings(bootstrap));
    }

    public static void main(String[] arguments) {
        Long start = arguments.length > 2 ? Long.valueOf(arguments[2]) : null;
        try {
            new WholeTransactions(arguments[0]).read(arguments[1], start);
        } catch (RuntimeException error) {
            System.err.println("the topics cannot be read any further: " + error);
            System.exit(1);
        }
    }

    private static Properties settings(String bootstrap) {
        Properties settings = new Properties();
        settings.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        settings.put(ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed"); // R1
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "none"); // R13
        settings.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false);
        settings.put(ConsumerConfig.KEY_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        settings.put(ConsumerConfig.VALUE_DESERIALIZER_CLASS_CONFIG, ByteArrayDeserializer.class);
        return settings;
    }

    private void read(String commitTopic, Long position) {
        TopicPartition log = new TopicPartition(commitTopic, 0);
        long low = commits.beginningOffsets(List.of(log)).get(log);
        long end = commits.endOffsets(List.of(log)).get(log);
        long start = position == null ? low : position;
        if (start < low || start > end) { // R12
            throw new IllegalStateException(log + " has the offsets " + low + " to " + end + "; " + start + " is needed");
        }
        each(commits, log, start, end - 1, record -> System.out.println(transaction(record.value()))); // R2
    }

    /**
     * Passes on the records at first ... last. Offsets of markers, of aborted records and of those that compaction has
     * removed are never delivered, so only the position tells when nothing more can come (R4, R6). While a marker is
     * late, the position stays below it (R5).
     */
    private static void each(
            KafkaConsumer<byte[], byte[]> reader,
            TopicPartition place,
            long first,
            long last,
            Consumer<ConsumerRecord<byte[], byte[]>> pass) {
        reader.assign(List.of(place));
        reader.seek(place, first);
        while (reader.position(place) <= last) {
            for (ConsumerRecord<byte[], byte[]> record : reader.poll(WAIT)) {
                if (record.offset() <= last) {
                    pass.accept(record);
                }
            }
        }
    }

    private String transaction(byte[] value) {
        Map<String, Object> commit = Json.object(Json.parse(text(value))); // R8, R9: fields may be null, new or missing
        if (((BigInteger) commit.get("v")).compareTo(VERSION) > 0) { // R10
            throw new IllegalStateException("a commit record has version " + commit.get("v") + "; 2 is known");
        }
        List<Object> found = new ArrayList<>();
        Json.object(commit.get("offsets")).forEach((topic, partitions) -> // R3; there may be none (R7)
                Json.object(partitions).forEach((partition, range) -> {
                    List<?> held = (List<?>) range;
                    TopicPartition place = new TopicPartition(topic, Integer.parseInt(partition));
                    long first = ((BigInteger) held.get(1)).longValueExact();
                    long last = ((BigInteger) held.get(2)).longValueExact();
                    each(documents, place, first, last, record -> found.add(document(record)));
                }));
        Map<String, Object> printed = new LinkedHashMap<>();
        printed.put("id", String.format("%08X-%016X", commit.get("timeline"), commit.get("commit_lsn")));
        printed.put("xid", commit.get("xid"));
        printed.put("skipped", commit.getOrDefault("skipped", List.of())); // R11
        printed.put("documents", found);
        return Json.text(printed);
    }

    private static List<Object> document(ConsumerRecord<byte[], byte[]> record) {
        List<Object> document = new ArrayList<>(List.of(record.topic(), record.partition(), record.offset()));
        document.add(text(record.key()));
        document.add(text(record.value())); // null: it was deleted
        return document;
    }

    private static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    /** Reads and writes JSON; numbers without a fraction are exact. */
    static final class Json {
        private final String text;
        private int at;

        private Json(String text) {
            this.text = text;
        }

        static Object parse(String text) {
            return new Json(text).value();
        }

        @SuppressWarnings("unchecked")
        static Map<String, Object> object(Object value) {
            return (Map<String, Object>) value;
        }

        static String text(Object value) {
            if (value instanceof String string) {
                return quoted(string);
            }
            if (value instanceof List<?> list) {
                return "[" + String.join(",", list.stream().map(Json::text).toList()) + "]";
            }
            if (value instanceof Map<?, ?> map) {
                List<String> members = new ArrayList<>();
                map.forEach((name, member) -> members.add(text(name) + ":" + text(member)));
                return "{" + String.join(",", members) + "}";
            }
            return String.valueOf(value);
        }

        private static String quoted(String string) {
            StringBuilder quoted = new StringBuilder("\"");
            for (char each : string.toCharArray()) {
                boolean plain = each >= ' ' && each <= '~' && each != '"' && each != '\\';
                quoted.append(plain ? String.valueOf(each) : String.format("\\u%04x", (int) each));
            }
            return quoted.append('"').toString();
        }

        private Object value() {
            char begin = next();
            return switch (begin) {
                case '{' -> members(new LinkedHashMap<>());
                case '[' -> items(new ArrayList<>());
                case '"' -> string();
                default -> literal();
            };
        }

        private Map<String, Object> members(Map<String, Object> found) {
            at++;
            while (next() != '}') {
                String name = string();
                expect(':');
                found.put(name, value());
                if (next() == ',') {
                    at++;
                }
            }
            at++;
            return found;
        }

        private List<Object> items(List<Object> found) {
            at++;
            while (next() != ']') {
                found.add(value());
                if (next() == ',') {
                    at++;
                }
            }
            at++;
            return found;
        }

        private String string() {
            expect('"');
            StringBuilder found = new StringBuilder();
            while (text.charAt(at) != '"') {
                char each = text.charAt(at++);
                found.append(each == '\\' ? escaped() : each);
            }
            at++;
            return found.toString();
        }

        private char escaped() {
            char kind = text.charAt(at++);
            if (kind != 'u') {
                int known = "nrtbf".indexOf(kind);
                return known < 0 ? kind : "\n\r\t\b\f".charAt(known);
            }
            at += 4;
            return (char) Integer.parseInt(text.substring(at - 4, at), 16);
        }

        private Object literal() {
            int begin = at;
            while (at < text.length() && ",:]} \t\r\n".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String word = text.substring(begin, at);
            return switch (word) {
                case "null" -> null;
                case "true", "false" -> Boolean.valueOf(word);
                default -> word.matches("-?\\d+") ? new BigInteger(word) : Double.valueOf(word);
            };
        }

        private char next() {
            while (Character.isWhitespace(text.charAt(at))) {
                at++;
            }
            return text.charAt(at);
        }

        private void expect(char wanted) {
            if (next() != wanted) {
                throw new IllegalArgumentException("expected " + wanted + " at " + at + " of " + text);
            }
            at++;
        }
    }
}
