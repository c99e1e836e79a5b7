package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// How long an operation is retried, and other conditions are waited for.
	clusterPatience = time.Minute
	writers         = 4
)

// cluster is what the program knows about it.
type cluster struct {
	address string
	// tags has a hash tag for each slot. The first `moving` slots are those that migrate.
	tags   []string
	moving int
	// answers are the lines with which the caller answers `DO action`.
	answers *bufio.Scanner
}

func (c *cluster) key(slot int) string { return "{" + c.tags[slot] + "}" }

// do has something happen to the cluster, and returns the result.
func (c *cluster) do(action string) string {
	fmt.Println("DO", action)
	if !c.answers.Scan() {
		fail("no answer to %s", action)
	}
	word, result, _ := strings.Cut(c.answers.Text(), " ")
	same(word+" "+action, "done "+action)
	return result
}

// clusterClient is what the checks need of a library.
type clusterClient interface {
	set(ctx context.Context, key, value string) error
	get(ctx context.Context, key string) (string, error)
	// setAll sets keys to their own names in a pipeline; getAll reads keys of one slot with MGET.
	setAll(ctx context.Context, keys []string) error
	getAll(ctx context.Context, keys []string) []string
	// transaction executes INCR twice with MULTI; watched sets a key to "mine" after a concurrent change, in vain.
	transaction(ctx context.Context, key string) [2]int64
	watched(ctx context.Context, key string) bool
	// add runs a script that adds to a key; the second time by its digest.
	add(ctx context.Context, key string, number int) int64
	// receive subscribes to a shard channel, calls `ready`, and returns the first message.
	receive(ctx context.Context, channel string, ready func()) string
	spublish(ctx context.Context, channel, message string) int64
	createGroup(ctx context.Context, stream string)
	append(ctx context.Context, stream string, number int) error
	// consume reads and acknowledges entries, and waits for them if there are none.
	consume(ctx context.Context, stream, consumer string) ([]string, error)
	close()
}

// clusterLibrary makes clients that read from primaries or from replicas.
type clusterLibrary struct {
	name    string
	connect func(address string, readsReplicas bool) clusterClient
}

type clusterCheck struct {
	name string
	run  func(context.Context, *cluster, clusterLibrary, clusterClient)
}

func writing(action string) func(context.Context, *cluster, clusterLibrary, clusterClient) {
	return func(ctx context.Context, at *cluster, library clusterLibrary, client clusterClient) {
		writeDuring(ctx, at, library, client, action)
	}
}

var clusterChecks = []clusterCheck{
	{"every-slot", func(ctx context.Context, at *cluster, _ clusterLibrary, client clusterClient) {
		for first := 0; first < len(at.tags); first += 1024 {
			var keys []string
			for slot := first; slot < first+1024; slot++ {
				keys = append(keys, at.key(slot))
			}
			must(client.setAll(ctx, keys))
		}
		for slot := range at.tags {
			same(the(client.get(ctx, at.key(slot))), at.key(slot))
		}
	}},
	{"hash-tags", func(ctx context.Context, at *cluster, _ clusterLibrary, client clusterClient) {
		for slot := 0; slot < len(at.tags); slot += 2000 {
			keys := []string{at.key(slot) + "1", at.key(slot) + "2", at.key(slot) + "3"}
			must(client.setAll(ctx, keys))
			same(fmt.Sprint(client.getAll(ctx, keys)), fmt.Sprint(keys))
		}
	}},
	{"transaction", func(ctx context.Context, at *cluster, _ clusterLibrary, client clusterClient) {
		for slot := 0; slot < len(at.tags); slot += 2000 {
			same(client.transaction(ctx, at.key(slot)), [2]int64{1, 2})
			same(client.watched(ctx, at.key(slot)), false)
		}
	}},
	{"script", func(ctx context.Context, at *cluster, _ clusterLibrary, client clusterClient) {
		for slot := 0; slot < len(at.tags); slot += 2000 {
			same(client.add(ctx, at.key(slot), 5), 5)
			same(client.add(ctx, at.key(slot), 6), 11)
		}
	}},
	{"sharded-pubsub", func(ctx context.Context, at *cluster, _ clusterLibrary, client clusterClient) {
		for slot := 0; slot < len(at.tags); slot += 3000 {
			channel, sent := at.tags[slot], make(chan int64, 1)
			message := client.receive(ctx, channel, func() { sent <- client.spublish(ctx, channel, "hello") })
			same(message, "hello")
			same(<-sent, 1)
		}
	}},
	{"replica-reads", func(ctx context.Context, at *cluster, library clusterLibrary, client clusterClient) {
		reader := library.connect(at.address, true)
		defer reader.close()
		for slot := 0; slot < len(at.tags); slot += 40 {
			must(client.set(ctx, at.key(slot), "x"))
		}
		at.do("replicated")
		before := the(strconv.Atoi(at.do("replica_gets")))
		for slot := 0; slot < len(at.tags); slot += 40 {
			same(the(reader.get(ctx, at.key(slot))), "x")
		}
		same(the(strconv.Atoi(at.do("replica_gets"))) > before+100, true)
	}},
	{"streams", streaming("")},
	{"streams-failover", streaming("failover")},
	{"failover", writing("failover")},
	{"kill", writing("kill")},
	{"migrate-keys", writing("migrate_keys")},
	{"migrate-slots", writing("migrate_slots")},
}

// failures counts error messages.
type failures struct {
	lock   sync.Mutex
	counts map[string]int
}

