package moldau;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one process, which spares the start of a virtual machine for
 * each. A line of the input names a class and its arguments, separated by tabs. After the output of the tool, a line
 * says "exit code N". Some tools catch what ends them here and exit again: only the first exit counts, and what they
 * print after it is dropped.
 */
public final class CommandLoop {
    private static final PrintStream OUTPUT = System.out;
    private static final PrintStream DROPPED = new PrintStream(OutputStream.nullOutputStream());
    private static Integer exitCode;

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            if (exitCode == null) {
                exitCode = code;
            }
            print(DROPPED);
            throw new IllegalStateException("the tool has exited");
        });
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            exitCode = null;
            print(OUTPUT);
            run(line.split("\t"));
            OUTPUT.println("\nexit code " + (exitCode == null ? 0 : exitCode));
            OUTPUT.flush();
        }
    }

    private static void print(PrintStream stream) {
        System.setOut(stream);
        System.setErr(stream);
    }

    private static void run(String[] words) throws ReflectiveOperationException {
        Object options = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, options);
        } catch (InvocationTargetException problem) {
            if (exitCode == null) {
                throw problem;
            }
        }
    }
}
