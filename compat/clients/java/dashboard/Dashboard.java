import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Parameter;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Calls the methods of the admin client that RocketMQ's dashboard is made of.
 *
 * Each line of the standard input is a JSON array: the method's name and its arguments. Its result goes to the standard
 * output as JSON, {"done": ...} or {"refused": code, "said": text}, followed by a line that holds the character 4 alone.
 */
public final class Dashboard {
    private static final String END = "\u0004";

    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        DefaultMQAdminExt admin = new DefaultMQAdminExt("dashboard", 10_000);
        admin.setNamesrvAddr(arguments[0]);
        admin.setInstanceName("dashboard-" + ProcessHandle.current().pid());
        admin.start();
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(answer(admin, JSON.parseArray(line)));
            output.println(END);
        }
        Runtime.getRuntime().halt(0);
    }

    private static String answer(DefaultMQAdminExt admin, JSONArray call) {
        JSONObject answer = new JSONObject();
        try {
            answer.put("done", invoke(admin, call));
        } catch (InvocationTargetException wrapped) {
            Throwable failure = wrapped.getTargetException();
            answer.put("refused", code(failure));
            answer.put("said", failure.getClass().getSimpleName() + ": " + failure.getMessage());
        } catch (ReflectiveOperationException failure) {
            answer.put("said", failure.toString());
        }
        return answer.toJSONString(JSONWriter.Feature.LargeObject);
    }

    private static Object code(Throwable failure) {
        if (failure instanceof MQBrokerException) {
            return ((MQBrokerException) failure).getResponseCode();
        }
        if (failure instanceof MQClientException) {
            return ((MQClientException) failure).getResponseCode();
        }
        return failure.getClass().getSimpleName();
    }

    private static Object invoke(DefaultMQAdminExt admin, JSONArray call)
        throws ReflectiveOperationException {
        if (call.getString(0).equals("messageTrackDetail")) {
            return track(admin, call.getString(1), call.getString(2));
        }
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (!method.getName().equals(call.getString(0))
                || method.getParameterCount() != call.size() - 1) {
                continue;
            }
            Object[] values = values(method.getParameters(), call);
            if (values != null) {
                return method.invoke(admin, values);
            }
        }
        throw new NoSuchMethodException(call.toString());
    }

    /** Who has consumed a message, which is looked up first: there is no writing it as an argument. */
    private static Object track(DefaultMQAdminExt admin, String topic, String id)
        throws InvocationTargetException {
        try {
            return admin.messageTrackDetail(admin.viewMessage(topic, id));
        } catch (Exception failure) {
            throw new InvocationTargetException(failure);
        }
    }

    /** The arguments as a method takes them; null when they are not for this one of its name. */
    private static Object[] values(Parameter[] parameters, JSONArray call) {
        Object[] values = new Object[parameters.length];
        for (int place = 0; place < values.length; place++) {
            Class<?> kind = parameters[place].getType();
            Object given = call.get(place + 1);
            if (given != null
                && (kind == String.class != given instanceof String
                    || kind == boolean.class != given instanceof Boolean
                    || (kind == long.class || kind == int.class) != given instanceof Number)) {
                return null;
            }
            values[place] = call.getObject(place + 1, parameters[place].getParameterizedType());
        }
        return values;
    }
}
