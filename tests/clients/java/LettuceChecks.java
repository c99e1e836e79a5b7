import io.lettuce.core.ClientOptions;
import io.lettuce.core.Consumer;
import io.lettuce.core.KeyValue;
import io.lettuce.core.Limit;
import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.SslOptions;
import io.lettuce.core.StreamMessage;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.XGroupCreateArgs;
import io.lettuce.core.XReadArgs;
import io.lettuce.core.AclSetuserArgs;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.masterreplica.MasterReplica;
import io.lettuce.core.masterreplica.StatefulRedisMasterReplicaConnection;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import io.lettuce.core.pubsub.StatefulRedisPubSubConnection;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Checks documented features of Lettuce, and blocking group reads on shared connections. */
final class LettuceChecks {
    private final Checks.Server server;

    LettuceChecks(Checks.Server server) {
        this.server = server;
    }

    private RedisURI.Builder plain() {
        return RedisURI.builder().withHost("127.0.0.1").withPort(server.port()).withTimeout(Duration.ofSeconds(20));
    }

    private RedisURI.Builder encrypted() {
        return RedisURI.builder().withHost("localhost").withPort(server.tlsPort()).withSsl(true)
            .withTimeout(Duration.ofSeconds(20));
    }

    private RedisClient client(ProtocolVersion version, boolean identified) {
        SslOptions.Builder tls = SslOptions.builder().jdkSslProvider().trustManager(server.authority());
        if (identified) {
            tls = tls.keystore(server.identity(), Checks.PASSWORD).keyStoreType("PKCS12");
        }
        RedisClient client = RedisClient.create();
        client.setOptions(
            ClientOptions.builder().protocolVersion(version).sslOptions(tls.build()).autoReconnect(false).build());
        return client;
    }

    /** Code that uses a client. */
    private interface With {
        void run(RedisClient client) throws Exception;
    }

    private void with(ProtocolVersion version, With body) throws Exception {
        RedisClient client = client(version, true);
        try {
            body.run(client);
        } finally {
            client.shutdown(Duration.ZERO, Duration.ofSeconds(1));
        }
    }

    private void with(With body) throws Exception {
        with(ProtocolVersion.RESP3, body);
    }

