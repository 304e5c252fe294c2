// Close an order that is not paid within 3 seconds; a payment takes the close message back. Run it with `make example-java`.
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

public class OrderTimeout {
    public static void main(String[] arguments) throws Exception {
        String gateway = arguments.length > 0 ? arguments[0] : "127.0.0.1:9876";
        DefaultMQProducer producer = new DefaultMQProducer("orders");
        producer.setNamesrvAddr(gateway);
        producer.start();
        try {
            SendResult unpaid = producer.send(closeOrder("order-1"));
            SendResult paid = producer.send(closeOrder("order-2"));
            producer.recallMessage("close-order", paid.getRecallHandle());
            System.out.println("order-2 is paid: its close is taken back");

            CountDownLatch closed = new CountDownLatch(1);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("order-closer");
            consumer.setNamesrvAddr(gateway);
            consumer.setAwaitTerminationMillisWhenShutdown(1_000);    // time to commit offsets
            consumer.subscribe("close-order", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    System.out.println("closing " + message.getKeys());
                    if (message.getMsgId().equals(unpaid.getMsgId())) {    // and not a message of an earlier run
                        closed.countDown();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            closed.await(1, TimeUnit.MINUTES);
            consumer.shutdown();
        } finally {
            producer.shutdown();    // its threads keep Java running, even after a failed send
        }
    }

    private static Message closeOrder(String order) {
        Message message = new Message("close-order", "unpaid", order, order.getBytes(StandardCharsets.UTF_8));
        message.setDelayTimeMs(3_000);
        return message;
    }
}