// retried repeats an operation that fails.
func (f *failures) retried(operation func() error) error {
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := operation()
		if err == nil || time.Since(began) > clusterPatience {
			return err
		}
		f.lock.Lock()
		f.counts[err.Error()]++
		f.lock.Unlock()
	}
}

// report prints how much was written, and the errors.
func (f *failures) report(library string, written int64) {
	total := 0
	for words, count := range f.counts {
		fmt.Fprintf(os.Stderr, "%s: %d times %s\n", library, count, words)
		total += count
	}
	fmt.Println("WROTE", library, written, total)
}

// streaming checks consumers of groups in three shards. If something happens meanwhile, then when half of the entries
// are written.
func streaming(action string) func(context.Context, *cluster, clusterLibrary, clusterClient) {
	return func(ctx context.Context, at *cluster, library clusterLibrary, client clusterClient) {
		const consumers, entries = 12, 600
		found := &failures{counts: map[string]int{}}
		streams := []string{at.key(100) + "s", at.key(8000) + "s", at.key(16000) + "s"}
		for _, stream := range streams {
			client.createGroup(ctx, stream)
		}
		var lock sync.Mutex
		var seen []string
		var failed error
		var all sync.WaitGroup
		isDone := func() bool {
			lock.Lock()
			defer lock.Unlock()
			return len(seen) >= entries || failed != nil || ctx.Err() != nil
		}
		for number := range consumers {
			all.Go(func() {
				for !isDone() {
					var got []string
					err := found.retried(func() error {
						more, err := client.consume(ctx, streams[number%3], fmt.Sprint("c", number))
						got = append(got, more...)
						return err
					})
					lock.Lock()
					seen, failed = append(seen, got...), errors.Join(failed, err)
					lock.Unlock()
				}
			})
		}
		var expected []string
		for number := range entries {
			if action != "" && number == entries/2 {
				at.do(action)
			}
			must(found.retried(func() error { return client.append(ctx, streams[number%3], number) }))
			expected = append(expected, fmt.Sprint(number))
		}
		all.Wait()
		must(failed)
		slices.Sort(seen)
		slices.Sort(expected)
		same(fmt.Sprint(seen), fmt.Sprint(expected))
		found.report(library.name, entries)
	}
}

// written is what one writer did.
type written struct {
	count atomic.Int64
	err   error
}

// numbered is the key of a numbered write. Half of them are in the slots that migrate.
func (c *cluster) numbered(writer int, number int64) string {
	slot := int(number * 7919 % int64(len(c.tags)))
	if number%2 == 1 {
		slot = int(number / 2 % int64(c.moving))
	}
	return fmt.Sprint(c.key(slot), ":", writer, ":", number)
}

func (w *written) work(ctx context.Context, at *cluster, client clusterClient, found *failures, writer int,
	ending *atomic.Bool) error {
	for !ending.Load() {
		number := w.count.Load()
		key, value, got := at.numbered(writer, number), fmt.Sprint(number), ""
		err := found.retried(func() error { return client.set(ctx, key, value) })
		if err == nil {
			err = found.retried(func() (err error) { got, err = client.get(ctx, key); return err })
		}
		if err == nil && got != value {
			err = fmt.Errorf("%s is %q after it was written", key, got)
		}
		if err != nil {
			return err
		}
		w.count.Add(1)
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// writeDuring writes numbered keys while something happens, reads each back at once, and all of them at the end.
func writeDuring(ctx context.Context, at *cluster, library clusterLibrary, client clusterClient, action string) {
	var ending atomic.Bool
	var all sync.WaitGroup
	work, found := make([]*written, writers), &failures{counts: map[string]int{}}
	for writer := range work {
		own := &written{}
		work[writer] = own
		all.Go(func() { own.err = own.work(ctx, at, client, found, writer, &ending) })
	}
	defer func() {
		ending.Store(true)
		all.Wait()
	}()
	progress := func() {
		for _, own := range work {
			goal, began := own.count.Load()+100, time.Now()
			for own.count.Load() < goal && time.Since(began) < 2*clusterPatience {
				time.Sleep(10 * time.Millisecond)
			}
			same(own.count.Load() >= goal, true)
		}
	}
	progress()
	at.do(action)
	progress()
	ending.Store(true)
	all.Wait()
	total := int64(0)
	for writer, own := range work {
		must(own.err)
		for number := range own.count.Load() {
			same(the(client.get(ctx, at.numbered(writer, number))), fmt.Sprint(number))
		}
		total += own.count.Load()
	}
	found.report(library.name, total)
}

// runCluster checks cluster modes. The arguments are the port of a node, the file with the tags of the slots, and the
// number of slots that migrate.
func runCluster(port, tags, moving string) {
	at := &cluster{address: "127.0.0.1:" + port, tags: strings.Fields(string(the(os.ReadFile(tags)))),
		moving: the(strconv.Atoi(moving)), answers: bufio.NewScanner(os.Stdin)}
	for _, library := range []clusterLibrary{{"go-redis", connectGoRedis}, {"valkey-go", connectValkeyGo}} {
		for _, check := range clusterChecks {
			result := reported(func() {
				at.do("flush")
				ctx, cancel := context.WithTimeout(context.Background(), 3*clusterPatience)
				defer cancel()
				client := library.connect(at.address, false)
				defer client.close()
				check.run(ctx, at, library, client)
			})
			fmt.Println("CHECK", library.name, check.name, result)
		}
	}
}
