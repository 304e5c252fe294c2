import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/** What the client generations offer differently or not at all. */
interface Generation {
    Extras extras(Driver driver);

    /** What signs each request with "secretKey" as the user of "accessKey"; null without them. */
    RPCHook signer(JSONObject request);

    /** A producer of "group", signing and traced as the request says. */
    DefaultMQProducer producer(JSONObject request);

    /** Likewise a push consumer. */
    DefaultMQPushConsumer pushConsumer(JSONObject request);

    /** Sets what only some clients have: "namespace", "namespaceV2". */
    void configure(ClientConfig client, JSONObject request);

    /** Compresses by LZ4, ZSTD or ZLIB. */
    void compress(DefaultMQProducer producer, String type);

    void setDeliverTimeMs(Message message, long epochMs);

    void setDelayTimeMs(Message message, long ms);

    void setDelayTimeSec(Message message, long seconds);

    /** Null where the client does not know handles. */
    String recallHandle(SendResult result);

    String recall(DefaultMQProducer producer, String topic, String handle) throws Exception;

    void createTopic(DefaultMQProducer producer, String likeTopic, String topic, int queues)
            throws Exception;

    void broadcast(DefaultMQPushConsumer consumer);

    /** Leaves it to the server which queues the consumer gets, and whether it pulls or pops. */
    void askForQueues(DefaultMQPushConsumer consumer, long invisibleMs);
}
