import com.alibaba.fastjson.JSONObject;
import java.util.Collections;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** The client 5.x. */
final class ClientGeneration implements ModernGeneration {
    @Override
    @SuppressWarnings("deprecation") // which the later namespaces make of the former
    public void configure(ClientConfig client, JSONObject request) {
        client.setNamespace(request.getString("namespace"));
        client.setMqClientApiTimeout(Driver.patienceMs(request));
        client.setTraceMsgBatchNum(1); // else it waits for seconds for others to go along
        client.setNamespaceV2(request.getString("namespaceV2"));
    }

    @Override
    public void compress(DefaultMQProducer producer, String type) {
        producer.setCompressType(CompressionType.valueOf(type));
    }

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
