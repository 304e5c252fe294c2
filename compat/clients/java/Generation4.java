import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** The clients 4.x: they have no setters for arbitrary times, so their users write the properties. */
abstract class Generation4 implements Generation {
    @Override
    public void compress(DefaultMQProducer producer, String type) {
        throw new UnsupportedOperationException("this client compresses with ZLIB");
    }

    @Override
    public void setDeliverTimeMs(Message message, long epochMs) {
        message.putUserProperty("TIMER_DELIVER_MS", String.valueOf(epochMs));
    }

    @Override
    public void setDelayTimeMs(Message message, long ms) {
        message.putUserProperty("TIMER_DELAY_MS", String.valueOf(ms));
    }

    @Override
    public void setDelayTimeSec(Message message, long seconds) {
        message.putUserProperty("TIMER_DELAY_SEC", String.valueOf(seconds));
    }

    @Override
    public String recallHandle(SendResult result) {
        return null;
    }

    @Override
    public String recall(DefaultMQProducer producer, String topic, String handle) {
        throw new UnsupportedOperationException("the client 4.x cannot recall");
    }

    @Override
    public void createTopic(DefaultMQProducer producer, String likeTopic, String topic, int queues)
            throws Exception {
        producer.createTopic(likeTopic, topic, queues);
    }

    @Override
    public void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    @Override
    public void askForQueues(DefaultMQPushConsumer consumer, long invisibleMs) {
        throw new UnsupportedOperationException("this client works its queues out itself");
    }
}
