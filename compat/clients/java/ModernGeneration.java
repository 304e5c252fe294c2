import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.remoting.RPCHook;

/** Clients that sign, trace and have {@link Modern}'s extras. */
interface ModernGeneration extends Generation {
    @Override
    default Extras extras(Driver driver) {
        return new Modern(driver);
    }

    @Override
    default RPCHook signer(JSONObject request) {
        return Modern.signer(request);
    }

    @Override
    default DefaultMQProducer producer(JSONObject request) {
        return Modern.producer(request);
    }

    @Override
    default DefaultMQPushConsumer pushConsumer(JSONObject request) {
        return Modern.pushConsumer(request);
    }
}
