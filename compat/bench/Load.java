import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
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
import java.util.Random;
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
import org.apache.rocketmq.client.exception.MQBrokerException;
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
 *   {"event":"done","gc_ms":n,"failures":{..}}     the records are written; waits for the end of standard input
 * </pre>
 *
 * A storm is many messages of another topic that are all due within the same second; they are sent before "ready", and
 * the measured load begins shortly before they are due. They have a consumer of their own.
 *
 * <p>Files of big-endian 64-bit integers are left in the records folder. sent.bin has three for each send: id, asked
 * time (epoch ms, 0 for "now"), latency in ns (-1: not acknowledged). received.bin has four for each message that a
 * listener was given: id, asked time, time of receipt, the server's store time (all epoch ms; for a message that was
 * for now the asked time is the time at which its send began). storm-sent.bin and storm-received.bin hold the same of the
 * storm. Warm-up messages are in none.
 */
public final class Load {
    /** The events' stream. Everything else that is printed in this process, by loggers above all, goes to standard error. */
    private static final PrintStream EVENTS = System.out;

    private static final String ASKED = "asked";
    private static final int LEAST_BODY = 8;

    /** Ids below this one belong to the warm-up. */
    private static final long FIRST_ID = 1L << 40;
    private static final long FIRST_STORM_ID = 1L << 50;

    /** How long before the storm the measured load begins. */
    private static final long BEFORE_STORM_MS = 5_000;

    /** How long nothing may arrive before the consumer is believed to have seen everything. */
    private static final long QUIET_MS = 1_000;

    private final Plan plan;
    private final DefaultMQProducer producer;
    private final List<Receiver> receivers = new ArrayList<>();

    private Load(Plan plan) {
        this.plan = plan;
        producer = new DefaultMQProducer(plan.topic + "-producer");
        producer.setNamesrvAddr(plan.namesrv);
        producer.setSendMsgTimeout(10_000);
        // A send that is tried again could double a message by itself.
        producer.setRetryTimesWhenSendFailed(0);
        producer.setMaxMessageSize(5 * 1024 * 1024);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
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
        createTopic(plan.topic);
        if (plan.storm > 0) {
            createTopic(plan.stormTopic());
        }
        if (plan.consume) {
            receivers.add(new Receiver(plan.topic));
        }
        if (plan.storm > 0) {
            receivers.add(new Receiver(plan.stormTopic()));
        }
        for (Receiver receiver : receivers) {
            receiver.start();
        }
        if (plan.warmup > 0) {
            warmUp();
        }
        List<Sender> storm = plan.storm > 0 ? gatherStorm() : List.of();
        say("{\"event\":\"ready\"}");
        InputStream input = new BufferedInputStream(System.in);
        if (input.read() < 0) {
            throw new IOException("nobody said to go");
        }

        long gcBefore = gcMillis();
        Work work = Work.of(plan, FIRST_ID, plan.seconds);
        Thread reporter = new Thread(() -> report(work.sent), "report");
        reporter.setDaemon(true);
        reporter.start();

        List<Sender> senders = send(work);
        double seconds = (System.nanoTime() - work.begin) / 1e9;
        Map<String, Long> failures = new TreeMap<>();
        for (Sender sender : senders) {
            sender.failures.forEach((text, count) -> failures.merge(text, count, Long::sum));
        }
        long acknowledged = acknowledged(senders);
        say("{\"event\":\"sent\",\"seconds\":" + seconds + ",\"sent\":" + work.sent.sum() + ",\"acknowledged\":"
            + acknowledged + "}");

        if (!receivers.isEmpty()) {
            say("{\"event\":\"drained\",\"complete\":" + drain(acknowledged + acknowledged(storm)) + "}");
            waitForQuiet();
        }
        for (Receiver receiver : receivers) {
            receiver.consumer.shutdown();
        }
        reporter.interrupt();
        long gcAfter = gcMillis();
        write("sent.bin", senders.stream().map(sender -> sender.records).collect(Collectors.toList()));
        write("received.bin", plan.consume ? receivers.get(0).records() : List.of());
        if (plan.storm > 0) {
            write("storm-sent.bin", storm.stream().map(sender -> sender.records).collect(Collectors.toList()));
            write("storm-received.bin", receivers.get(receivers.size() - 1).records());
        }
        StringBuilder done = new StringBuilder("{\"event\":\"done\",\"gc_ms\":" + (gcAfter - gcBefore) + ",\"failures\":{");
        String comma = "";
        for (Map.Entry<String, Long> failure : failures.entrySet()) {
            done.append(comma).append(quoted(failure.getKey())).append(':').append(failure.getValue());
            comma = ",";
        }
        say(done.append("}}").toString());
        input.transferTo(OutputStream.nullOutputStream());
    }

