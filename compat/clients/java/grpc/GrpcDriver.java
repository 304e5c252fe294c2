import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Base64;
import java.util.Collections;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Does with the client of the gRPC protocol what it is told.
 *
 * <p>A message that a simple consumer received has a number, its "held", by which it is acknowledged
 * or hidden for another time. A push consumer keeps what came until it is asked. All live until the
 * program ends: to shut one down takes as long as it waits for messages.
 */
public final class GrpcDriver extends Conversation {
    /** On a busy machine nothing that works takes so long. */
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(60);

    /** How long a receive waits for a message; the least that the Proxy takes. */
    private static final Duration AWAIT = Duration.ofSeconds(5);

    /** How often the listener refuses a message. */
    private static final String FAILURES = "failures";

    /** What is said of a transaction that is asked about. */
    private static final String ASKED = "asked";

    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final FilterExpression ALL = new FilterExpression("*");

    private final Map<String, Producer> producers = new ConcurrentHashMap<>();
    private final Map<String, SimpleConsumer> simpleConsumers = new ConcurrentHashMap<>();
    private final Map<String, JSONArray> inboxes = new ConcurrentHashMap<>();
    private final Map<Long, MessageView> held = new ConcurrentHashMap<>();
    private final AtomicLong numbers = new AtomicLong();

    private GrpcDriver() throws IOException {}

    public static void main(String[] arguments) throws Exception {
        new GrpcDriver().hold();
    }

    @Override
    Object execute(JSONObject request) throws Exception {
        String name = request.getString("name");
        switch (request.getString("do")) {
            case "producer":
                return startProducer(name, request);
            case "send":
                return send(producers.get(name), request);
            case "recall":
                return producers.get(name)
                        .recallMessage(request.getString("topic"), request.getString("handle"))
                        .getMessageId()
                        .toString();
            case "simple":
                return startSimpleConsumer(name, request);
            case "receive":
                return receive(simpleConsumers.get(name), request);
            case "ack":
                simpleConsumers.get(name).ack(held.get(request.getLong("held")));
                return true;
            case "hide":
                simpleConsumers.get(name).changeInvisibleDuration(
                        held.get(request.getLong("held")), milliseconds(request, "invisibleMs"));
                return true;
            case "push":
                return startPushConsumer(name, request);
            case "received":
                return received(inboxes.get(name), request.getIntValue("count"));
            default:
                throw new IllegalArgumentException("cannot " + request.get("do"));
        }
    }

    private static ClientConfiguration configuration(JSONObject request) {
        return ClientConfiguration.newBuilder()
                .setEndpoints(request.getString("endpoints"))
                .enableSsl(false)
                .setRequestTimeout(REQUEST_TIMEOUT)
                .build();
    }

    private static Map<String, FilterExpression> subscription(JSONObject request) {
        return Collections.singletonMap(request.getString("topic"), ALL);
    }

    private static Duration milliseconds(JSONObject request, String field) {
        return Duration.ofMillis(request.getLongValue(field));
    }

    // --- producers ---

    private Object startProducer(String name, JSONObject request) throws Exception {
        producers.put(name, PROVIDER.newProducerBuilder()
                .setClientConfiguration(configuration(request))
                .setTopics(request.getString("topic"))
                .setTransactionChecker(message ->
                        TransactionResolution.valueOf(message.getProperties().get(ASKED)))
                .build());
        return true;
    }

    /** Sends a message; in a transaction if there is to be a "decision", which may be "none". */
    private static Object send(Producer producer, JSONObject request) throws Exception {
        Message message = message(request);
        SendReceipt receipt;
        if (request.containsKey("decision")) {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(message, transaction);
            switch (request.getString("decision")) {
                case "commit":
                    transaction.commit();
                    break;
                case "rollback":
                    transaction.rollback();
                    break;
                default: // it will be asked about
            }
        } else {
            receipt = producer.send(message);
        }
        return new JSONObject()
                .fluentPut("messageId", receipt.getMessageId().toString())
                .fluentPut("recallHandle", receipt.getRecallHandle());
    }

    private static Message message(JSONObject request) {
        MessageBuilder message = PROVIDER.newMessageBuilder()
                .setTopic(request.getString("topic"))
                .setBody(Base64.getDecoder().decode(request.getString("body")));
        if (request.containsKey("messageGroup")) {
            message.setMessageGroup(request.getString("messageGroup"));
        }
        if (request.containsKey("deliverTimeMs")) {
            message.setDeliveryTimestamp(request.getLongValue("deliverTimeMs"));
        }
        request.getJSONObject("properties")
                .forEach((property, value) -> message.addProperty(property, (String) value));
        return message.build();
    }

    // --- consumers ---

    private Object startSimpleConsumer(String name, JSONObject request) throws Exception {
        simpleConsumers.put(name, PROVIDER.newSimpleConsumerBuilder()
                .setClientConfiguration(configuration(request))
                .setConsumerGroup(request.getString("group"))
                .setAwaitDuration(AWAIT)
                .setSubscriptionExpressions(subscription(request))
                .build());
        return true;
    }

    private Object receive(SimpleConsumer consumer, JSONObject request) throws Exception {
        JSONArray told = new JSONArray();
        for (MessageView message : consumer.receive(32, milliseconds(request, "invisibleMs"))) {
            long number = numbers.incrementAndGet();
            held.put(number, message);
            told.add(describe(message).fluentPut("held", number));
        }
        return told;
    }

    private Object startPushConsumer(String name, JSONObject request) throws Exception {
        JSONArray inbox = new JSONArray();
        inboxes.put(name, inbox);
        PROVIDER.newPushConsumerBuilder()
                .setClientConfiguration(configuration(request))
                .setConsumerGroup(request.getString("group"))
                .setSubscriptionExpressions(subscription(request))
                .setMessageListener(message -> {
                    synchronized (inbox) {
                        inbox.add(describe(message));
                        inbox.notifyAll();
                    }
                    String failures = message.getProperties().getOrDefault(FAILURES, "0");
                    return message.getDeliveryAttempt() > Integer.parseInt(failures)
                            ? ConsumeResult.SUCCESS
                            : ConsumeResult.FAILURE;
                })
                .build();
        return true;
    }

    /** All that a push consumer has received, in order of arrival, once it is so much. */
    private static Object received(JSONArray inbox, int count) throws InterruptedException {
        synchronized (inbox) {
            while (inbox.size() < count) {
                inbox.wait();
            }
            return inbox.clone();
        }
    }

    private static JSONObject describe(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new JSONObject()
                .fluentPut("messageId", message.getMessageId().toString())
                .fluentPut("body", Base64.getEncoder().encodeToString(bytes))
                .fluentPut("attempt", message.getDeliveryAttempt())
                .fluentPut("messageGroup", message.getMessageGroup().orElse(null))
                .fluentPut("deliverTimeMs", message.getDeliveryTimestamp().orElse(null))
                .fluentPut("receivedMs", System.currentTimeMillis());
    }
}
