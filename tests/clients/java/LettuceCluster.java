import io.lettuce.core.Consumer;
import io.lettuce.core.KeyValue;
import io.lettuce.core.ReadFrom;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.StreamMessage;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.XGroupCreateArgs;
import io.lettuce.core.XReadArgs;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.cluster.pubsub.StatefulRedisClusterPubSubConnection;
import io.lettuce.core.pubsub.RedisPubSubAdapter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** The cluster mode of Lettuce: one connection per node, which all threads share. */
final class LettuceCluster implements ClusterChecks.Client {
    private final RedisClusterClient client;
    private final StatefulRedisClusterConnection<String, String> connection;
    private final RedisAdvancedClusterCommands<String, String> commands;

    LettuceCluster(int port, boolean readsReplicas) {
        RedisURI uri =
            RedisURI.builder().withHost("127.0.0.1").withPort(port).withTimeout(Duration.ofSeconds(20)).build();
        client = RedisClusterClient.create(uri);
        // Without them Lettuce keeps the topology of its start.
        ClusterTopologyRefreshOptions refresh =
            ClusterTopologyRefreshOptions.builder().enableAllAdaptiveRefreshTriggers()
                .adaptiveRefreshTriggersTimeout(Duration.ofMillis(200)).build();
        client.setOptions(ClusterClientOptions.builder().topologyRefreshOptions(refresh).build());
        connection = client.connect();
        if (readsReplicas) {
            connection.setReadFrom(ReadFrom.REPLICA);
        }
        commands = connection.sync();
    }

    @Override
    public void set(String key, String value) {
        Checks.same(commands.set(key, value), "OK");
    }

    @Override
    public String get(String key) {
        return commands.get(key);
    }

    @Override
    public void setAll(List<String> keys) throws Exception {
        List<RedisFuture<String>> replies = new ArrayList<>();
        keys.forEach(key -> replies.add(connection.async().set(key, key)));
        for (RedisFuture<String> reply : replies) {
            Checks.same(reply.get(ClusterChecks.PATIENCE_MS, TimeUnit.MILLISECONDS), "OK");
        }
    }

    @Override
    public List<String> getAll(List<String> keys) {
        return commands.mget(keys.toArray(String[]::new)).stream().map(KeyValue::getValue).toList();
    }

    /** The connection to the owner of a slot. */
    private RedisCommands<String, String> owner(int slot) {
        return connection.getConnection(connection.getPartitions().getPartitionBySlot(slot).getNodeId()).sync();
    }

    @Override
    public List<Object> transaction(String key, int slot) {
        RedisCommands<String, String> owner = owner(slot);
        owner.multi();
        owner.incr(key);
        owner.incr(key);
        return owner.exec().stream().toList();
    }

    @Override
    public boolean watched(String key, int slot) {
        RedisCommands<String, String> owner = owner(slot);
        owner.watch(key);
        // A change by the watching connection counts too.
        commands.set(key, "changed");
        owner.multi();
        owner.set(key, "mine");
        TransactionResult result = owner.exec();
        return !result.wasDiscarded();
    }

    @Override
    public Object add(String script, String key, String number) {
        return commands.eval(script, ScriptOutputType.INTEGER, new String[] {key}, number);
    }

    @Override
    public Object addByDigest(String script, String key, String number) {
        return commands.evalsha(commands.scriptLoad(script), ScriptOutputType.INTEGER, new String[] {key}, number);
    }

    @Override
    public String receive(String channel, Runnable ready) throws Exception {
        CompletableFuture<String> message = new CompletableFuture<>();
        try (StatefulRedisClusterPubSubConnection<String, String> subscriber = client.connectPubSub()) {
            subscriber.addListener(new RedisPubSubAdapter<>() {
                @Override
                public void smessage(String name, String text) {
                    message.complete(text);
                }
            });
            subscriber.sync().ssubscribe(channel);
            ready.run();
            return message.get(ClusterChecks.PATIENCE_MS, TimeUnit.MILLISECONDS);
        }
    }

    @Override
    public long spublish(String channel, String message) {
        return commands.spublish(channel, message);
    }

    @Override
    public void createGroup(String stream) {
        XReadArgs.StreamOffset<String> start = XReadArgs.StreamOffset.from(stream, "0");
        commands.xgroupCreate(start, Groups.GROUP, XGroupCreateArgs.Builder.mkstream());
    }

    @Override
    public void append(String stream, int number) {
        commands.xadd(stream, "n", String.valueOf(number));
    }

    @Override
    public List<Integer> consume(String stream, String consumer) {
        List<Integer> numbers = new ArrayList<>();
        XReadArgs.StreamOffset<String> fresh = XReadArgs.StreamOffset.lastConsumed(stream);
        List<StreamMessage<String, String>> reply =
            commands.xreadgroup(Consumer.from(Groups.GROUP, consumer), XReadArgs.Builder.block(20).count(7), fresh);
        for (StreamMessage<String, String> message : reply) {
            Checks.same(commands.xack(stream, Groups.GROUP, message.getId()), 1L);
            numbers.add(Integer.valueOf(message.getBody().get("n")));
        }
        return numbers;
    }

    @Override
    public void close() {
        connection.close();
        client.shutdown(Duration.ZERO, Duration.ofSeconds(1));
    }
}
