import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.ClientConfig;

/** The client 4.6 to 4.9. */
final class ClientGeneration extends Generation4 implements ModernGeneration {
    @Override
    public void configure(ClientConfig client, JSONObject request) {
        client.setNamespace(request.getString("namespace"));
        client.setMqClientApiTimeout(Driver.patienceMs(request));
    }
}
