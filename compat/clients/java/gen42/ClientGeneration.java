import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.RPCHook;

/** The client 4.2 to 4.5, for sending and for consumers that push and pull. It has no setters for arbitrary times, so its users write the properties. */
final class ClientGeneration implements Generation {
    private static final String TOO_OLD = "this client is too old";

    @Override
    public Extras extras(Driver driver) {
        return new Extras() {
            @Override
            public Object execute(JSONObject request) {
                throw new UnsupportedOperationException(TOO_OLD);
            }

            @Override
            public MessageListenerConcurrently replying(JSONObject request) {
                throw new UnsupportedOperationException(TOO_OLD);
            }

            @Override
            public void close(String name) {}
        };
    }

    @Override
    public RPCHook signer(JSONObject request) {
        return null;
    }

    @Override
    public DefaultMQProducer producer(JSONObject request) {
        return new DefaultMQProducer(request.getString("group"));
    }

    @Override
    public DefaultMQPushConsumer pushConsumer(JSONObject request) {
        return new DefaultMQPushConsumer(request.getString("group"));
    }

    @Override
    public void configure(ClientConfig client, JSONObject request) {
        if (request.getString("namespace") != null || request.getBooleanValue("trace")) {
            throw new UnsupportedOperationException(TOO_OLD);
        }
    }

    @Override
    public void compress(DefaultMQProducer producer, String type) {
        throw new UnsupportedOperationException(TOO_OLD);
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
