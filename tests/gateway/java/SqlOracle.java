import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.FilterFactory;

/**
 * Says of lines "expression properties", both in Base64, what the broker's own filter makes of them: "refused" for an
 * expression that it does not take, else whether it selects the message.
 */
public final class SqlOracle {
    private SqlOracle() {
    }

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            System.out.println(judge(text(parts[0]), text(parts[1])));
        }
    }

    private static String text(String encoded) {
        return new String(Base64.getDecoder().decode(encoded), StandardCharsets.UTF_8);
    }

    private static String judge(String expression, String properties) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(expression);
        } catch (Throwable refused) {
            return "refused";
        }
        try {
            var message = new MessageEvaluationContext(MessageDecoder.string2messageProperties(properties));
            return String.valueOf(Boolean.TRUE.equals(compiled.evaluate(message)));
        } catch (Throwable unequal) {
            return "false";
        }
    }
}
