package moldau;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutionException;

/** Named steps, each told as "passed name" or "failed name: why" on a line of its own. */
final class Tour {
    interface Step {
        void run() throws Exception;
    }

    private final Map<String, Step> steps = new LinkedHashMap<>();

    void step(String name, Step step) {
        steps.put(name, step);
    }

    /** Runs every step, also after one has failed; the number of those that did. */
    int run() {
        int failures = 0;
        for (Map.Entry<String, Step> each : steps.entrySet()) {
            try {
                long startNs = System.nanoTime();
                each.getValue().run();
                long tookMs = (System.nanoTime() - startNs) / 1_000_000;
                System.out.println("passed " + each.getKey() + " (" + tookMs + " ms)");
            } catch (Throwable problem) {
                failures++;
                System.out.println("failed " + each.getKey() + ": " + problem);
                problem.printStackTrace();
            }
        }
        return failures;
    }

    static void equal(Object expected, Object found) {
        if (!Objects.equals(expected, found)) {
            throw new AssertionError("expected " + expected + " but found " + found);
        }
    }

    static void isTrue(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    /** The step must be rejected with this exception, bare or as the cause of an ExecutionException. */
    static void rejected(Class<? extends Throwable> expected, Step step) throws Exception {
        try {
            step.run();
        } catch (ExecutionException problem) {
            isTrue(expected.isInstance(problem.getCause()), "expected " + expected + " but it was " + problem.getCause());
            return;
        } catch (Exception problem) {
            isTrue(expected.isInstance(problem), "expected " + expected + " but it was " + problem);
            return;
        }
        throw new AssertionError("it was not rejected with " + expected);
    }

    static List<Long> range(long first, long end) {
        List<Long> numbers = new ArrayList<>();
        for (long number = first; number < end; number++) {
            numbers.add(number);
        }
        return numbers;
    }
}
