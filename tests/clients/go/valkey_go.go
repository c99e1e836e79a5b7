package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"
)

func open(at server, change func(*valkey.ClientOption)) valkey.Client {
	options := valkey.ClientOption{InitAddress: []string{at.plain}, ForceSingleClient: true}
	if change != nil {
		change(&options)
	}
	return the(valkey.NewClient(options))
}

func openTLS(at server, change func(*valkey.ClientOption)) valkey.Client {
	return open(at, func(options *valkey.ClientOption) {
		options.InitAddress, options.TLSConfig = []string{at.encrypted}, at.tls
		if change != nil {
			change(options)
		}
	})
}

var valkeyGo = []check{
	{"connect-resp2", func(ctx context.Context, at server) {
		client := open(at, func(options *valkey.ClientOption) { options.AlwaysRESP2, options.DisableCache = true, true })
		defer client.Close()
		info := the(client.Do(ctx, client.B().ClientInfo().Build()).ToString())
		same(strings.Contains(info, " resp=2"), true)
	}},
	{"connect-resp3", func(ctx context.Context, at server) {
		client := open(at, func(options *valkey.ClientOption) { options.DisableCache = true })
		defer client.Close()
		info := the(client.Do(ctx, client.B().ClientInfo().Build()).ToString())
		same(strings.Contains(info, " resp=3"), true)
		must(client.Do(ctx, client.B().Hset().Key("h3").FieldValue().FieldValue("a", "1").Build()).Error())
		same(fmt.Sprint(the(client.Do(ctx, client.B().Hgetall().Key("h3").Build()).AsStrMap())), "map[a:1]")
	}},
	{"connect-tls", func(ctx context.Context, at server) {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			config := at.tls.Clone()
			config.MinVersion, config.MaxVersion = version, version
			client := openTLS(at, func(options *valkey.ClientOption) { options.TLSConfig = config })
			large := strings.Repeat("x", 5_000_000)
			must(client.Do(ctx, client.B().Set().Key("large").Value(large).Build()).Error())
			same(the(client.Do(ctx, client.B().Get().Key("large").Build()).ToString()) == large, true)
			client.Close()
		}
	}},
	{"acl-user", func(ctx context.Context, at server) {
		admin := open(at, nil)
		defer admin.Close()
		must(admin.Do(ctx, admin.B().AclSetuser().Username("worker").Rule("on", ">secret", "~app:*", "+@all", "-@dangerous").Build()).Error())
		client := openTLS(at, func(options *valkey.ClientOption) { options.Username, options.Password = "worker", "secret" })
		defer client.Close()
		same(the(client.Do(ctx, client.B().AclWhoami().Build()).ToString()), "worker")
		must(client.Do(ctx, client.B().Set().Key("app:1").Value("x").Build()).Error())
		refused(client.Do(ctx, client.B().Get().Key("other").Build()).Error(), "NOPERM")
		must(admin.Do(ctx, admin.B().AclDeluser().Username("worker").Build()).Error())
	}},
	{"pipeline", func(ctx context.Context, at server) {
		client := open(at, nil)
		defer client.Close()
		var commands valkey.Commands
		for n := range 1000 {
			commands = append(commands, client.B().Set().Key(fmt.Sprint("p:", n)).Value(fmt.Sprint(n)).Build(),
				client.B().Get().Key(fmt.Sprint("p:", n)).Build())
		}
		for n, reply := range client.DoMulti(ctx, commands...) {
			expected := "OK"
			if n%2 == 1 {
				expected = fmt.Sprint(n / 2)
			}
			same(the(reply.ToString()), expected)
		}
	}},
	{"transaction", func(ctx context.Context, at server) {
		client, other := open(at, nil), open(at, nil)
		defer client.Close()
		defer other.Close()
		must(client.Dedicated(func(own valkey.DedicatedClient) error {
			must(own.Do(ctx, own.B().Watch().Key("foo").Build()).Error())
			must(other.Do(ctx, other.B().Set().Key("foo").Value("changed").Build()).Error())
			replies := own.DoMulti(ctx, own.B().Multi().Build(), own.B().Set().Key("foo").Value("mine").Build(), own.B().Exec().Build())
			same(valkey.IsValkeyNil(replies[2].Error()), true)
			replies = own.DoMulti(ctx, own.B().Multi().Build(), own.B().Set().Key("foo").Value("mine").Build(), own.B().Exec().Build())
			return replies[2].Error()
		}))
		same(the(client.Do(ctx, client.B().Get().Key("foo").Build()).ToString()), "mine")
	}},
	{"script", func(ctx context.Context, at server) {
		client := open(at, nil)
		defer client.Close()
		script := valkey.NewLuaScript("return {KEYS[1], ARGV[1], 3}")
		for range 2 {
			reply := the(script.Exec(ctx, client, []string{"k"}, []string{"a"}).ToArray())
			same(the(reply[0].ToString())+the(reply[1].ToString())+fmt.Sprint(the(reply[2].ToInt64())), "ka3")
		}
		library := "#!lua name=lib\nredis.register_function('twice', function(keys, args) return 2 * args[1] end)"
		must(client.Do(ctx, client.B().FunctionLoad().Replace().FunctionCode(library).Build()).Error())
		same(the(client.Do(ctx, client.B().Fcall().Function("twice").Numkeys(0).Arg("21").Build()).ToInt64()), int64(42))
		must(client.Do(ctx, client.B().FunctionDelete().LibraryName("lib").Build()).Error())
	}},
	{"publish-subscribe", func(ctx context.Context, at server) {
		client, publisher := openTLS(at, nil), open(at, nil)
		defer client.Close()
		defer publisher.Close()
		got, received := make(chan valkey.PubSubMessage, 1), false
		ending, end := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			done <- client.Receive(ending, client.B().Subscribe().Channel("news").Build(), func(message valkey.PubSubMessage) {
				if !received {
					received = true
					got <- message
				}
			})
		}()
		for waiting := true; waiting; {
			must(publisher.Do(ctx, publisher.B().Publish().Channel("news").Message("hello").Build()).Error())
			select {
			case message := <-got:
				same(message.Message, "hello")
				waiting = false
			case <-time.After(10 * time.Millisecond):
				must(ctx.Err())
			}
		}
		end()
		<-done
	}},
	{"client-side-cache", func(ctx context.Context, at server) {
		client, other := open(at, nil), open(at, nil)
		defer client.Close()
		defer other.Close()
		get := func() valkey.ValkeyResult {
			return client.DoCache(ctx, client.B().Get().Key("cached").Cache(), time.Minute)
		}
		set := func(value string) {
			must(other.Do(ctx, other.B().Set().Key("cached").Value(value).Build()).Error())
		}
		set("1")
		same(the(get().ToString()), "1")
		same(get().IsCacheHit(), true)
		set("2")
		for the(get().ToString()) != "2" {
			must(ctx.Err())
			time.Sleep(time.Millisecond)
		}
	}},
	{"streams-and-groups", func(ctx context.Context, at server) {
		const consumers, entries = 16, 400
		client, encrypted := open(at, nil), openTLS(at, nil)
		defer client.Close()
		defer encrypted.Close()
		must(client.Do(ctx, client.B().XgroupCreate().Key("stream").Group("group").Id("0").Mkstream().Build()).Error())
		seen, failures := make(chan string, entries), make(chan error, consumers)
		ending, end := context.WithCancel(ctx)
		var all sync.WaitGroup
		for number := range consumers {
			own := []valkey.Client{client, encrypted}[number%2]
			all.Go(func() {
				for ending.Err() == nil {
					streams, err := own.Do(ctx, own.B().Xreadgroup().Group("group", fmt.Sprint(number)).Count(7).Block(200).Streams().
						Key("stream").Id(">").Build()).AsXRead()
					if err != nil && !valkey.IsValkeyNil(err) {
						failures <- err
						return
					}
					for _, message := range streams["stream"] {
						seen <- message.FieldValues["n"]
						if err := own.Do(ctx, own.B().Xack().Key("stream").Group("group").Id(message.ID).Build()).Error(); err != nil {
							failures <- err
							return
						}
					}
				}
			})
		}
		for n := range entries {
			must(client.Do(ctx, client.B().Xadd().Key("stream").Id("*").FieldValue().FieldValue("n", fmt.Sprintf("%03d", n)).Build()).Error())
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
	}},
}