    /** Makes a topic, and waits until a send to it finds its route. */
    private void createTopic(String topic) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            try {
                producer.createTopic("TBW102", topic, plan.queues, new HashMap<>());
                if (producer.fetchPublishMessageQueues(topic).size() == plan.allQueues()) {
                    return;
                }
            } catch (MQClientException error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
            }
            if (System.nanoTime() > deadline) {
                throw new IOException("topic " + topic + " has no route");
            }
            Thread.sleep(200);
        }
    }

    /** Runs the same load for a while, so that neither side is measured while its code is still being compiled. */
    private void warmUp() throws InterruptedException {
        long acknowledged = acknowledged(send(Work.of(plan, 0, plan.warmup)));
        long deadline = System.currentTimeMillis() + plan.longestDelay() + 10_000;
        while (plan.consume && receivers.get(0).warmedUp.sum() < acknowledged && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
    }

    /** Sends the storm, and waits until shortly before it is due. */
    private List<Sender> gatherStorm() throws Exception {
        // How fast the server takes them decides when they can be due: tried with messages for a day ahead.
        long begin = System.nanoTime();
        long tried = acknowledged(send(Work.storm(plan, 0, plan.storm / 20, System.currentTimeMillis() + 86_400_000)));
        double perSecond = Math.max(tried, 1) / ((System.nanoTime() - begin) / 1e9);
        long due = System.currentTimeMillis() + (long) (plan.storm / perSecond * 1_500) + 2 * BEFORE_STORM_MS;
        List<Sender> senders = send(Work.storm(plan, FIRST_STORM_ID, plan.storm, due / 1_000 * 1_000));
        long wait = due - BEFORE_STORM_MS - System.currentTimeMillis();
        if (wait < 0) {
            throw new IOException("the storm was due before all of it was sent");
        }
        Thread.sleep(wait);
        return senders;
    }

    private List<Sender> send(Work work) throws InterruptedException {
        List<Sender> senders = new ArrayList<>();
        for (int i = 0; i < plan.threads; i++) {
            senders.add(new Sender(i, work));
        }
        senders.forEach(Thread::start);
        for (Sender sender : senders) {
            sender.join();
        }
        return senders;
    }

    private static long acknowledged(List<Sender> senders) {
        return senders.stream().mapToLong(sender -> sender.acknowledged).sum();
    }

    private long received() {
        return receivers.stream().mapToLong(receiver -> receiver.received.sum()).sum();
    }

    private boolean drain(long acknowledged) throws InterruptedException {
        long deadline = System.currentTimeMillis() + plan.longestDelay() + plan.patience * 1_000L;
        while (received() < acknowledged) {
            if (System.currentTimeMillis() > deadline) {
                return false;
            }
            Thread.sleep(5);
        }
        return true;
    }

    private void waitForQuiet() throws InterruptedException {
        long begin = System.currentTimeMillis();
        long deadline = begin + 10 * QUIET_MS;
        while (true) {
            long last = receivers.stream().mapToLong(receiver -> receiver.lastReceipt).max().orElse(0);
            if (System.currentTimeMillis() >= Math.min(deadline, Math.max(last, begin) + QUIET_MS)) {
                return;
            }
            Thread.sleep(20);
        }
    }

    private void report(LongAdder sent) {
        try {
            while (true) {
                Thread.sleep(500);
                say("{\"event\":\"progress\",\"sent\":" + sent.sum() + ",\"received\":" + received() + "}");
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

    /** A push consumer of one topic, and what it was given. */
    private final class Receiver {
        final LongAdder received = new LongAdder();
        final LongAdder warmedUp = new LongAdder();
        volatile long lastReceipt;
        final DefaultMQPushConsumer consumer;
        private final String topic;
        private final ConcurrentLinkedQueue<Records> receipts = new ConcurrentLinkedQueue<>();
        private final ThreadLocal<Records> ownReceipts = ThreadLocal.withInitial(() -> {
            Records own = new Records();
            receipts.add(own);
            return own;
        });

        Receiver(String topic) {
            this.topic = topic;
            consumer = new DefaultMQPushConsumer(topic);
            consumer.setNamesrvAddr(plan.namesrv);
            // A client, and so a connection, of its own.
            consumer.setInstanceName(topic);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setConsumeMessageBatchMaxSize(32);
        }

        /** Starts and waits until it has every queue: a new topic is otherwise found only by the next poll. */
        void start() throws Exception {
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> receive(messages));
            consumer.start();
            long deadline = System.nanoTime() + 60_000_000_000L;
            while (assigned() < plan.allQueues()) {
                if (System.nanoTime() > deadline) {
                    throw new IOException("only " + assigned() + " of " + plan.allQueues() + " queues were assigned");
                }
                Thread.sleep(50);
            }
        }

        private ConsumeConcurrentlyStatus receive(List<MessageExt> messages) {
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
        }

        private long assigned() {
            return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .filter(queue -> queue.getTopic().equals(topic))
                .count();
        }

        List<Records> records() {
            return List.copyOf(receipts);
        }
    }

    /** What all sending threads do together. */
    private static final class Work {
        final String topic;
        final int rate;
        final long begin = System.nanoTime();
        final long end;
        final AtomicLong ids;
        final long lastId;
        /** When all are due, epoch ms; 0: as the plan says. */
        final long due;
        final LongAdder sent = new LongAdder();

        private Work(String topic, int rate, double seconds, long firstId, long count, long due) {
            this.topic = topic;
            this.rate = rate;
            end = begin + (long) (seconds * 1e9);
            ids = new AtomicLong(firstId);
            lastId = firstId + count;
            this.due = due;
        }

        /** The plan's load for so long. */
        static Work of(Plan plan, long firstId, double seconds) {
            return new Work(plan.topic, plan.rate, seconds, firstId, Long.MAX_VALUE / 2, 0);
        }

        /** So many messages of the storm, as fast as they are taken. */
        static Work storm(Plan plan, long firstId, long count, long due) {
            return new Work(plan.stormTopic(), 0, 3_600, firstId, count, due);
        }
    }

    /** One sending thread: in a closed loop, or at its share of the rate. */
    private final class Sender extends Thread {
        final Records records = new Records();
        final Map<String, Long> failures = new HashMap<>();
        long acknowledged;
        private final int number;
        private final Work work;
        private final SplittableRandom random;

        Sender(int number, Work work) {
            super("send-" + number);
            this.number = number;
            this.work = work;
            random = new SplittableRandom(number);
        }

        @Override
        public void run() {
            byte[] filler = new byte[Math.max(plan.body, LEAST_BODY)];
            // What a server may save by packing bodies would say nothing of real ones.
            new Random(number).nextBytes(filler);
            double interval = work.rate > 0 ? 1e9 / work.rate : 0;
            for (long turn = 0; ; turn++) {
                long start = System.nanoTime();
                if (work.rate > 0) {
                    // Counted from when it should have begun, so that a slow answer is not hidden by sending less.
                    long planned = work.begin + (long) ((turn * plan.threads + number) * interval);
                    if (planned >= work.end) {
                        return;
                    }
                    while (start < planned) {
                        LockSupport.parkNanos(planned - start);
                        start = System.nanoTime();
                    }
                    start = planned;
                } else if (start >= work.end) {
                    return;
                }
                long id = work.ids.getAndIncrement();
                if (id >= work.lastId) {
                    return;
                }
                sendOne(id, filler.clone(), start);
            }
        }

        private void sendOne(long id, byte[] body, long start) {
            ByteBuffer.wrap(body).putLong(id);
            Message message = new Message(work.topic, body);
            long asked = System.currentTimeMillis();
            if (work.due > 0) {
                asked = work.due + random.nextInt(1_000);
                message.setDeliverTimeMs(asked);
            } else if (plan.levels.length > 0) {
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
            work.sent.increment();
            if (id >= FIRST_ID) {
                records.add(id, asked, latency);
            }
        }

        /** What an error says, without the numbers that make each one unique: enough to tell kinds apart. */
        private String kind(Exception error) {
            if (error instanceof MQBrokerException) {
                MQBrokerException refusal = (MQBrokerException) error;
                return "code " + refusal.getResponseCode() + ", " + brief(refusal.getErrorMessage());
            }
            // The client wraps what the last try met.
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            if (cause != error && cause instanceof Exception) {
                return kind((Exception) cause);
            }
            return error.getClass().getSimpleName() + ", " + brief(error.getMessage());
        }

        private String brief(String text) {
            String line = String.valueOf(text).lines().findFirst().orElse("").replaceAll("\\d+", "#");
            return line.substring(0, Math.min(100, line.length()));
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
        Path records;
        /** Of each topic at each broker. */
        int queues;
        /** How many brokers there are. */
        int brokers;
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
        /** How many messages of another topic are due in one second; 0: none. */
        int storm;

        static Plan of(String[] args) {
            Map<String, String> given = new HashMap<>();
            for (String arg : args) {
                int equals = arg.indexOf('=');
                given.put(arg.substring(0, equals), arg.substring(equals + 1));
            }
            Plan plan = new Plan();
            plan.namesrv = given.get("namesrv");
            plan.topic = given.get("topic");
            plan.records = Path.of(given.get("records"));
            plan.queues = Integer.parseInt(given.get("queues"));
            plan.brokers = Integer.parseInt(given.get("brokers"));
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
            plan.storm = Integer.parseInt(given.get("storm"));
            return plan;
        }

        int allQueues() {
            return queues * brokers;
        }

        String stormTopic() {
            return topic + "-storm";
        }

        long longestDelay() {
            return levels.length > 0 ? LEVEL_MS[Arrays.stream(levels).max().getAsInt() - 1] : delayMax;
        }
    }
}
