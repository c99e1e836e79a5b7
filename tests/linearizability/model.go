package main

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// input is a command on one key.
type input struct {
	key, command string
	args         []string
}

func (in input) String() string {
	return strings.TrimSpace(in.command + " " + strings.Join(in.args, " "))
}

// unknown is the output of an operation whose connection broke. It may have been executed at any later time, or never.
const unknown = "unknown"

// model is the sequential specification: each key holds a register, a counter, a text, a list or a hash.
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(input).key
			keys[key] = append(keys[key], operation)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, in, output any) (bool, any) {
		expected, next := execute(state.(string), in.(input))
		return output == unknown || output == expected, next
	},
	DescribeOperation: func(in, output any) string { return fmt.Sprint(in, " -> ", output) },
	DescribeState:     func(state any) string { return fmt.Sprintf("%q", state) },
}

// Replies in the notation of `reply.String`.
const (
	ok   = "+OK"
	null = "nil"
)

func number(n int) string { return ":" + strconv.Itoa(n) }

// execute returns the reply to a command on a key in this state, and the next state. A missing key is "", a string is
// "=" and its value. Lists are their elements, hashes their `field=value` pairs in order, joined by commas.
func execute(state string, in input) (string, string) {
	value, isThere := strings.CutPrefix(state, "=")
	bulk := null
	if isThere {
		bulk = "$" + value
	}
	switch in.command {
	case "GET":
		return bulk, state
	case "GETSET":
		return bulk, "=" + in.args[0]
	case "SET":
		if len(in.args) == 3 && (!isThere || value != in.args[2]) { // value IFEQ comparison
			return null, state
		}
		return ok, "=" + in.args[0]
	case "DEL":
		if state == "" {
			return number(0), ""
		}
		return number(1), ""
	case "INCRBY":
		old, _ := strconv.Atoi(value)
		by, _ := strconv.Atoi(in.args[0])
		return number(old + by), "=" + strconv.Itoa(old+by)
	case "APPEND":
		return number(len(value) + len(in.args[0])), "=" + value + in.args[0]
	case "STRLEN":
		return number(len(value)), state
	case "HSET", "HGET", "HDEL", "HLEN":
		return executeHash(state, in)
	case "LPUSH", "RPUSH", "LPOP", "RPOP", "LLEN", "LRANGE":
		return executeList(state, in)
	}
	panic("no model of " + in.command)
}

func split(state string) []string {
	if state == "" {
		return nil
	}
	return strings.Split(state, ",")
}

func executeHash(state string, in input) (string, string) {
	pairs := split(state)
	at := -1
	for index, pair := range pairs {
		if len(in.args) > 0 && strings.HasPrefix(pair, in.args[0]+"=") {
			at = index
		}
	}
	switch in.command {
	case "HSET":
		pair := in.args[0] + "=" + in.args[1]
		if at >= 0 {
			pairs[at] = pair
			return number(0), strings.Join(pairs, ",")
		}
		pairs = append(pairs, pair)
		sort.Strings(pairs)
		return number(1), strings.Join(pairs, ",")
	case "HGET":
		if at < 0 {
			return null, state
		}
		_, value, _ := strings.Cut(pairs[at], "=")
		return "$" + value, state
	case "HDEL":
		if at < 0 {
			return number(0), state
		}
		return number(1), strings.Join(append(pairs[:at], pairs[at+1:]...), ",")
	default: // HLEN
		return number(len(pairs)), state
	}
}

func executeList(state string, in input) (string, string) {
	items := split(state)
	switch in.command {
	case "LPUSH":
		return number(len(items) + 1), strings.Join(append([]string{in.args[0]}, items...), ",")
	case "RPUSH":
		return number(len(items) + 1), strings.Join(append(items, in.args[0]), ",")
	case "LLEN":
		return number(len(items)), state
	case "LRANGE": // all
		for index, item := range items {
			items[index] = "$" + item
		}
		return "[" + strings.Join(items, " ") + "]", state
	}
	if len(items) == 0 {
		return null, state
	}
	if in.command == "LPOP" {
		return "$" + items[0], strings.Join(items[1:], ",")
	}
	last := len(items) - 1 // RPOP
	return "$" + items[last], strings.Join(items[:last], ",")
}
