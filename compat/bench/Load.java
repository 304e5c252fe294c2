import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The benchmark's load: the official client sends, and consumes, against one name server address.
 *
 * <p>It measures and writes down; it judges nothing. Arguments are key=value pairs, see {@link Plan}. Standard output
 * carries one JSON object a line, in this order:
 *
 * <pre>
 *   {"event":"ready"}                              warmed up; waits for one line on standard input
 *   {"event":"progress","sent":n,"received":n}     twice a second
 *   {"event":"sent","seconds":s,...}               the last answer to a send has arrived
 *   {"event":"drained","complete":true|false}      all that was acknowledged was received, or the wait is over
 *   {"event":"done","gc_ms":n,"failures":{..}}     the records are written
 * </pre>
 *
 * Two files of big-endian 64-bit integers are left in the records folder. sent.bin has three for each send: id, asked
 * time (epoch ms, 0 for "now"), latency in ns (-1: not acknowledged). received.bin has four for each message that a
 * listener was given: id, asked time, time of receipt, the server's store time (all epoch ms; for a message that was
 * for now the asked time is the time at which its send began). Warm-up messages are in neither.
 */
public final class Load {
    /** The events' stream. Everything else that is printed in this process, by loggers above all, goes to standard error. */
    private static final PrintStream EVENTS = System.out;

    private static final String ASKED = "asked";
    private static final int LEAST_BODY = 8;

    /** Ids below this one belong to the warm-up. */
    private static final long FIRST_ID = 1L << 40;

    /** How long nothing may arrive before the consumer is believed to have seen everything. */
    private static final long QUIET_MS = 1_000;

    private final Plan plan;
    private final DefaultMQProducer producer;
    private final DefaultMQPushConsumer consumer;
    private final LongAdder received = new LongAdder();
    private final LongAdder warmedUp = new LongAdder();
    private volatile long lastReceipt;
    private final ConcurrentLinkedQueue<Records> receipts = new ConcurrentLinkedQueue<>();
    private final ThreadLocal<Records> ownReceipts = ThreadLocal.withInitial(() -> {
        Records own = new Records();
        receipts.add(own);
        return own;
    });

    private Load(Plan plan) {
        this.plan = plan;
        producer = new DefaultMQProducer(plan.group + "-producer");
        producer.setNamesrvAddr(plan.namesrv);
        producer.setSendMsgTimeout(10_000);
        // A send that is tried again could double a message by itself.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setMaxMessageSize(5 * 1024 * 1024);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        consumer = plan.consume ? new DefaultMQPushConsumer(plan.group) : null;
    }

    public static void main(String[] args) {
        System.setOut(System.err);
        int status = 0;
        try {
            new Load(Plan.of(args)).run();
        } catch (Exception error) {
            error.printStackTrace();
            status = 1;
        }
        // The client's own threads do not always end by themselves.
        Runtime.getRuntime().halt(status);
    }

    private void run() throws Exception {
        producer.start();
        createTopic();
        if (consumer != null) {
            startConsumer();
        }
        if (plan.warmup > 0) {
            warmUp();
        }
        say("{\"event\":\"ready\"}");
        if (new BufferedInputStream(System.in).read() < 0) {
            throw new IOException("nobody said to go");
        }

        long gcBefore = gcMillis();
        LongAdder sent = new LongAdder();
        Thread reporter = new Thread(() -> report(sent), "report");
        reporter.setDaemon(true);
        reporter.start();

        long begin = System.nanoTime();
        List<Sender> senders = send(FIRST_ID, plan.seconds, sent);
        double seconds = (System.nanoTime() - begin) / 1e9;
        long acks = 0;
        Map<String, Long> failures = new TreeMap<>();
        for (Sender sender : senders) {
            acks += sender.acknowledged;
            sender.failures.forEach((text, count) -> failures.merge(text, count, Long::sum));
        }
        say("{\"event\":\"sent\",\"seconds\":" + seconds + ",\"sent\":" + sent.sum() + ",\"acknowledged\":" + acks + "}");

        if (consumer != null) {
            say("{\"event\":\"drained\",\"complete\":" + drain(acks) + "}");
            waitForQuiet();
            consumer.shutdown();
        }
        reporter.interrupt();
        long gcAfter = gcMillis();
        write("sent.bin", senders.stream().map(sender -> sender.records).collect(Collectors.toList()));
        write("received.bin", List.copyOf(receipts));
        StringBuilder done = new StringBuilder("{\"event\":\"done\",\"gc_ms\":" + (gcAfter - gcBefore) + ",\"failures\":{");
        String comma = "";
        for (Map.Entry<String, Long> failure : failures.entrySet()) {
            done.append(comma).append(quoted(failure.getKey())).append(':').append(failure.getValue());
            comma = ",";
        }
        say(done.append("}}").toString());
    }

