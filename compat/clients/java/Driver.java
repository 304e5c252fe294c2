import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Does with the official client what it is told.
 *
 * <p>A request has what the method of its "do" below reads, and an error a code as well. A message
 * that a push consumer receives is a line with "consumer" and "message".
 */
public final class Driver extends Conversation {
    /** Of a longer body only the length and the SHA-256 are told. */
    private static final int LONGEST_BODY_TOLD = 16 * 1024;

    private static final int PATIENCE_MS = 60_000;

    private static final Generation GENERATION = new ClientGeneration();

    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pullers = new ConcurrentHashMap<>();
    private final Extras extras;

    private Driver() throws IOException {
        this.extras = GENERATION.extras(this);
    }

    public static void main(String[] arguments) throws Exception {
        new Driver().hold();
    }

    @Override
    JSONObject error(Throwable failure) {
        return describe(failure);
    }

    @Override
    Object execute(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "producer":
                return startProducer(request);
            case "send":
                return send(request);
            case "recall":
                return GENERATION.recall(
                        producer(request), request.getString("topic"), request.getString("handle"));
            case "createTopic":
                GENERATION.createTopic(
                        producer(request),
                        request.getString("like"),
                        request.getString("topic"),
                        request.getIntValue("queues"));
                return true;
            case "view":
                return describe(
                        producer(request)
                                .viewMessage(request.getString("topic"), request.getString("of")));
            case "query":
                return query(request);
            case "consume":
                return startConsumer(request);
            case "assigned":
                return assigned(request);
            case "puller":
                return startPuller(request);
            case "queues":
                return puller(request)
                        .fetchSubscribeMessageQueues(request.getString("topic"))
                        .size();
            case "pull":
                return pull(request);
            case "offset":
                return offset(request);
            case "commit":
                return commit(request);
            case "close":
                return close(request.getString("name"));
            default:
                return extras.execute(request);
        }
    }

    DefaultMQProducer producer(JSONObject request) {
        return producers.get(request.getString("name"));
    }

    private DefaultMQPullConsumer puller(JSONObject request) {
        return pullers.get(request.getString("name"));
    }

    /** The settings that each kind of client has. Clients of one instance share connections. */
    static void configure(ClientConfig client, JSONObject request) {
        client.setNamesrvAddr(request.getString("namesrv"));
        client.setClientIP("127.0.0.1");
        client.setInstanceName(request.getString("instance"));
        client.setVipChannelEnabled(request.getBooleanValue("vipChannel"));
        client.setUseTLS(request.getBooleanValue("tls"));
        if (request.containsKey("heartbeatMs")) {
            client.setHeartbeatBrokerInterval(request.getIntValue("heartbeatMs"));
        }
        GENERATION.configure(client, request);
    }

    /**
     * How long a client waits for answers to what it asks by itself, such as routes, and to what its
     * user asks about topics and messages: as long as for those to its sends. Its own limits are 3
     * and 6 s.
     */
    static int patienceMs(JSONObject request) {
        return request.containsKey("timeoutMs") ? request.getIntValue("timeoutMs") : PATIENCE_MS;
    }

    // --- producers ---

    private Object startProducer(JSONObject request) throws Exception {
        return start(GENERATION.producer(request), request);
    }

    Object start(DefaultMQProducer producer, JSONObject request) throws Exception {
        configure(producer, request);
        producer.setSendMsgTimeout(request.getIntValue("timeoutMs"));
        producer.setMaxMessageSize(request.getIntValue("maxMessageSize"));
        producer.setRetryTimesWhenSendFailed(request.getIntValue("retries"));
        producer.setRetryTimesWhenSendAsyncFailed(request.getIntValue("retries"));
        if (request.containsKey("compression")) {
            GENERATION.compress(producer, request.getString("compression"));
        }
        producer.start();
        producer.getDefaultMQProducerImpl()
                .getmQClientFactory()
                .getMQAdminImpl()
                .setTimeoutMillis(patienceMs(request));
        producers.put(request.getString("name"), producer);
        return true;
    }

    /** Sends each of "messages" and answers with the result or the error of each, in order. */
    private Object send(JSONObject request) throws Exception {
        DefaultMQProducer producer = producer(request);
        JSONArray wanted = request.getJSONArray("messages");
        List<Message> messages = new ArrayList<>();
        for (Object each : wanted) {
            messages.add(message((JSONObject) each));
        }
        JSONArray results = new JSONArray();
        switch (request.getString("mode")) {
            case "sync":
                for (int i = 0; i < messages.size(); i++) {
                    results.add(sendOne(producer, messages.get(i), wanted.getJSONObject(i)));
                }
                return results;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return results;
            case "async":
                return sendAsync(producer, messages);
            case "batch":
                results.add(describe(producer.send(messages)));
                return results;
            default:
                throw new IllegalArgumentException("no such mode: " + request.get("mode"));
        }
    }

    private static JSONObject sendOne(DefaultMQProducer producer, Message message, JSONObject wanted)
            throws InterruptedException {
        try {
            Integer queue = wanted.getInteger("queue");
            if (queue == null) {
                return describe(producer.send(message));
            }
            String topic = message.getTopic();
            for (MessageQueue candidate : producer.fetchPublishMessageQueues(topic)) {
                if (candidate.getQueueId() == queue) {
                    return describe(producer.send(message, candidate));
                }
            }
            throw new IllegalArgumentException(topic + " has no queue " + queue);
        } catch (InterruptedException interruption) {
            throw interruption;
        } catch (Exception failure) {
            return new JSONObject().fluentPut("error", describe(failure));
        }
    }

    private static JSONArray sendAsync(DefaultMQProducer producer, List<Message> messages)
            throws Exception {
        JSONObject[] results = new JSONObject[messages.size()];
        CountDownLatch outstanding = new CountDownLatch(results.length);
        for (int i = 0; i < results.length; i++) {
            int place = i;
            producer.send(
                    messages.get(i),
                    new SendCallback() {
                        @Override
                        public void onSuccess(SendResult result) {
                            results[place] = describe(result);
                            outstanding.countDown();
                        }

                        @Override
                        public void onException(Throwable failure) {
                            results[place] = new JSONObject().fluentPut("error", describe(failure));
                            outstanding.countDown();
                        }
                    });
        }
        outstanding.await();
        JSONArray all = new JSONArray();
        for (JSONObject result : results) {
            all.add(result);
        }
        return all;
    }

    static Message message(JSONObject wanted) {
        Message message =
                new Message(wanted.getString("topic"), wanted.getString("tags"), body(wanted));
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getString("keys"));
        }
        if (wanted.containsKey("level")) {
            message.setDelayTimeLevel(wanted.getIntValue("level"));
        }
        if (wanted.containsKey("deliverTimeMs")) {
            GENERATION.setDeliverTimeMs(message, wanted.getLongValue("deliverTimeMs"));
        }
        if (wanted.containsKey("delayTimeMs")) {
            GENERATION.setDelayTimeMs(message, wanted.getLongValue("delayTimeMs"));
        }
        if (wanted.containsKey("delayTimeSec")) {
            GENERATION.setDelayTimeSec(message, wanted.getLongValue("delayTimeSec"));
        }
        if (wanted.containsKey("properties")) {
            // Not putUserProperty, which refuses the names that the client knows.
            wanted.getJSONObject("properties")
                    .forEach((name, value) ->
                            MessageAccessor.putProperty(message, name, String.valueOf(value)));
        }
        return message;
    }

    /** The base64 of "body", or "size" bytes that look random and are the same each time. */
    private static byte[] body(JSONObject wanted) {
        if (wanted.containsKey("body")) {
            return Base64.getDecoder().decode(wanted.getString("body"));
        }
        byte[] body = new byte[wanted.getIntValue("size")];
        new Random(body.length).nextBytes(body);
        return body;
    }

    private Object query(JSONObject request) throws Exception {
        QueryResult found =
                producer(request)
                        .queryMessage(
                                request.getString("topic"),
                                request.getString("key"),
                                request.getIntValue("limit"),
                                request.getLongValue("begin"),
                                request.getLongValue("end"));
        return describe(found.getMessageList());
    }

    // --- push consumers ---

    private Object startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = GENERATION.pushConsumer(request);
        configure(consumer, request);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(request.getString("from")));
        if (request.containsKey("since")) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            consumer.setConsumeTimestamp(request.getString("since"));
        }
        consumer.setMaxReconsumeTimes(request.getIntValue("maxReconsumeTimes"));
        if (request.getBooleanValue("broadcast")) {
            GENERATION.broadcast(consumer);
        }
        if (request.containsKey("popInvisibleMs")) {
            GENERATION.askForQueues(consumer, request.getLongValue("popInvisibleMs"));
        }
        request.getJSONObject("subscriptions").forEach((topic, expression) -> {
            try {
                if (request.getBooleanValue("sql")) {
                    consumer.subscribe(topic, MessageSelector.bySql((String) expression));
                } else {
                    consumer.subscribe(topic, (String) expression);
                }
            } catch (MQClientException failure) {
                throw new IllegalArgumentException(failure);
            }
        });
        if (request.containsKey("reply")) {
            consumer.registerMessageListener(extras.replying(request));
            return start(consumer, name);
        }
        int failFirst = request.getIntValue("failFirst");
        int retryLevel = request.getIntValue("retryLevel");
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                    receive(name, messages, failFirst)
                            ? ConsumeOrderlyStatus.SUCCESS
                            : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(retryLevel);
                return receive(name, messages, failFirst)
                        ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                        : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        return start(consumer, name);
    }

    private Object start(DefaultMQPushConsumer consumer, String name) throws Exception {
        consumer.start();
        consumers.put(name, consumer);
        return true;
    }

    /** Tells what came in; whether all of it is accepted, as it is from its "failFirst"th retry. */
    boolean receive(String name, List<MessageExt> messages, int failFirst) {
        long now = System.currentTimeMillis();
        boolean isAccepted = true;
        for (MessageExt message : messages) {
            isAccepted &= message.getReconsumeTimes() >= failFirst;
            tell(new JSONObject()
                    .fluentPut("consumer", name)
                    .fluentPut("message", describe(message).fluentPut("receivedMs", now)));
        }
        return isAccepted;
    }

    /**
     * The "queues" that a push consumer has now, as "topic:queue", and the "topics" that it knows
     * routes of, its group's retry topic among them, after it was made to look for new routes and
     * members of its group at once instead of at its next poll.
     */
    private Object assigned(JSONObject request) {
        DefaultMQPushConsumerImpl consumer =
                consumers.get(request.getString("name")).getDefaultMQPushConsumerImpl();
        for (String topic : consumer.getSubscriptionInner().keySet()) {
            consumer.getmQClientFactory().updateTopicRouteInfoFromNameServer(topic);
        }
        consumer.doRebalance();
        RebalanceImpl rebalance = consumer.getRebalanceImpl();
        List<String> queues = new ArrayList<>();
        for (MessageQueue queue : rebalance.getProcessQueueTable().keySet()) {
            queues.add(queue.getTopic() + ":" + queue.getQueueId());
        }
        return new JSONObject()
                .fluentPut("queues", queues)
                .fluentPut("topics", rebalance.getTopicSubscribeInfoTable().keySet());
    }

    // --- pull consumers ---

    private Object startPuller(JSONObject request) throws Exception {
        DefaultMQPullConsumer puller =
                new DefaultMQPullConsumer(request.getString("group"), GENERATION.signer(request));
        configure(puller, request);
        puller.start();
        pullers.put(request.getString("name"), puller);
        return true;
    }

    private MessageQueue queue(JSONObject request) throws Exception {
        String topic = request.getString("topic");
        int number = request.getIntValue("queue");
        for (MessageQueue queue : puller(request).fetchSubscribeMessageQueues(topic)) {
            if (queue.getQueueId() == number) {
                return queue;
            }
        }
        throw new IllegalArgumentException(topic + " has no queue " + number);
    }

    private Object pull(JSONObject request) throws Exception {
        DefaultMQPullConsumer puller = puller(request);
        MessageQueue queue = queue(request);
        String expression = request.getString("expression");
        long offset = request.getLongValue("offset");
        int limit = request.getIntValue("limit");
        PullResult result =
                request.getBooleanValue("block")
                        ? puller.pullBlockIfNotFound(queue, expression, offset, limit)
                        : puller.pull(queue, expression, offset, limit);
        return new JSONObject()
                .fluentPut("status", result.getPullStatus().name())
                .fluentPut("nextOffset", result.getNextBeginOffset())
                .fluentPut("minOffset", result.getMinOffset())
                .fluentPut("maxOffset", result.getMaxOffset())
                .fluentPut("messages", describe(result.getMsgFoundList()));
    }

    private Object offset(JSONObject request) throws Exception {
        DefaultMQPullConsumer puller = puller(request);
        MessageQueue queue = queue(request);
        switch (request.getString("which")) {
            case "min":
                return puller.minOffset(queue);
            case "max":
                return puller.maxOffset(queue);
            case "at":
                return puller.searchOffset(queue, request.getLongValue("timestampMs"));
            case "earliestTime":
                return puller.earliestMsgStoreTime(queue);
            case "committed":
                return puller.fetchConsumeOffset(queue, true);
            default:
                throw new IllegalArgumentException("no such offset: " + request.get("which"));
        }
    }

    private Object commit(JSONObject request) throws Exception {
        MessageQueue queue = queue(request);
        puller(request).updateConsumeOffset(queue, request.getLongValue("offset"));
        puller(request).getOffsetStore().persist(queue);
        return true;
    }

    private boolean close(String name) {
        DefaultMQProducer producer = producers.remove(name);
        if (producer != null) {
            // Its threads take up to three seconds to end, which nobody need wait for.
            new Thread(producer::shutdown).start();
        }
        DefaultMQPushConsumer consumer = consumers.remove(name);
        if (consumer != null) {
            consumer.shutdown();
        }
        DefaultMQPullConsumer puller = pullers.remove(name);
        if (puller != null) {
            puller.shutdown();
        }
        extras.close(name);
        return true;
    }

    // --- values as JSON ---

    private static JSONObject describe(Throwable failure) {
        JSONObject error = new JSONObject()
                .fluentPut("class", failure.getClass().getSimpleName())
                .fluentPut("message", String.valueOf(failure.getMessage()));
        if (failure instanceof MQBrokerException) {
            error.put("code", ((MQBrokerException) failure).getResponseCode());
            error.put("message", ((MQBrokerException) failure).getErrorMessage());
        } else if (failure instanceof MQClientException) {
            error.put("code", ((MQClientException) failure).getResponseCode());
        }
        return error;
    }

    static JSONObject describe(SendResult result) {
        return new JSONObject()
                .fluentPut("status", result.getSendStatus().name())
                .fluentPut("msgId", result.getMsgId())
                .fluentPut("offsetMsgId", result.getOffsetMsgId())
                .fluentPut("queue", result.getMessageQueue().getQueueId())
                .fluentPut("broker", result.getMessageQueue().getBrokerName())
                .fluentPut("queueOffset", result.getQueueOffset())
                .fluentPut("transactionId", result.getTransactionId())
                .fluentPut("regionId", result.getRegionId())
                .fluentPut("recallHandle", GENERATION.recallHandle(result));
    }

    static JSONArray describe(Collection<MessageExt> messages) {
        JSONArray all = new JSONArray();
        if (messages != null) {
            messages.forEach(message -> all.add(describe(message)));
        }
        return all;
    }

    static JSONObject describe(MessageExt message) {
        byte[] body = message.getBody();
        JSONObject told = new JSONObject()
                .fluentPut("msgId", message.getMsgId())
                .fluentPut("offsetMsgId", offsetMessageId(message))
                .fluentPut("topic", message.getTopic())
                .fluentPut("queue", message.getQueueId())
                .fluentPut("queueOffset", message.getQueueOffset())
                .fluentPut("commitLogOffset", message.getCommitLogOffset())
                .fluentPut("tags", message.getTags())
                .fluentPut("keys", message.getKeys())
                .fluentPut("flag", message.getFlag())
                .fluentPut("sysFlag", message.getSysFlag())
                .fluentPut("reconsumeTimes", message.getReconsumeTimes())
                .fluentPut("bornMs", message.getBornTimestamp())
                .fluentPut("storedMs", message.getStoreTimestamp())
                .fluentPut("bornHost", String.valueOf(message.getBornHost()))
                .fluentPut("storeHost", String.valueOf(message.getStoreHost()))
                .fluentPut("storeSize", message.getStoreSize())
                .fluentPut("bodyLength", body.length)
                .fluentPut("bodySha256", sha256(body))
                .fluentPut("properties", new JSONObject(new HashMap<>(message.getProperties())));
        if (body.length <= LONGEST_BODY_TOLD) {
            told.put("body", Base64.getEncoder().encodeToString(body));
        }
        return told;
    }

    /** MessageExt of a client tells its unique key as its id; the one with the place is beside it. */
    private static String offsetMessageId(MessageExt message) {
        return message instanceof MessageClientExt
                ? ((MessageClientExt) message).getOffsetMsgId()
                : null;
    }

    private static String sha256(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte each : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(String.format("%02x", each));
            }
            return text.toString();
        } catch (NoSuchAlgorithmException failure) {
            throw new IllegalStateException(failure);
        }
    }
}
