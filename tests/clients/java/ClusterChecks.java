import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;

/**
 * Checks the cluster modes of Jedis and Lettuce.
 *
 * <p>Usage: ClusterChecks PORT TAGS MOVING, where PORT is one of the nodes, the file TAGS has a hash tag for each slot,
 * and the first MOVING slots are those that migrate. It prints `DO action` to have something happen to the cluster, and
 * reads a line when that is done.
 */
public final class ClusterChecks {
    /** How long an operation is retried, and other conditions are waited for. */
    static final long PATIENCE_MS = 60_000;

    static final int WRITERS = 4;

    /** What the checks need of a library. */
    interface Client extends AutoCloseable {
        void set(String key, String value);

        String get(String key);

        /** Sets keys to their own names in a pipeline. */
        void setAll(List<String> keys) throws Exception;

        /** MGET of keys of one slot. */
        List<String> getAll(List<String> keys);

        /** Executes INCR twice in a transaction, and returns the results. */
        List<Object> transaction(String key, int slot);

        /** Whether a transaction is executed although a key that it watches has changed. */
        boolean watched(String key, int slot);

        /** Runs a script that adds to a key. */
        Object add(String script, String key, String number);

        /** The same by the digest of the script. */
        Object addByDigest(String script, String key, String number);

        /** Subscribes to a shard channel, runs `ready`, and returns the first message. */
        String receive(String channel, Runnable ready) throws Exception;

        long spublish(String channel, String message);

        void createGroup(String stream);

        void append(String stream, int number);

        /** Reads and acknowledges entries, and waits for them if there are none. */
        List<Integer> consume(String stream, String consumer);

        @Override
        void close();
    }

    /** Makes clients. */
    interface Library {
        Client connect(int port, boolean readsReplicas);
    }

    private final int port;
    private final String[] tags;
    private final int moving;
    private final BufferedReader answers = new BufferedReader(new InputStreamReader(System.in));
    private final ExecutorService threads = Executors.newCachedThreadPool(Checks::daemon);

    private ClusterChecks(int port, String[] tags, int moving) {
        this.port = port;
        this.tags = tags;
        this.moving = moving;
    }

    private String key(int slot) {
        return "{" + tags[slot] + "}";
    }

    /** Has something happen to the cluster, and returns the result. */
    private String act(String action) throws IOException {
        System.out.println("DO " + action);
        String answer = String.valueOf(answers.readLine());
        if (!answer.startsWith("done")) {
            throw new AssertionError(action + ": " + answer);
        }
        return answer.substring("done".length()).trim();
    }

    private void everySlot(Client client) throws Exception {
        for (int first = 0; first < tags.length; first += 1024) {
            List<String> keys = new ArrayList<>();
            for (int slot = first; slot < first + 1024; slot++) {
                keys.add(key(slot));
            }
            client.setAll(keys);
        }
        for (int slot = 0; slot < tags.length; slot++) {
            Checks.same(client.get(key(slot)), key(slot));
        }
    }

    private void hashTags(Client client) throws Exception {
        for (int slot = 0; slot < tags.length; slot += 2000) {
            List<String> keys = List.of(key(slot) + "1", key(slot) + "2", key(slot) + "3");
            client.setAll(keys);
            Checks.same(client.getAll(keys), keys);
        }
    }

    private void transaction(Client client) {
        for (int slot = 0; slot < tags.length; slot += 2000) {
            Checks.same(client.transaction(key(slot), slot), List.of(1L, 2L));
            Checks.same(client.watched(key(slot), slot), false);
        }
    }

    private void script(Client client) {
        String script = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
        for (int slot = 0; slot < tags.length; slot += 2000) {
            Checks.same(client.add(script, key(slot), "5"), 5L);
            Checks.same(client.addByDigest(script, key(slot), "6"), 11L);
        }
    }

    private void shardedPubSub(Client client) throws Exception {
        for (int slot = 0; slot < tags.length; slot += 3000) {
            String channel = tags[slot];
            CompletableFuture<Long> receivers = new CompletableFuture<>();
            Runnable publish = () -> receivers.complete(client.spublish(channel, "hello"));
            Checks.same(client.receive(channel, publish), "hello");
            Checks.same(receivers.get(PATIENCE_MS, TimeUnit.MILLISECONDS), 1L);
        }
    }

    private void replicaReads(Client client, Library library) throws Exception {
        try (Client reader = library.connect(port, true)) {
            for (int slot = 0; slot < tags.length; slot += 40) {
                client.set(key(slot), "x");
            }
            act("replicated");
            int before = Integer.parseInt(act("replica_gets"));
            for (int slot = 0; slot < tags.length; slot += 40) {
                Checks.same(reader.get(key(slot)), "x");
            }
            Checks.same(Integer.parseInt(act("replica_gets")) > before + 100, true);
        }
    }

