import java.util.Collections;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** The client 5.x. */
final class ClientGeneration implements Generation {
    @Override
    public void setDeliverTimeMs(Message message, long epochMs) {
        message.setDeliverTimeMs(epochMs);
    }

    @Override
    public void setDelayTimeMs(Message message, long ms) {
        message.setDelayTimeMs(ms);
    }

    @Override
    public void setDelayTimeSec(Message message, long seconds) {
        message.setDelayTimeSec(seconds);
    }

    @Override
    public String recallHandle(SendResult result) {
        return result.getRecallHandle();
    }

    @Override
    public String recall(DefaultMQProducer producer, String topic, String handle) throws Exception {
        return producer.recallMessage(topic, handle);
    }

    @Override
    public void createTopic(DefaultMQProducer producer, String likeTopic, String topic, int queues)
            throws Exception {
        producer.createTopic(likeTopic, topic, queues, Collections.emptyMap());
    }

    @Override
    public void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    @Override
    public void askForQueues(DefaultMQPushConsumer consumer, long invisibleMs) {
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(invisibleMs);
    }
}
