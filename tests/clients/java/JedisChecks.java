import static java.util.Map.entry;

import java.io.FileInputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.resps.StreamEntry;

/** Checks documented features of Jedis. */
final class JedisChecks {
    private final Checks.Server server;

    JedisChecks(Checks.Server server) {
        this.server = server;
    }

    private static DefaultJedisClientConfig.Builder config() {
        return DefaultJedisClientConfig.builder().timeoutMillis(20_000).protocol(RedisProtocol.RESP2);
    }

    private Jedis connect(DefaultJedisClientConfig.Builder config) {
        return new Jedis(new HostAndPort("127.0.0.1", server.port()), config.build());
    }

    private Jedis connect() {
        return connect(config());
    }

    private Jedis connectTls(DefaultJedisClientConfig.Builder config) throws Exception {
        return new Jedis(
            new HostAndPort("localhost", server.tlsPort()), config.ssl(true).sslSocketFactory(sockets(true)).build());
    }

    /** TLS sockets that trust the test CA, with or without a client certificate. */
    private SSLSocketFactory sockets(boolean identified) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (FileInputStream file = new FileInputStream(server.authority())) {
            trusted.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyStore own = KeyStore.getInstance("PKCS12");
        try (FileInputStream file = new FileInputStream(server.identity())) {
            own.load(file, Checks.PASSWORD);
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, Checks.PASSWORD);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(identified ? keys.getKeyManagers() : null, trust.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    void flush() {
        try (Jedis client = connect()) {
            client.flushAll();
        }
    }

    Checks.Suite suite() {
        Checks.Suite suite = new Checks.Suite();
        suite.check("connect-resp2", () -> {
            try (Jedis client = connect(config().clientName("two").database(3))) {
                Checks.same(client.ping(), "PONG");
                Checks.same(client.clientGetname(), "two");
                Checks.same(client.clientInfo().contains(" resp=2"), true);
            }
        });
        suite.check("connect-resp3", () -> {
            try (Jedis client = connect(config().protocol(RedisProtocol.RESP3))) {
                Checks.same(client.clientInfo().contains(" resp=3"), true);
                client.hset("h3", Map.of("a", "1", "b", "2"));
                Checks.same(client.hgetAll("h3"), Map.of("a", "1", "b", "2"));
            }
        });
        suite.check("connect-tls", () -> {
            for (RedisProtocol protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
                try (Jedis client = connectTls(config().protocol(protocol))) {
                    String large = "x".repeat(5_000_000);
                    Checks.same(client.set("large", large), "OK");
                    Checks.same(client.get("large").equals(large), true);
                }
            }
            Checks.refused("", () -> {
                var stranger = config().ssl(true).sslSocketFactory(sockets(false)).build();
                try (Jedis client = new Jedis(new HostAndPort("localhost", server.tlsPort()), stranger)) {
                    client.ping();
                }
            });
        });
        suite.check("acl-user", () -> {
            try (Jedis admin = connect()) {
                admin.aclSetUser("worker", "on", ">secret", "~app:*", "+@all", "-@dangerous");
                try (Jedis plain = connect(config().user("worker").password("secret"));
                    Jedis encrypted = connectTls(config().user("worker").password("secret"))) {
                    for (Jedis client : List.of(plain, encrypted)) {
                        Checks.same(client.aclWhoAmI(), "worker");
                        Checks.same(client.set("app:1", "x"), "OK");
                        Checks.refused("NOPERM", () -> client.get("other"));
                    }
                }
                Checks.refused("WRONGPASS", () -> connect(config().user("worker").password("wrong")).close());
                admin.aclDelUser("worker");
            }
        });
        suite.check("values", () -> {
            try (Jedis client = connect()) {
                Checks.same(client.set("s", "v", SetParams.setParams().nx().ex(100)), "OK");
                Checks.same(client.set("s", "v", SetParams.setParams().nx()), null);
                client.zadd("z", Map.ofEntries(entry("a", 1.0), entry("b", 2.5)));
                Checks.same(client.zrangeWithScores("z", 0, -1).toString(), "[[a,1.0], [b,2.5]]");
                client.rpush("l", "1", "2", "3");
                Checks.same(client.lrange("l", 1, -1), List.of("2", "3"));
                Checks.same(client.sadd("set", "a", "b"), 2L);
            }
        });
        suite.check("pipeline", () -> {
            try (Jedis client = connect()) {
                Pipeline pipeline = client.pipelined();
                List<Response<String>> gets = new ArrayList<>();
                for (int n = 0; n < 1000; n++) {
                    pipeline.set("p:" + n, String.valueOf(n));
                    gets.add(pipeline.get("p:" + n));
                }
                pipeline.sync();
                for (int n = 0; n < 1000; n++) {
                    Checks.same(gets.get(n).get(), String.valueOf(n));
                }
            }
        });
        suite.check("scan", () -> {
            try (Jedis client = connect()) {
                Pipeline pipeline = client.pipelined();
                for (int n = 0; n < 2500; n++) {
                    pipeline.set("scan:" + n, "x");
                }
                pipeline.sync();
                Set<String> seen = new HashSet<>();
                String cursor = ScanParams.SCAN_POINTER_START;
                do {
                    ScanResult<String> page = client.scan(cursor, new ScanParams().match("scan:*").count(100));
                    seen.addAll(page.getResult());
                    cursor = page.getCursor();
                } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
                Checks.same(seen.size(), 2500);
            }
        });
        suite.check("transaction", () -> {
            try (Jedis client = connect(); Jedis other = connect()) {
                Transaction transaction = client.multi();
                transaction.set("foo", "bar");
                Response<String> got = transaction.get("foo");
                Checks.same(transaction.exec().size(), 2);
                Checks.same(got.get(), "bar");
                client.watch("foo");
                other.set("foo", "changed");
                transaction = client.multi();
                transaction.set("foo", "mine");
                Checks.same(transaction.exec(), null);
            }
        });
        suite.check("script", () -> {
            try (Jedis client = connect()) {
                Object reply = client.eval("return {KEYS[1], ARGV[1], 3}", List.of("k"), List.of("a"));
                Checks.same(reply, List.of("k", "a", 3L));
                String sha = client.scriptLoad("return redis.call('INCRBY', KEYS[1], ARGV[1])");
                Checks.same(client.evalsha(sha, 1, "sum", "5"), 5L);
                client.functionLoadReplace(
                    "#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)");
                Checks.same(client.fcall("twice", List.of(), List.of("21")), 42L);
                client.functionDelete("lib");
            }
        });
        suite.check("publish-subscribe", () -> {
            for (RedisProtocol protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
                try (Jedis client = connectTls(config().protocol(protocol)); Jedis publisher = connect()) {
                    publishAndSubscribe(client, publisher);
                }
            }
        });
        suite.check("blocking", () -> {
            try (Jedis waiting = connect(); Jedis client = connect()) {
                BlockingQueue<List<String>> popped = new LinkedBlockingQueue<>();
                Checks.daemon(() -> popped.add(waiting.blpop(10, "{queue}nothing", "queue"))).start();
                client.rpush("queue", "task");
                Checks.same(popped.poll(20, TimeUnit.SECONDS), List.of("queue", "task"));
            }
        });
        suite.check("streams-and-groups", () -> {
            try (Jedis client = connect()) {
                client.xgroupCreate(Groups.STREAM, Groups.GROUP, new StreamEntryID(0, 0), true);
                // One connection per consumer; every second one uses TLS.
                Map<String, Jedis> connections = new HashMap<>();
                for (int n = 0; n < 16; n++) {
                    connections.put("consumer-" + n, n % 2 == 0 ? connect() : connectTls(config()));
                }
                Groups.check(
                    16,
                    name -> next(connections.get(name), name),
                    number -> client.xadd(Groups.STREAM, StreamEntryID.NEW_ENTRY, Map.of("n", String.valueOf(number))));
                Checks.same(client.xpending(Groups.STREAM, Groups.GROUP).getTotal(), 0L);
                connections.values().forEach(Jedis::close);
            }
        });
        return suite;
    }

    private static List<Integer> next(Jedis client, String name) {
        List<Map.Entry<String, List<StreamEntry>>> reply = client.xreadGroup(
            Groups.GROUP, name, XReadGroupParams.xReadGroupParams().count(7).block(200),
            Map.of(Groups.STREAM, StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY));
        List<Integer> numbers = new ArrayList<>();
        for (StreamEntry got : reply == null ? List.<StreamEntry>of() : reply.get(0).getValue()) {
            Checks.same(client.xack(Groups.STREAM, Groups.GROUP, got.getID()), 1L);
            numbers.add(Integer.valueOf(got.getFields().get("n")));
        }
        return numbers;
    }

    private static void publishAndSubscribe(Jedis client, Jedis publisher) throws Exception {
        CountDownLatch ready = new CountDownLatch(1);
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        JedisPubSub subscriber = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
                ready.countDown();
            }

            @Override
            public void onMessage(String channel, String message) {
                got.add(message);
            }
        };
        Thread thread = Checks.daemon(() -> client.subscribe(subscriber, "news"));
        thread.start();
        ready.await();
        Checks.same(publisher.publish("news", "hello"), 1L);
        Checks.same(got.poll(20, TimeUnit.SECONDS), "hello");
        subscriber.unsubscribe();
        thread.join();
        Checks.same(client.ping(), "PONG");
    }
}
