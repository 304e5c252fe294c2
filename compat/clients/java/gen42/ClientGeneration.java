import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.RPCHook;

/** The client 4.2 to 4.5, for sending and for consumers that push and pull. */
final class ClientGeneration extends Generation4 {
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
}
