import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** What the client generations offer differently or not at all. */
interface Generation {
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
