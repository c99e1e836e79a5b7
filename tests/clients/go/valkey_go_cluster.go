package main

import (
	"context"
	"fmt"

	"github.com/valkey-io/valkey-go"
)

type valkeyGoCluster struct {
	valkey.Client
	adds *valkey.Lua
}

func connectValkeyGo(address string, readsReplicas bool) clusterClient {
	options := valkey.ClientOption{InitAddress: []string{address}, DisableCache: true}
	if readsReplicas {
		options.SendToReplicas = func(command valkey.Completed) bool { return command.IsReadOnly() }
	}
	adds := valkey.NewLuaScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	return valkeyGoCluster{the(valkey.NewClient(options)), adds}
}

func (c valkeyGoCluster) close() { c.Close() }

func (c valkeyGoCluster) set(ctx context.Context, key, value string) error {
	return c.Do(ctx, c.B().Set().Key(key).Value(value).Build()).Error()
}

func (c valkeyGoCluster) get(ctx context.Context, key string) (string, error) {
	return c.Do(ctx, c.B().Get().Key(key).Build()).ToString()
}

func (c valkeyGoCluster) setAll(ctx context.Context, keys []string) error {
	var commands valkey.Commands
	for _, key := range keys {
		commands = append(commands, c.B().Set().Key(key).Value(key).Build())
	}
	for _, reply := range c.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			return err
		}
	}
	return nil
}

func (c valkeyGoCluster) getAll(ctx context.Context, keys []string) []string {
	return the(c.Do(ctx, c.B().Mget().Key(keys...).Build()).AsStrSlice())
}

func (c valkeyGoCluster) transaction(ctx context.Context, key string) (results [2]int64) {
	must(c.Dedicated(func(own valkey.DedicatedClient) error {
		one, two := own.B().Incr().Key(key).Build(), own.B().Incr().Key(key).Build()
		replies := own.DoMulti(ctx, own.B().Multi().Build(), one, two, own.B().Exec().Build())
		numbers, err := replies[3].AsIntSlice()
		if err == nil {
			results = [2]int64{numbers[0], numbers[1]}
		}
		return err
	}))
	return results
}

func (c valkeyGoCluster) watched(ctx context.Context, key string) (isExecuted bool) {
	must(c.Dedicated(func(own valkey.DedicatedClient) error {
		must(own.Do(ctx, own.B().Watch().Key(key).Build()).Error())
		must(c.set(ctx, key, "changed"))
		set := own.B().Set().Key(key).Value("mine").Build()
		err := own.DoMulti(ctx, own.B().Multi().Build(), set, own.B().Exec().Build())[2].Error()
		isExecuted = err == nil
		if valkey.IsValkeyNil(err) {
			return nil
		}
		return err
	}))
	return isExecuted
}

func (c valkeyGoCluster) add(ctx context.Context, key string, number int) int64 {
	return the(c.adds.Exec(ctx, c.Client, []string{key}, []string{fmt.Sprint(number)}).AsInt64())
}

func (c valkeyGoCluster) receive(ctx context.Context, channel string, ready func()) string {
	own, release := c.Dedicate()
	defer release()
	messages := make(chan string, 1)
	hooks := own.SetPubSubHooks(valkey.PubSubHooks{
		OnSubscription: func(valkey.PubSubSubscription) { go ready() },
		OnMessage:      func(message valkey.PubSubMessage) { messages <- message.Message },
	})
	must(own.Do(ctx, own.B().Ssubscribe().Channel(channel).Build()).Error())
	select {
	case message := <-messages:
		return message
	case err := <-hooks:
		must(err)
	case <-ctx.Done():
		must(ctx.Err())
	}
	return ""
}

func (c valkeyGoCluster) spublish(ctx context.Context, channel, message string) int64 {
	return the(c.Do(ctx, c.B().Spublish().Channel(channel).Message(message).Build()).AsInt64())
}

func (c valkeyGoCluster) createGroup(ctx context.Context, stream string) {
	must(c.Do(ctx, c.B().XgroupCreate().Key(stream).Group("group").Id("0").Mkstream().Build()).Error())
}

func (c valkeyGoCluster) append(ctx context.Context, stream string, number int) error {
	add := c.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("n", fmt.Sprint(number)).Build()
	return c.Do(ctx, add).Error()
}

func (c valkeyGoCluster) consume(ctx context.Context, stream, consumer string) ([]string, error) {
	read := c.B().Xreadgroup().Group("group", consumer).Count(7).Block(200).Streams().Key(stream).Id(">").Build()
	streams, err := c.Do(ctx, read).AsXRead()
	if valkey.IsValkeyNil(err) {
		return nil, nil
	}
	var numbers []string
	for _, entry := range streams[stream] {
		numbers = append(numbers, entry.FieldValues["n"])
		if err := c.Do(ctx, c.B().Xack().Key(stream).Group("group").Id(entry.ID).Build()).Error(); err != nil {
			return numbers, err
		}
	}
	return numbers, err
}