    /** Makes the topic, and waits until a send to it finds its route. */
    private void createTopic() throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            try {
                producer.createTopic("TBW102", plan.topic, plan.queues, new HashMap<>());
                if (producer.fetchPublishMessageQueues(plan.topic).size() == plan.queues) {
                    return;
                }
            } catch (MQClientException error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
            }
            if (System.nanoTime() > deadline) {
                throw new IOException("topic " + plan.topic + " has no route");
            }
            Thread.sleep(200);
        }
    }

    /** Starts the consumer and waits until it has every queue: a new topic is otherwise found only by the next poll. */
    private void startConsumer() throws Exception {
        consumer.setNamesrvAddr(plan.namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(plan.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.currentTimeMillis();
            Records own = ownReceipts.get();
            int measured = 0;
            for (MessageExt message : messages) {
                long id = ByteBuffer.wrap(message.getBody()).getLong();
                if (id >= FIRST_ID) {
                    long asked = Long.parseLong(message.getUserProperty(ASKED));
                    own.add(id, asked, now, message.getStoreTimestamp());
                    measured++;
                }
            }
            received.add(measured);
            warmedUp.add(messages.size() - measured);
            lastReceipt = now;
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (assigned() < plan.queues) {
            if (System.nanoTime() > deadline) {
                throw new IOException("only " + assigned() + " of " + plan.queues + " queues were assigned");
            }
            Thread.sleep(50);
        }
    }

    private long assigned() {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(plan.topic))
            .count();
    }

    /** Runs the same load for a while, so that neither side is measured while its code is still being compiled. */
    private void warmUp() throws InterruptedException {
        long acks = 0;
        for (Sender sender : send(0, plan.warmup, new LongAdder())) {
            acks += sender.acknowledged;
        }
        if (consumer != null) {
            long deadline = System.currentTimeMillis() + plan.longestDelay() + 10_000;
            while (warmedUp.sum() < acks && System.currentTimeMillis() < deadline) {
                Thread.sleep(20);
            }
        }
    }

    private List<Sender> send(long firstId, double seconds, LongAdder sent) throws InterruptedException {
        AtomicLong ids = new AtomicLong(firstId);
        long begin = System.nanoTime();
        long end = begin + (long) (seconds * 1e9);
        List<Sender> senders = new ArrayList<>();
        for (int i = 0; i < plan.threads; i++) {
            senders.add(new Sender(i, begin, end, ids, sent));
        }
        senders.forEach(Thread::start);
        for (Sender sender : senders) {
            sender.join();
        }
        return senders;
    }

    private boolean drain(long acknowledged) throws InterruptedException {
        long deadline = System.currentTimeMillis() + plan.longestDelay() + plan.patience * 1_000L;
        while (received.sum() < acknowledged) {
            if (System.currentTimeMillis() > deadline) {
                return false;
            }
            Thread.sleep(5);
        }
        return true;
    }

    private void waitForQuiet() throws InterruptedException {
        long deadline = System.currentTimeMillis() + 10 * QUIET_MS;
        long begin = System.currentTimeMillis();
        while (System.currentTimeMillis() < Math.min(deadline, Math.max(lastReceipt, begin) + QUIET_MS)) {
            Thread.sleep(20);
        }
    }

    private void report(LongAdder sent) {
        try {
            while (true) {
                Thread.sleep(500);
                say("{\"event\":\"progress\",\"sent\":" + sent.sum() + ",\"received\":" + received.sum() + "}");
            }
        } catch (InterruptedException ended) {
            // The run is over: nothing is left to report.
        }
    }

    private void write(String name, List<Records> parts) throws IOException {
        Path file = plan.records.resolve(name);
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file), 1 << 20))) {
            for (Records part : parts) {
                for (int i = 0; i < part.size; i++) {
                    out.writeLong(part.values[i]);
                }
            }
        }
    }

    private static long gcMillis() {
        return ManagementFactory.getGarbageCollectorMXBeans().stream()
            .mapToLong(GarbageCollectorMXBean::getCollectionTime)
            .sum();
    }

    private static synchronized void say(String line) {
        EVENTS.println(line);
        EVENTS.flush();
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else {
                out.append(c < ' ' ? ' ' : c);
            }
        }
        return out.append('"').toString();
    }

    /** One sending thread: in a closed loop, or at its share of the rate. */
    private final class Sender extends Thread {
        final Records records = new Records();
        final Map<String, Long> failures = new HashMap<>();
        long acknowledged;
        private final int number;
        private final long begin;
        private final long end;
        private final AtomicLong ids;
        private final LongAdder sent;
        private final SplittableRandom random;

        Sender(int number, long begin, long end, AtomicLong ids, LongAdder sent) {
            super("send-" + number);
            this.number = number;
            this.begin = begin;
            this.end = end;
            this.ids = ids;
            this.sent = sent;
            random = new SplittableRandom(number);
        }

        @Override
        public void run() {
            byte[] filler = new byte[Math.max(plan.body, LEAST_BODY)];
            Arrays.fill(filler, (byte) 'x');
            double interval = plan.rate > 0 ? 1e9 / plan.rate : 0;
            for (long turn = 0; ; turn++) {
                long start = System.nanoTime();
                if (plan.rate > 0) {
                    // Counted from when it should have begun, so that a slow answer is not hidden by sending less.
                    long due = begin + (long) ((turn * plan.threads + number) * interval);
                    if (due >= end) {
                        return;
                    }
                    while (start < due) {
                        LockSupport.parkNanos(due - start);
                        start = System.nanoTime();
                    }
                    start = due;
                } else if (start >= end) {
                    return;
                }
                sendOne(filler.clone(), start);
            }
        }

        private void sendOne(byte[] body, long start) {
            long id = ids.getAndIncrement();
            ByteBuffer.wrap(body).putLong(id);
            Message message = new Message(plan.topic, body);
            long asked = System.currentTimeMillis();
            if (plan.levels.length > 0) {
                int chosen = random.nextInt(plan.levels.length);
                message.setDelayTimeLevel(plan.levels[chosen]);
                asked += Plan.LEVEL_MS[plan.levels[chosen] - 1];
            } else if (plan.delayMax > 0) {
                asked += random.nextLong(plan.delayMin, plan.delayMax + 1);
                message.setDeliverTimeMs(asked);
            }
            message.putUserProperty(ASKED, Long.toString(asked));
            long latency = -1;
            try {
                SendResult result = producer.send(message);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    latency = System.nanoTime() - start;
                    acknowledged++;
                } else {
                    failures.merge(result.getSendStatus().name(), 1L, Long::sum);
                }
            } catch (Exception error) {
                failures.merge(kind(error), 1L, Long::sum);
                LockSupport.parkNanos(10_000_000);
            }
            sent.increment();
            if (id >= FIRST_ID) {
                records.add(id, asked, latency);
            }
        }

        /** The start of an error's text: enough to tell kinds apart, without the ids that make each one unique. */
        private String kind(Exception error) {
            String text = String.valueOf(error.getMessage());
            return error.getClass().getSimpleName() + ": " + text.substring(0, Math.min(60, text.length()));
        }
    }

    /** A growing list of numbers that one thread writes. */
    private static final class Records {
        long[] values = new long[1 << 14];
        int size;

        void add(long... row) {
            if (size + row.length > values.length) {
                values = Arrays.copyOf(values, values.length * 2);
            }
            for (long value : row) {
                values[size++] = value;
            }
        }
    }

    /** What to do; every time is in the unit that its name or comment gives. */
    private static final class Plan {
        /** The default table of MessageStoreConfig.messageDelayLevel. */
        static final long[] LEVEL_MS = {
            1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
            600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000
        };

        String namesrv;
        String topic;
        String group;
        Path records;
        int queues;
        int threads;
        /** Sends per second of all threads together; 0: each sends as soon as it has its answer. */
        int rate;
        /** Bytes. */
        int body;
        double seconds;
        /** Seconds. */
        double warmup;
        /** Delay in ms, uniform between both; 0 and 0: for now. */
        long delayMin;
        long delayMax;
        /** Delay levels to choose from, instead of a delay. */
        int[] levels;
        boolean consume;
        /** Seconds to wait for the last message after it was due. */
        int patience;

        static Plan of(String[] args) {
            Map<String, String> given = new HashMap<>();
            for (String arg : args) {
                int equals = arg.indexOf('=');
                given.put(arg.substring(0, equals), arg.substring(equals + 1));
            }
            Plan plan = new Plan();
            plan.namesrv = given.get("namesrv");
            plan.topic = given.get("topic");
            plan.group = given.get("group");
            plan.records = Path.of(given.get("records"));
            plan.queues = Integer.parseInt(given.get("queues"));
            plan.threads = Integer.parseInt(given.get("threads"));
            plan.rate = Integer.parseInt(given.get("rate"));
            plan.body = Integer.parseInt(given.get("body"));
            plan.seconds = Double.parseDouble(given.get("seconds"));
            plan.warmup = Double.parseDouble(given.get("warmup"));
            plan.delayMin = Long.parseLong(given.get("delay_min"));
            plan.delayMax = Long.parseLong(given.get("delay_max"));
            String levels = given.get("levels");
            plan.levels = levels.isEmpty()
                ? new int[0]
                : Arrays.stream(levels.split(",")).mapToInt(Integer::parseInt).toArray();
            plan.consume = Boolean.parseBoolean(given.get("consume"));
            plan.patience = Integer.parseInt(given.get("patience"));
            return plan;
        }

        long longestDelay() {
            return levels.length > 0 ? LEVEL_MS[Arrays.stream(levels).max().getAsInt() - 1] : delayMax;
        }
    }
}
