import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.ClusterPipeline;
import redis.clients.jedis.CommandObjects;
import redis.clients.jedis.Connection;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisShardedPubSub;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.resps.StreamEntry;

/** The cluster mode of Jedis. */
final class JedisCluster implements ClusterChecks.Client {
    private final RedisClusterClient client;
    private final boolean readsReplicas;
    private final CommandObjects commands = new CommandObjects(RedisProtocol.RESP2);

    JedisCluster(int port, boolean readsReplicas) {
        DefaultJedisClientConfig.Builder config =
            DefaultJedisClientConfig.builder().timeoutMillis(20_000).protocol(RedisProtocol.RESP2);
        if (readsReplicas) {
            config = config.readOnlyForRedisClusterReplicas();
        }
        this.client = RedisClusterClient.builder().nodes(Set.of(new HostAndPort("127.0.0.1", port)))
            .clientConfig(config.build()).build();
        this.readsReplicas = readsReplicas;
    }

    @Override
    public void set(String key, String value) {
        Checks.same(client.set(key, value), "OK");
    }

    @Override
    public String get(String key) {
        return readsReplicas ? client.executeCommandToReplica(commands.get(key)) : client.get(key);
    }

    @Override
    public void setAll(List<String> keys) {
        try (ClusterPipeline pipeline = client.pipelined()) {
            keys.forEach(key -> pipeline.set(key, key));
            pipeline.sync();
        }
    }

    @Override
    public List<String> getAll(List<String> keys) {
        return client.mget(keys.toArray(String[]::new));
    }

    @Override
    public List<Object> transaction(String key, int slot) {
        try (Connection connection = client.getConnectionFromSlot(slot);
            AbstractTransaction transaction = new Transaction(connection)) {
            transaction.incr(key);
            transaction.incr(key);
            return transaction.exec();
        }
    }

    @Override
    public boolean watched(String key, int slot) {
        try (Connection connection = client.getConnectionFromSlot(slot);
            AbstractTransaction transaction = new Transaction(connection, false)) {
            transaction.watch(key);
            client.set(key, "changed");
            transaction.multi();
            transaction.set(key, "mine");
            return transaction.exec() != null;
        }
    }

    @Override
    public Object add(String script, String key, String number) {
        return client.eval(script, 1, key, number);
    }

    @Override
    public Object addByDigest(String script, String key, String number) {
        return client.evalsha(client.scriptLoad(script, key), 1, key, number);
    }

    @Override
    public String receive(String channel, Runnable ready) throws Exception {
        CompletableFuture<String> message = new CompletableFuture<>();
        JedisShardedPubSub subscriber = new JedisShardedPubSub() {
            @Override
            public void onSSubscribe(String name, int count) {
                Checks.daemon(ready).start();
            }

            @Override
            public void onSMessage(String name, String text) {
                message.complete(text);
                sunsubscribe();
            }
        };
        client.ssubscribe(subscriber, channel);
        return message.get(ClusterChecks.PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    @Override
    public long spublish(String channel, String message) {
        return client.spublish(channel, message);
    }

    @Override
    public void createGroup(String stream) {
        client.xgroupCreate(stream, Groups.GROUP, new StreamEntryID(), true);
    }

    @Override
    public void append(String stream, int number) {
        client.xadd(stream, StreamEntryID.NEW_ENTRY, Map.of("n", String.valueOf(number)));
    }

    @Override
    public List<Integer> consume(String stream, String consumer) {
        List<Integer> numbers = new ArrayList<>();
        var reply = client.xreadGroup(Groups.GROUP, consumer, XReadGroupParams.xReadGroupParams().count(7).block(200),
            Map.of(stream, StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY));
        if (reply != null) {
            for (StreamEntry entry : reply.get(0).getValue()) {
                Checks.same(client.xack(stream, Groups.GROUP, entry.getID()), 1L);
                numbers.add(Integer.valueOf(entry.getFields().get("n")));
            }
        }
        return numbers;
    }

    @Override
    public void close() {
        client.close();
    }
}
