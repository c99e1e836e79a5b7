import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicBoolean;

/** Checks that a group with many consumers delivers each entry exactly once. */
final class Groups {
    static final String STREAM = "stream";
    static final String GROUP = "group";
    static final int ENTRIES = 600;

    /** Reads entries, acknowledges them and returns their numbers. */
    interface Consumer {
        /** Blocks for a short time until entries arrive. */
        List<Integer> next(String name) throws Exception;
    }

    /** Adds one entry. */
    interface Producer {
        void add(int number) throws Exception;
    }

    private Groups() {}

    static void check(int consumers, Consumer consumer, Producer producer) throws Exception {
        AtomicIntegerArray seen = new AtomicIntegerArray(ENTRIES);
        AtomicInteger total = new AtomicInteger();
        AtomicBoolean ends = new AtomicBoolean();
        ExecutorService threads = Executors.newCachedThreadPool(Checks::daemon);
        List<Future<?>> running = new ArrayList<>();
        for (int number = 0; number < consumers; number++) {
            String name = "consumer-" + number;
            running.add(threads.submit(() -> {
                while (total.get() < ENTRIES && !ends.get()) {
                    for (int entry : consumer.next(name)) {
                        seen.incrementAndGet(entry);
                        total.incrementAndGet();
                    }
                }
                return null;
            }));
        }
        try {
            for (int number = 0; number < ENTRIES; number++) {
                producer.add(number);
            }
            for (Future<?> consumed : running) {
                consumed.get();
            }
        } finally {
            ends.set(true);
            threads.shutdownNow();
        }
        for (int number = 0; number < ENTRIES; number++) {
            Checks.same("entry " + number + ": " + seen.get(number), "entry " + number + ": 1");
        }
    }
}
