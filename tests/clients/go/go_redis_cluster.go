package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

type goRedisCluster struct {
	*redis.ClusterClient
	adds *redis.Script
}

func connectGoRedis(address string, readsReplicas bool) clusterClient {
	options := &redis.ClusterOptions{Addrs: []string{address}, ReadOnly: readsReplicas, RouteRandomly: readsReplicas}
	adds := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	return goRedisCluster{redis.NewClusterClient(options), adds}
}

func (c goRedisCluster) close() { c.Close() }

func (c goRedisCluster) set(ctx context.Context, key, value string) error {
	return c.Set(ctx, key, value, 0).Err()
}

func (c goRedisCluster) get(ctx context.Context, key string) (string, error) {
	return c.Get(ctx, key).Result()
}

func (c goRedisCluster) setAll(ctx context.Context, keys []string) error {
	_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, key := range keys {
			pipe.Set(ctx, key, key, 0)
		}
		return nil
	})
	return err
}

func (c goRedisCluster) getAll(ctx context.Context, keys []string) []string {
	var values []string
	for _, value := range the(c.MGet(ctx, keys...).Result()) {
		values = append(values, value.(string))
	}
	return values
}

func (c goRedisCluster) transaction(ctx context.Context, key string) [2]int64 {
	replies := the(c.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, key)
		pipe.Incr(ctx, key)
		return nil
	}))
	return [2]int64{replies[0].(*redis.IntCmd).Val(), replies[1].(*redis.IntCmd).Val()}
}

func (c goRedisCluster) watched(ctx context.Context, key string) bool {
	err := c.Watch(ctx, func(tx *redis.Tx) error {
		must(c.Set(ctx, key, "changed", 0).Err())
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Set(ctx, key, "mine", 0).Err() })
		return err
	}, key)
	if err != redis.TxFailedErr {
		must(err)
	}
	return err == nil
}

func (c goRedisCluster) add(ctx context.Context, key string, number int) int64 {
	return the(c.adds.Run(ctx, c, []string{key}, number).Int64())
}

func (c goRedisCluster) receive(ctx context.Context, channel string, ready func()) string {
	subscription := c.SSubscribe(ctx, channel)
	defer subscription.Close()
	the(subscription.Receive(ctx))
	ready()
	return the(subscription.ReceiveMessage(ctx)).Payload
}

func (c goRedisCluster) spublish(ctx context.Context, channel, message string) int64 {
	return the(c.SPublish(ctx, channel, message).Result())
}

func (c goRedisCluster) createGroup(ctx context.Context, stream string) {
	must(c.XGroupCreateMkStream(ctx, stream, "group", "0").Err())
}

func (c goRedisCluster) append(ctx context.Context, stream string, number int) error {
	return c.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: map[string]any{"n": number}}).Err()
}

func (c goRedisCluster) consume(ctx context.Context, stream, consumer string) ([]string, error) {
	var numbers []string
	streams, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "group", Consumer: consumer,
		Streams: []string{stream, ">"}, Count: 7, Block: 200 * time.Millisecond}).Result()
	if err == redis.Nil {
		return nil, nil
	}
	for _, entries := range streams {
		for _, entry := range entries.Messages {
			numbers = append(numbers, fmt.Sprint(entry.Values["n"]))
			if err := c.XAck(ctx, stream, "group", entry.ID).Err(); err != nil {
				return numbers, err
			}
		}
	}
	return numbers, err
}