    /**
     * Checks consumers of groups in three shards. If something happens meanwhile, then when half of the entries are
     * written.
     */
    private void streams(Client client, String library, String action) throws Exception {
        List<String> streams = List.of(key(100) + "s", key(8000) + "s", key(16000) + "s");
        Map<String, Integer> errors = new ConcurrentHashMap<>();
        streams.forEach(client::createGroup);
        Groups.check(12, name -> {
            String stream = streams.get(Integer.parseInt(name.substring("consumer-".length())) % 3);
            return retried(errors, () -> client.consume(stream, name));
        }, number -> {
            if (action != null && number == Groups.ENTRIES / 2) {
                act(action);
            }
            retried(errors, () -> {
                client.append(streams.get(number % 3), number);
                return null;
            });
        });
        report(library, Groups.ENTRIES, errors);
    }

    /** Prints how much was written, and the errors. */
    private static void report(String library, int written, Map<String, Integer> errors) {
        errors.forEach((words, count) -> System.err.println(library + ": " + count + " times " + words));
        System.out.println("WROTE " + library + " " + written + " " + errors.values().stream().mapToInt(n -> n).sum());
    }

    /** The key of a numbered write. Half of them are in the slots that migrate. */
    private String numbered(int writer, int number) {
        int slot = number % 2 == 1 ? number / 2 % moving : (int) (number * 7919L % tags.length);
        return key(slot) + ":" + writer + ":" + number;
    }

    /** Repeats an operation that fails, and counts the errors. */
    private static <T> T retried(Map<String, Integer> errors, Callable<T> operation) throws Exception {
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            try {
                return operation.call();
            } catch (Exception failure) {
                errors.merge(Checks.words(failure), 1, Integer::sum);
                if (System.currentTimeMillis() > until) {
                    throw failure;
                }
                Thread.sleep(50);
            }
        }
    }

    /** Writes numbered keys while something happens, reads each back at once, and all of them at the end. */
    private void writeDuring(Client client, String library, String action) throws Exception {
        AtomicIntegerArray written = new AtomicIntegerArray(WRITERS);
        AtomicInteger ending = new AtomicInteger();
        Map<String, Integer> errors = new ConcurrentHashMap<>();
        List<Future<?>> running = new ArrayList<>();
        for (int index = 0; index < WRITERS; index++) {
            int writer = index;
            running.add(threads.submit(() -> {
                for (int number = 0; ending.get() == 0; number++) {
                    String key = numbered(writer, number);
                    String value = String.valueOf(number);
                    retried(errors, () -> {
                        client.set(key, value);
                        return null;
                    });
                    Checks.same(retried(errors, () -> client.get(key)), value);
                    written.set(writer, number + 1);
                    Thread.sleep(2);
                }
                return null;
            }));
        }
        try {
            progress(written, running);
            act(action);
            progress(written, running);
        } finally {
            ending.set(1);
        }
        int total = 0;
        for (int writer = 0; writer < WRITERS; writer++) {
            running.get(writer).get();
            for (int number = 0; number < written.get(writer); number++) {
                Checks.same(client.get(numbered(writer, number)), String.valueOf(number));
            }
            total += written.get(writer);
        }
        report(library, total, errors);
    }

    /** Waits until each writer has written 100 keys more. */
    private static void progress(AtomicIntegerArray written, List<Future<?>> running) throws Exception {
        for (int writer = 0; writer < WRITERS; writer++) {
            int goal = written.get(writer) + 100;
            long until = System.currentTimeMillis() + 2 * PATIENCE_MS;
            while (written.get(writer) < goal) {
                if (running.get(writer).isDone()) {
                    running.get(writer).get();
                }
                Checks.same(System.currentTimeMillis() < until, true);
                Thread.sleep(10);
            }
        }
    }

    private Checks.Suite suite(String name, Library library) {
        Checks.Suite suite = new Checks.Suite();
        add(suite, "every-slot", library, this::everySlot);
        add(suite, "hash-tags", library, this::hashTags);
        add(suite, "transaction", library, this::transaction);
        add(suite, "script", library, this::script);
        add(suite, "sharded-pubsub", library, this::shardedPubSub);
        add(suite, "replica-reads", library, client -> replicaReads(client, library));
        add(suite, "streams", library, client -> streams(client, name, null));
        add(suite, "streams-failover", library, client -> streams(client, name, "failover"));
        for (String action : List.of("failover", "kill", "migrate_keys", "migrate_slots")) {
            add(suite, action.replace('_', '-'), library, client -> writeDuring(client, name, action));
        }
        return suite;
    }

    /** The code of a check with a client. */
    private interface With {
        void run(Client client) throws Exception;
    }

    private void add(Checks.Suite suite, String name, Library library, With body) {
        suite.check(name, () -> {
            try (Client client = library.connect(port, false)) {
                body.run(client);
            }
        });
    }

    public static void main(String[] args) throws IOException {
        String[] tags = Files.readString(Path.of(args[1])).split("\n");
        ClusterChecks checks = new ClusterChecks(Integer.parseInt(args[0]), tags, Integer.parseInt(args[2]));
        Map<String, Library> libraries = Map.of("jedis", JedisCluster::new, "lettuce", LettuceCluster::new);
        for (String name : List.of("jedis", "lettuce")) {
            checks.suite(name, libraries.get(name)).run(name, 4 * PATIENCE_MS, () -> checks.act("flush"));
        }
        System.exit(0);
    }
}
