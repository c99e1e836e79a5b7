package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

func connect(at server, change func(*redis.Options)) *redis.Client {
	options := &redis.Options{Addr: at.plain, MaxRetries: -1}
	if change != nil {
		change(options)
	}
	return redis.NewClient(options)
}

func connectTLS(at server, change func(*redis.Options)) *redis.Client {
	return connect(at, func(options *redis.Options) {
		options.Addr, options.TLSConfig = at.encrypted, at.tls
		if change != nil {
			change(options)
		}
	})
}

func flush(at server) {
	client := connect(at, nil)
	defer client.Close()
	must(client.FlushAll(context.Background()).Err())
}

var goRedis = []check{
	{"connect-resp2", func(ctx context.Context, at server) {
		client := connect(at, func(options *redis.Options) { options.Protocol, options.ClientName, options.DB = 2, "two", 3 })
		defer client.Close()
		same(client.Ping(ctx).Val(), "PONG")
		info := the(client.ClientInfo(ctx).Result())
		same(fmt.Sprint(info.Resp, " ", info.Name, " ", info.DB), "2 two 3")
	}},
	{"connect-resp3", func(ctx context.Context, at server) {
		client := connect(at, func(options *redis.Options) { options.Protocol = 3 })
		defer client.Close()
		same(the(client.ClientInfo(ctx).Result()).Resp, 3)
		must(client.HSet(ctx, "h3", "a", 1, "b", "two").Err())
		same(fmt.Sprint(client.HGetAll(ctx, "h3").Val()), "map[a:1 b:two]")
	}},
	{"connect-tls", func(ctx context.Context, at server) {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			config := at.tls.Clone()
			config.MinVersion, config.MaxVersion = version, version
			client := connectTLS(at, func(options *redis.Options) { options.TLSConfig = config })
			large := strings.Repeat("x", 5_000_000)
			must(client.Set(ctx, "large", large, 0).Err())
			same(the(client.Get(ctx, "large").Result()) == large, true)
			client.Close()
		}
		stranger := at.tls.Clone()
		stranger.Certificates = nil
		client := connectTLS(at, func(options *redis.Options) { options.TLSConfig = stranger })
		defer client.Close()
		if client.Ping(ctx).Err() == nil {
			fail("a client without a certificate was accepted")
		}
	}},
	{"acl-user", func(ctx context.Context, at server) {
		admin := connect(at, nil)
		defer admin.Close()
		must(admin.ACLSetUser(ctx, "worker", "on", ">secret", "~app:*", "+@all", "-@dangerous").Err())
		login := func(options *redis.Options) { options.Username, options.Password = "worker", "secret" }
		for _, client := range []*redis.Client{connect(at, login), connectTLS(at, login)} {
			same(the(client.ACLWhoAmI(ctx).Result()), "worker")
			must(client.Set(ctx, "app:1", "x", 0).Err())
			refused(client.Get(ctx, "other").Err(), "NOPERM")
			client.Close()
		}
		wrong := connect(at, func(options *redis.Options) { options.Username, options.Password = "worker", "wrong" })
		defer wrong.Close()
		refused(wrong.Ping(ctx).Err(), "WRONGPASS")
		must(admin.ACLDelUser(ctx, "worker").Err())
	}},
	{"values", func(ctx context.Context, at server) {
		client := connect(at, nil)
		defer client.Close()
		same(the(client.SetNX(ctx, "s", "v", time.Minute).Result()), true)
		same(the(client.TTL(ctx, "s").Result()), time.Minute)
		refused(client.Get(ctx, "nothing").Err(), redis.Nil.Error())
		must(client.ZAdd(ctx, "z", redis.Z{Score: 1, Member: "a"}, redis.Z{Score: 2.5, Member: "b"}).Err())
		same(fmt.Sprint(client.ZRangeWithScores(ctx, "z", 0, -1).Val()), "[{1 a} {2.5 b}]")
		must(client.RPush(ctx, "l", 1, 2, 3).Err())
		same(fmt.Sprint(client.Sort(ctx, "l", &redis.Sort{Order: "DESC"}).Val()), "[3 2 1]")
		must(client.SAdd(ctx, "set", "a", "b").Err())
		same(client.SIsMember(ctx, "set", "a").Val(), true)
	}},
	{"pipeline", func(ctx context.Context, at server) {
		client := connect(at, nil)
		defer client.Close()
		var gets []*redis.StringCmd
		the(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n := range 1000 {
				pipe.Set(ctx, fmt.Sprint("p:", n), n, 0)
				gets = append(gets, pipe.Get(ctx, fmt.Sprint("p:", n)))
			}
			return nil
		}))
		for n, get := range gets {
			same(get.Val(), fmt.Sprint(n))
		}
	}},
	{"scan", func(ctx context.Context, at server) {
		client := connect(at, nil)
		defer client.Close()
		the(client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for n := range 2500 {
				pipe.Set(ctx, fmt.Sprint("scan:", n), n, 0)
			}
			return nil
		}))
		seen := map[string]bool{}
		for all := client.Scan(ctx, 0, "scan:*", 100).Iterator(); all.Next(ctx); {
			seen[all.Val()] = true
		}
		same(len(seen), 2500)
	}},
	{"transaction", func(ctx context.Context, at server) {
		client := connect(at, nil)
		defer client.Close()
		// Concurrent increments of one counter, each in a transaction that is retried after a conflict.
		increment := func() error {
			return client.Watch(ctx, func(tx *redis.Tx) error {
				n, err := tx.Get(ctx, "counter").Int()
				if err != nil && err != redis.Nil {
					return err
				}
				_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
					return pipe.Set(ctx, "counter", n+1, 0).Err()
				})
				return err
			}, "counter")
		}
		failures := make(chan error, 20)
		for range cap(failures) {
			go func() {
				for {
					if err := increment(); !errors.Is(err, redis.TxFailedErr) {
						failures <- err
						return
					}
				}
			}()
		}
		for range cap(failures) {
			must(<-failures)
		}
		same(client.Get(ctx, "counter").Val(), "20")
	}},
	{"script", func(ctx context.Context, at server) {
		client := connect(at, nil)
		defer client.Close()
		sum := redis.NewScript("local v = redis.call('GET', KEYS[1]) or 0\nv = v + ARGV[1]\nredis.call('SET', KEYS[1], v)\nreturn v")
		same(the(sum.Run(ctx, client, []string{"sum"}, 2).Int()), 2)
		must(client.ScriptFlush(ctx).Err())
		same(the(sum.Run(ctx, client, []string{"sum"}, 40).Int()), 42)
		must(client.FunctionLoadReplace(ctx, "#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)").Err())
		same(the(client.FCall(ctx, "twice", nil, 21).Int()), 42)
		must(client.FunctionDelete(ctx, "lib").Err())
	}},
	{"publish-subscribe", func(ctx context.Context, at server) {
		publisher := connect(at, nil)
		defer publisher.Close()
		for _, protocol := range []int{2, 3} {
			client := connectTLS(at, func(options *redis.Options) { options.Protocol = protocol })
			subscription := client.Subscribe(ctx, "news")
			the(subscription.Receive(ctx))
			must(subscription.PSubscribe(ctx, "n?ws"))
			the(subscription.Receive(ctx))
			same(the(publisher.Publish(ctx, "news", "hello").Result()), 2)
			for range 2 {
				same(the(subscription.ReceiveMessage(ctx)).Payload, "hello")
			}
			must(subscription.Close())
			client.Close()
		}
	}},
	{"blocking", func(ctx context.Context, at server) {
		client := connect(at, nil)
		defer client.Close()
		popped := make(chan []string, 1)
		go func() { popped <- client.BLPop(ctx, 10*time.Second, "{queue}nothing", "queue").Val() }()
		must(client.RPush(ctx, "queue", "task").Err())
		same(fmt.Sprint(<-popped), "[queue task]")
	}},
	{"streams-and-groups", func(ctx context.Context, at server) {
		const consumers, entries = 16, 400
		client, encrypted := connect(at, nil), connectTLS(at, nil)
		defer client.Close()
		defer encrypted.Close()
		must(client.XGroupCreateMkStream(ctx, "stream", "group", "0").Err())
		seen, failures := make(chan string, entries), make(chan error, consumers)
		ending, end := context.WithCancel(ctx)
		var all sync.WaitGroup
		for number := range consumers {
			own := []*redis.Client{client, encrypted}[number%2]
			all.Go(func() {
				for ending.Err() == nil {
					streams, err := own.XReadGroup(ctx, &redis.XReadGroupArgs{
						Group: "group", Consumer: fmt.Sprint(number), Streams: []string{"stream", ">"}, Count: 7, Block: 200 * time.Millisecond,
					}).Result()
					if err != nil && err != redis.Nil {
						failures <- err
						return
					}
					for _, stream := range streams {
						for _, message := range stream.Messages {
							seen <- message.Values["n"].(string)
							if err := own.XAck(ctx, "stream", "group", message.ID).Err(); err != nil {
								failures <- err
								return
							}
						}
					}
				}
			})
		}
		for n := range entries {
			must(client.XAdd(ctx, &redis.XAddArgs{Stream: "stream", Values: map[string]any{"n": fmt.Sprintf("%03d", n)}}).Err())
		}
		var got []string
		for range entries {
			select {
			case n := <-seen:
				got = append(got, n)
			case err := <-failures:
				must(err)
			case <-ctx.Done():
				must(ctx.Err())
			}
		}
		end()
		all.Wait()
		sort.Strings(got)
		for n := range entries {
			same(got[n], fmt.Sprintf("%03d", n))
		}
		same(the(client.XPending(ctx, "stream", "group").Result()).Count, 0)
	}},
}
