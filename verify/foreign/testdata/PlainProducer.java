import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes orders of some customers with the client's default settings: a key, a value, no header. */
public class PlainProducer {
    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", args[0]);
        config.put("key.serializer", StringSerializer.class.getName());
        config.put("value.serializer", StringSerializer.class.getName());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config)) {
            for (int n = 0; n < Integer.parseInt(args[2]); n++) {
                for (int c = 0; c < Integer.parseInt(args[3]); c++) {
                    String value = String.format("{\"Customer\":\"c%d\",\"N\":%d}", c, n);
                    sent.add(producer.send(new ProducerRecord<>(args[1], "c" + c, value)));
                }
            }
        }
        for (Future<RecordMetadata> one : sent) {
            one.get();
        }
    }
}
