package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// Operations of one client in a window. Together with the number of keys it bounds the length of a history.
	operationsPerClient = 60
	keysPerWindow       = 3
	// One of so many operations loses its connection before the reply.
	operationsPerBreak = 3000
)

// reads has the commands that do not write.
var reads = map[string]bool{"GET": true, "STRLEN": true, "HGET": true, "HLEN": true, "LLEN": true, "LRANGE": true}

// kinds generate the operations on keys of one type; `seen` is the value that the client read last, `fresh` a new one.
var kinds = map[string]func(random *rand.Rand, seen, fresh string) (string, []string){
	"register": func(random *rand.Rand, seen, fresh string) (string, []string) {
		switch random.IntN(10) {
		case 0:
			return "DEL", nil
		case 1, 2:
			return "SET", []string{fresh}
		case 3:
			return "GETSET", []string{fresh}
		case 4, 5, 6:
			return "SET", []string{fresh, "IFEQ", seen}
		}
		return "GET", nil
	},
	"counter": func(random *rand.Rand, _, _ string) (string, []string) {
		switch random.IntN(12) {
		case 0:
			return "DEL", nil
		case 1, 2, 3, 4:
			return "GET", nil
		case 5, 6:
			return "INCRBY", []string{"-1"}
		}
		return "INCRBY", []string{fmt.Sprint(1 + random.IntN(3))}
	},
	"text": func(random *rand.Rand, _, fresh string) (string, []string) {
		switch random.IntN(12) {
		case 0:
			return "DEL", nil
		case 1, 2, 3:
			return "GET", nil
		case 4:
			return "STRLEN", nil
		case 5:
			return "SET", []string{fresh}
		}
		return "APPEND", []string{fresh}
	},
	"hash": func(random *rand.Rand, _, fresh string) (string, []string) {
		field := string("ab"[random.IntN(2)])
		switch random.IntN(10) {
		case 0:
			return "HDEL", []string{field}
		case 1:
			return "HLEN", nil
		case 2, 3, 4, 5:
			return "HGET", []string{field}
		}
		return "HSET", []string{field, fresh}
	},
	"list": func(random *rand.Rand, _, fresh string) (string, []string) {
		switch random.IntN(12) {
		case 0, 1, 2:
			return "LPUSH", []string{fresh}
		case 3, 4:
			return "RPUSH", []string{fresh}
		case 5, 6, 7:
			return "LPOP", nil
		case 8, 9:
			return "RPOP", nil
		case 10:
			return "LLEN", nil
		}
		return "LRANGE", []string{"0", "-1"}
	},
}

// kindNames are the kinds in a fixed order, so that a seed determines the requests.
var kindNames = []string{"register", "counter", "text", "hash", "list"}

// window is the history of all clients on new keys.
type window struct {
	number     int
	operations []porcupine.Operation
	unknown    int
}

// workload lets clients execute operations, window by window.
type workload struct {
	clients []*client
	// tags are hash tags for the keys.
	tags   []string
	random *rand.Rand
	began  time.Time
}

func newWorkload(clients []*client, tags []string, seed uint64) *workload {
	return &workload{clients: clients, tags: tags, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now()}
}

func (w *workload) now() int64 { return time.Since(w.began).Nanoseconds() }

// run executes one window, and deletes its keys afterwards.
func (w *workload) run(number int) (window, error) {
	var keys []string
	for index, kind := range w.random.Perm(len(kindNames))[:keysPerWindow] {
		tag := w.tags[w.random.IntN(len(w.tags))]
		keys = append(keys, fmt.Sprintf("%s:{%s}:%d:%d", kindNames[kind], tag, number, index))
	}
	var all sync.WaitGroup
	parts, failures := make([]window, len(w.clients)), make([]error, len(w.clients))
	for index, client := range w.clients {
		random := rand.New(rand.NewPCG(w.random.Uint64(), 0))
		all.Go(func() { parts[index], failures[index] = w.runClient(client, index, keys, random) })
	}
	all.Wait()
	whole, end := window{number: number}, w.now()
	for index, part := range parts {
		if failures[index] != nil {
			return whole, failures[index]
		}
		for _, operation := range part.operations {
			if operation.Output == unknown {
				operation.Return = end
			}
			whole.operations = append(whole.operations, operation)
		}
		whole.unknown += part.unknown
	}
	for _, key := range keys {
		if _, err := w.clients[0].do(input{key: key, command: "UNLINK"}, false); err != nil {
			return whole, err
		}
	}
	return whole, nil
}

func (w *workload) runClient(client *client, index int, keys []string, random *rand.Rand) (window, error) {
	// The number of the client in the history. It changes after an operation of unknown outcome, which stays open.
	name := index
	seen, own := map[string]string{}, window{}
	for count := range operationsPerClient {
		key := keys[random.IntN(len(keys))]
		kind, _, _ := strings.Cut(key, ":")
		// Empty values would make a missing key look like an empty one to IFEQ.
		if seen[key] == "" {
			seen[key] = "-"
		}
		command, args := kinds[kind](random, seen[key], fmt.Sprintf("%d.%d", index, count))
		in := input{key, command, args}
		called := w.now()
		output, err := client.do(in, random.IntN(operationsPerBreak) == 0)
		operation := porcupine.Operation{ClientId: name, Input: in, Call: called, Output: output, Return: w.now()}
		if err == errBroken {
			operation.Output = unknown
			own.unknown++
			name += len(w.clients)
		} else if err != nil {
			return own, err
		}
		if value, isValue := strings.CutPrefix(output, "$"); isValue {
			seen[key] = value
		}
		own.operations = append(own.operations, operation)
	}
	return own, nil
}
