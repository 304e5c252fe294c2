import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;

/** What a client can do beyond what the driver asks of every version. */
interface Extras {
    /** Does what the request says; throws where the client cannot. */
    Object execute(JSONObject request) throws Exception;

    /** A listener that answers each message with the request's "reply". */
    MessageListenerConcurrently replying(JSONObject request) throws Exception;

    /** Shuts down what was started under a name, if anything was. */
    void close(String name);
}
