import com.alibaba.fastjson.JSONObject;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** What clients have had since 4.6: transactions, replies, lite pull consumers, signatures, traces. */
final class Modern implements Extras {
    private final Driver driver;
    private final Map<String, DefaultLitePullConsumer> pollers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQProducer> repliers = new ConcurrentHashMap<>();

    Modern(Driver driver) {
        this.driver = driver;
    }

    static RPCHook signer(JSONObject request) {
        if (!request.containsKey("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(
                request.getString("accessKey"), request.getString("secretKey")));
    }

    static DefaultMQProducer producer(JSONObject request) {
        return new DefaultMQProducer(
                request.getString("group"),
                signer(request),
                request.getBooleanValue("trace"),
                null);
    }

    static DefaultMQPushConsumer pushConsumer(JSONObject request) {
        return new DefaultMQPushConsumer(
                request.getString("group"),
                signer(request),
                new AllocateMessageQueueAveragely(),
                request.getBooleanValue("trace"),
                null);
    }

    @Override
    public Object execute(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "transactor":
                return startTransactor(request);
            case "transact":
                return transact(request);
            case "request":
                return describeReply(driver.producer(request)
                        .request(Driver.message(request), request.getLongValue("timeoutMs")));
            case "poller":
                return startPoller(request);
            case "poll":
                return Driver.describe(pollers.get(request.getString("name"))
                        .poll(request.getLongValue("timeoutMs")));
            default:
                throw new IllegalArgumentException("no such request: " + request.get("do"));
        }
    }

    /** Starts a producer of transactions; each check that it gets is told as if it were consumed. */
    private Object startTransactor(JSONObject request) throws Exception {
        String name = request.getString("name");
        TransactionMQProducer producer =
                new TransactionMQProducer(request.getString("group"), signer(request));
        producer.setTransactionListener(new Decisions(message ->
                driver.tell(new JSONObject()
                        .fluentPut("consumer", name)
                        .fluentPut("message", Driver.describe(message)))));
        return driver.start(producer, request);
    }

    private Object transact(JSONObject request) throws Exception {
        TransactionMQProducer producer = (TransactionMQProducer) driver.producer(request);
        return Driver.describe(producer.sendMessageInTransaction(Driver.message(request), null));
    }

    private static JSONObject describeReply(Message reply) {
        return new JSONObject()
                .fluentPut("body", Base64.getEncoder().encodeToString(reply.getBody()))
                .fluentPut("properties", new JSONObject(new HashMap<>(reply.getProperties())));
    }

    @Override
    public MessageListenerConcurrently replying(JSONObject request) throws Exception {
        String name = request.getString("name");
        byte[] reply = Base64.getDecoder().decode(request.getString("reply"));
        DefaultMQProducer producer = producer(request);
        Driver.configure(producer, request);
        producer.start();
        repliers.put(name, producer);
        return (messages, context) -> {
            driver.receive(name, messages, 0);
            try {
                for (MessageExt message : messages) {
                    producer.send(MessageUtil.createReplyMessage(message, reply));
                }
            } catch (Exception failure) {
                throw new IllegalStateException(failure);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private Object startPoller(JSONObject request) throws Exception {
        DefaultLitePullConsumer poller =
                new DefaultLitePullConsumer(request.getString("group"), signer(request));
        Driver.configure(poller, request);
        poller.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from")));
        poller.subscribe(request.getString("topic"), request.getString("expression"));
        poller.start();
        pollers.put(request.getString("name"), poller);
        return true;
    }

    @Override
    public void close(String name) {
        DefaultLitePullConsumer poller = pollers.remove(name);
        if (poller != null) {
            poller.shutdown();
        }
        DefaultMQProducer replier = repliers.remove(name);
        if (replier != null) {
            new Thread(replier::shutdown).start(); // see Driver.close
        }
    }
}
