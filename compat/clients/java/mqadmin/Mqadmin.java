import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * RocketMQ's own mqadmin, many commands in one JVM.
 *
 * Each line of the standard input is a command with its arguments, separated by tabs. What it prints,
 * errors included, goes to the standard output, followed by a line that holds the character 4 alone.
 */
public final class Mqadmin {
    private static final String END = "\u0004";

    public static void main(String[] none) throws Exception {
        PrintStream output = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(output);
        System.setErr(output);
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            MQAdminStartup.main0(line.split("\t"), null);
            output.println();
            output.println(END);
        }
        // Some commands leave threads behind that would keep the JVM alive.
        System.exit(0);
    }
}
