import java.io.File;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Checks documented features of Jedis and Lettuce against a server.
 *
 * <p>Usage: Checks PORT TLS-PORT FOLDER, where FOLDER contains ca.crt and own.p12.
 */
public final class Checks {
    /** Timeout of a check. */
    static final long PATIENCE_MS = 60_000;

    /** Password of own.p12. */
    static final char[] PASSWORD = "password".toCharArray();

    /** Ports of the server and the files for TLS. */
    record Server(int port, int tlsPort, File authority, File identity) {}

    /** The code of a check. */
    interface Body {
        void run() throws Exception;
    }

    /** Named checks in execution order. */
    static final class Suite {
        final Map<String, Body> checks = new LinkedHashMap<>();

        void check(String name, Body body) {
            checks.put(name, body);
        }

        /** Runs the checks with this timeout, each after `before`, and prints their results. */
        void run(String library, long patienceMs, Body before) {
            ExecutorService threads = Executors.newCachedThreadPool(Checks::daemon);
            checks.forEach((name, body) -> {
                String result = "ok";
                try {
                    before.run();
                    threads.submit(() -> {
                        body.run();
                        return null;
                    }).get(patienceMs, TimeUnit.MILLISECONDS);
                } catch (TimeoutException late) {
                    result = "FAIL: timeout after " + patienceMs + " ms";
                } catch (ExecutionException failed) {
                    failed.getCause().printStackTrace();
                    result = "FAIL: " + words(failed.getCause());
                } catch (Exception failed) {
                    result = "FAIL: " + words(failed);
                }
                System.out.println("CHECK " + library + " " + name + " " + result);
            });
            threads.shutdownNow();
        }
    }

    static Thread daemon(Runnable body) {
        Thread thread = new Thread(body);
        thread.setDaemon(true);
        return thread;
    }

    static String words(Throwable failure) {
        Throwable last = failure;
        while (last.getCause() != null) {
            last = last.getCause();
        }
        return (failure + (last == failure ? "" : ": " + last)).replaceAll("\\s+", " ");
    }

    static void same(Object got, Object expected) {
        if (!Objects.equals(got, expected)) {
            throw new AssertionError("expected " + expected + ", got " + got);
        }
    }

    /** Checks that the body fails with an error message that contains these words. */
    static void refused(String words, Body body) throws Exception {
        try {
            body.run();
        } catch (Exception refusal) {
            if (words(refusal).contains(words)) {
                return;
            }
            throw refusal;
        }
        throw new AssertionError("no error with: " + words);
    }

    public static void main(String[] args) {
        File directory = new File(args[2]);
        Server server = new Server(
            Integer.parseInt(args[0]), Integer.parseInt(args[1]), new File(directory, "ca.crt"), new File(directory, "own.p12"));
        JedisChecks jedis = new JedisChecks(server);
        jedis.suite().run("jedis", PATIENCE_MS, jedis::flush);
        LettuceChecks lettuce = new LettuceChecks(server);
        lettuce.suite().run("lettuce", PATIENCE_MS, jedis::flush);
        System.exit(0);
    }
}
