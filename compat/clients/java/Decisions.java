import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Decides transactions as their messages ask: the property "decisions" has what to say at first, at
 * the first check, at the second and so on, parted by commas; the last one is for all that follow.
 */
final class Decisions implements TransactionListener {
    /** Is told of each check. */
    interface Observer {
        void checked(MessageExt message);
    }

    private static final String DECISIONS = "decisions";

    private final Observer observer;

    Decisions(Observer observer) {
        this.observer = observer;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return decision(message, 0);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        observer.checked(message);
        String checks = message.getProperty(MessageConst.PROPERTY_TRANSACTION_CHECK_TIMES);
        return decision(message, Integer.parseInt(checks));
    }

    private static LocalTransactionState decision(Message message, int check) {
        String[] decisions = message.getProperty(DECISIONS).split(",");
        switch (decisions[Math.min(check, decisions.length - 1)]) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }
}