    Checks.Suite suite() {
        Checks.Suite suite = new Checks.Suite();
        suite.check("connect-resp2", () -> with(ProtocolVersion.RESP2, client -> {
            RedisCommands<String, String> commands = client.connect(plain().withClientName("two").withDatabase(3).build()).sync();
            Checks.same(commands.ping(), "PONG");
            Checks.same(commands.clientGetname(), "two");
            Checks.same(commands.clientInfo().contains(" resp=2"), true);
        }));
        suite.check("connect-resp3", () -> with(client -> {
            RedisCommands<String, String> commands = client.connect(plain().build()).sync();
            Checks.same(commands.clientInfo().contains(" resp=3"), true);
            commands.hset("h3", Map.of("a", "1", "b", "2"));
            Checks.same(commands.hgetall("h3"), Map.of("a", "1", "b", "2"));
        }));
        suite.check("connect-tls", () -> {
            for (ProtocolVersion version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
                with(version, client -> {
                    RedisCommands<String, String> commands = client.connect(encrypted().build()).sync();
                    String large = "x".repeat(5_000_000);
                    Checks.same(commands.set("large", large), "OK");
                    Checks.same(commands.get("large").equals(large), true);
                });
            }
            RedisClient stranger = client(ProtocolVersion.RESP3, false);
            Checks.refused("", () -> stranger.connect(encrypted().build()).sync().ping());
            stranger.shutdown(Duration.ZERO, Duration.ofSeconds(1));
        });
        suite.check("acl-user", () -> with(client -> {
            RedisCommands<String, String> admin = client.connect(plain().build()).sync();
            admin.aclSetuser("worker", AclSetuserArgs.Builder.on().addPassword("secret").keyPattern("app:*").allCommands());
            for (RedisURI.Builder address : List.of(plain(), encrypted())) {
                RedisCommands<String, String> worker = client.connect(address.withAuthentication("worker", "secret").build()).sync();
                Checks.same(worker.aclWhoami(), "worker");
                Checks.same(worker.set("app:1", "x"), "OK");
                Checks.refused("NOPERM", () -> worker.get("other"));
            }
            Checks.refused("WRONGPASS", () -> client.connect(plain().withAuthentication("worker", "wrong").build()));
            admin.aclDeluser("worker");
        }));
        suite.check("values", () -> with(client -> {
            RedisCommands<String, String> commands = client.connect(plain().build()).sync();
            Checks.same(commands.set("s", "v", SetArgs.Builder.nx().ex(100)), "OK");
            Checks.same(commands.set("s", "v", SetArgs.Builder.nx()), null);
            commands.zadd("z", 1, "a");
            commands.zadd("z", 2.5, "b");
            Checks.same(commands.zrangeWithScores("z", 0, -1).get(1).getScore(), 2.5);
            Checks.same(commands.rpush("l", "1", "2", "3"), 3L);
            Checks.same(commands.lrange("l", 1, -1), List.of("2", "3"));
            Checks.same(commands.zrangebyscore("z", io.lettuce.core.Range.unbounded(), Limit.from(1)), List.of("a"));
        }));
        suite.check("pipeline", () -> with(client -> {
            StatefulRedisConnection<String, String> connection = client.connect(encrypted().build());
            connection.setAutoFlushCommands(false);
            List<RedisFuture<String>> gets = new ArrayList<>();
            for (int n = 0; n < 1000; n++) {
                connection.async().set("p:" + n, String.valueOf(n));
                gets.add(connection.async().get("p:" + n));
            }
            connection.flushCommands();
            for (int n = 0; n < 1000; n++) {
                Checks.same(gets.get(n).get(20, TimeUnit.SECONDS), String.valueOf(n));
            }
        }));
        suite.check("scan", () -> with(client -> {
            StatefulRedisConnection<String, String> connection = client.connect(plain().build());
            List<RedisFuture<String>> sets = new ArrayList<>();
            for (int n = 0; n < 2500; n++) {
                sets.add(connection.async().set("scan:" + n, "x"));
            }
            for (RedisFuture<String> set : sets) {
                set.get(20, TimeUnit.SECONDS);
            }
            Set<String> seen = new HashSet<>();
            ScanIterator.scan(connection.sync(), ScanArgs.Builder.matches("scan:*").limit(100)).forEachRemaining(seen::add);
            Checks.same(seen.size(), 2500);
        }));
        suite.check("transaction", () -> with(client -> {
            RedisCommands<String, String> commands = client.connect(plain().build()).sync();
            RedisCommands<String, String> other = client.connect(plain().build()).sync();
            commands.multi();
            commands.set("foo", "bar");
            commands.get("foo");
            TransactionResult result = commands.exec();
            Checks.same(List.of(result.<Object>get(0), result.<Object>get(1)), List.of("OK", "bar"));
            commands.watch("foo");
            other.set("foo", "changed");
            commands.multi();
            commands.set("foo", "mine");
            Checks.same(commands.exec().wasDiscarded(), true);
        }));
        suite.check("script", () -> with(client -> {
            RedisCommands<String, String> commands = client.connect(plain().build()).sync();
            String[] keys = {"k"};
            List<Object> reply = commands.eval("return {KEYS[1], ARGV[1], 3}", ScriptOutputType.MULTI, keys, "a");
            Checks.same(reply, List.of("k", "a", 3L));
            String sha = commands.scriptLoad("return redis.call('INCRBY', KEYS[1], ARGV[1])");
            Checks.same(commands.<Long>evalsha(sha, ScriptOutputType.INTEGER, keys, "5"), 5L);
            commands.functionLoad(
                "#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)", true);
            Checks.same(commands.<Long>fcall("twice", ScriptOutputType.INTEGER, new String[0], "21"), 42L);
        }));
        suite.check("publish-subscribe", () -> {
            for (ProtocolVersion version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
                with(version, this::publishAndSubscribe);
            }
        });
        suite.check("blocking", () -> with(client -> {
            RedisFuture<KeyValue<String, String>> popped = client.connect(plain().build()).async().blpop(10, "{queue}nothing", "queue");
            client.connect(plain().build()).sync().rpush("queue", "task");
            Checks.same(popped.get(20, TimeUnit.SECONDS), KeyValue.just("queue", "task"));
        }));
        suite.check("streams-and-groups", () -> with(client -> {
            Map<String, RedisCommands<String, String>> connections = new HashMap<>();
            for (int n = 0; n < 16; n++) {
                RedisURI address = (n % 2 == 0 ? plain() : encrypted()).build();
                connections.put("consumer-" + n, client.connect(address).sync());
            }
            readGroup(client.connect(plain().build()).sync(), 16, connections::get);
        }));
        suite.check("32-consumers-on-one-connection", () -> with(client -> {
            for (RedisURI address : List.of(plain().build(), encrypted().build())) {
                StatefulRedisConnection<String, String> shared = client.connect(address);
                RedisCommands<String, String> producer = client.connect(plain().build()).sync();
                producer.del(Groups.STREAM);
                readGroup(producer, 32, name -> shared.sync());
            }
        }));
        suite.check("static-primary-replica", () -> with(client -> {
            for (RedisURI address : List.of(plain().build(), encrypted().build())) {
                StatefulRedisMasterReplicaConnection<String, String> shared =
                    MasterReplica.connect(client, StringCodec.UTF8, List.of(address));
                shared.setReadFrom(ReadFrom.REPLICA_PREFERRED);
                RedisCommands<String, String> producer = client.connect(plain().build()).sync();
                producer.del(Groups.STREAM);
                // XREADGROUP changes the group and goes to the primary, where all consumers share one connection.
                readGroup(producer, 32, name -> shared.sync());
                Checks.same(shared.sync().exists(Groups.STREAM), 1L);
            }
        }));
        return suite;
    }

