import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Does what it is told on standard input, one JSON object a line, and answers on standard output
 * likewise.
 *
 * <p>A request has "id", "do" and what that needs. Its answer has the same "id" and either "done" or
 * "error" (class, message). Requests run at the same time.
 */
abstract class Conversation {
    private final PrintStream out;

    Conversation() throws IOException {
        out = new PrintStream(System.out, true, "UTF-8");
    }

    /** Carries out a request; what is told of it. */
    abstract Object execute(JSONObject request) throws Exception;

    /** What is told of a request that failed. */
    JSONObject error(Throwable failure) {
        return new JSONObject()
                .fluentPut("class", failure.getClass().getSimpleName())
                .fluentPut("message", String.valueOf(failure.getMessage()));
    }

    /** Goes on until the input ends, and ends the program then. */
    final void hold() throws IOException {
        System.setOut(System.err); // what a library prints is not an answer
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ExecutorService workers = Executors.newCachedThreadPool();
        tell(new JSONObject().fluentPut("ready", true));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject request = JSON.parseObject(line);
            workers.execute(() -> answer(request));
        }
        Runtime.getRuntime().halt(0); // what still runs in here belongs to nobody any more
    }

    final void tell(JSONObject line) {
        String text = line.toJSONString();
        synchronized (out) {
            out.println(text);
        }
    }

    private void answer(JSONObject request) {
        JSONObject answer = new JSONObject().fluentPut("id", request.get("id"));
        try {
            answer.put("done", execute(request));
        } catch (Throwable failure) {
            answer.put("error", error(failure));
        }
        tell(answer);
    }
}