    private void publishAndSubscribe(RedisClient client) throws Exception {
        StatefulRedisPubSubConnection<String, String> subscriber = client.connectPubSub(encrypted().build());
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        subscriber.addListener(new RedisPubSubAdapter<>() {
            @Override
            public void message(String channel, String message) {
                got.add(channel + " " + message);
            }

            @Override
            public void message(String pattern, String channel, String message) {
                got.add(pattern + " " + message);
            }
        });
        subscriber.sync().subscribe("news");
        subscriber.sync().psubscribe("n?ws");
        Checks.same(client.connect(plain().build()).sync().publish("news", "hello"), 2L);
        Set<String> both = new HashSet<>();
        both.add(got.poll(20, TimeUnit.SECONDS));
        both.add(got.poll(20, TimeUnit.SECONDS));
        Checks.same(both, Set.of("news hello", "n?ws hello"));
        subscriber.sync().unsubscribe("news");
    }

    /** Selects the connection of a consumer. */
    private interface Chooses {
        RedisCommands<String, String> commands(String consumer);
    }

    private static void readGroup(RedisCommands<String, String> producer, int consumers, Chooses chooses) throws Exception {
        XReadArgs.StreamOffset<String> beginning = XReadArgs.StreamOffset.from(Groups.STREAM, "0");
        producer.xgroupCreate(beginning, Groups.GROUP, XGroupCreateArgs.Builder.mkstream());
        Groups.check(
            consumers,
            name -> next(chooses.commands(name), name),
            number -> producer.xadd(Groups.STREAM, Map.of("n", String.valueOf(number))));
        Checks.same(producer.xpending(Groups.STREAM, Groups.GROUP).getCount(), 0L);
    }

    @SuppressWarnings("unchecked")
    private static List<Integer> next(RedisCommands<String, String> commands, String name) {
        XReadArgs.StreamOffset<String> fresh = XReadArgs.StreamOffset.lastConsumed(Groups.STREAM);
        List<StreamMessage<String, String>> reply =
            commands.xreadgroup(Consumer.from(Groups.GROUP, name), XReadArgs.Builder.block(20).count(7), fresh);
        List<Integer> numbers = new ArrayList<>();
        for (StreamMessage<String, String> message : reply) {
            Checks.same(commands.xack(Groups.STREAM, Groups.GROUP, message.getId()), 1L);
            numbers.add(Integer.valueOf(message.getBody().get("n")));
        }
        return numbers;
    }
}
