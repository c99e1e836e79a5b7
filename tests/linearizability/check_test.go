package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/anishathalye/porcupine"
)

// at is an operation with its times.
func at(call, end int64, key, output, command string, args ...string) porcupine.Operation {
	return porcupine.Operation{Input: input{key, command, args}, Call: call, Output: output, Return: end}
}

// outcome checks a history, and tells whether the check found a violation.
func outcome(t *testing.T, history ...porcupine.Operation) bool {
	t.Helper()
	directory := t.TempDir()
	_, err := check(window{operations: history}, directory, "test")
	var found violation
	if err != nil && !errors.As(err, &found) {
		t.Fatal(err)
	}
	if _, absent := os.Stat(filepath.Join(directory, "test-0.html")); (absent == nil) != (err != nil) {
		t.Fatal("a file shows each violation, and nothing else: ", absent)
	}
	return err != nil
}

func TestStaleReadIsFound(t *testing.T) {
	write, later := at(0, 1, "k", ok, "SET", "a"), at(2, 3, "k", ok, "SET", "b")
	if outcome(t, write, later, at(4, 5, "k", "$b", "GET")) {
		t.Error("a read of the last value is linearizable")
	}
	if !outcome(t, write, later, at(4, 5, "k", "$a", "GET")) {
		t.Error("a read of the value before is not linearizable")
	}
	if outcome(t, write, later, at(2, 5, "k", "$a", "GET")) {
		t.Error("a read that began before the second write ended may see the first value")
	}
}

func TestKeysAreIndependent(t *testing.T) {
	stale := at(2, 3, "two", null, "GET")
	if outcome(t, at(0, 1, "one", ok, "SET", "a"), stale) {
		t.Error("a write to another key does not matter")
	}
	if !outcome(t, at(0, 1, "one", ok, "SET", "a"), at(0, 1, "two", ok, "SET", "a"), stale) {
		t.Error("the second key's history is checked too")
	}
}

func TestUnknownOutcomeMayHaveHappenedOrNot(t *testing.T) {
	lost := at(0, 100, "k", unknown, "INCRBY", "5")
	for _, value := range []string{null, "$5"} {
		if outcome(t, lost, at(10, 11, "k", value, "GET")) {
			t.Error("a lost increment may have happened or not: ", value)
		}
	}
	if !outcome(t, lost, at(10, 11, "k", "$5", "GET"), at(20, 21, "k", null, "GET")) {
		t.Error("an increment that was seen stays")
	}
	if !outcome(t, lost, at(10, 11, "k", "$10", "GET")) {
		t.Error("it happens at most once")
	}
}

func TestEveryTypeHasViolations(t *testing.T) {
	for name, history := range map[string][]porcupine.Operation{
		"counter": {at(0, 5, "k", ":1", "INCRBY", "1"), at(0, 5, "k", ":1", "INCRBY", "1")},
		"text": {
			at(0, 5, "k", ":3", "APPEND", "1.1"), at(0, 5, "k", ":6", "APPEND", "2.2"), at(6, 7, "k", "$2.21.1", "GET"),
		},
		"hash": {at(0, 5, "k", ":1", "HSET", "a", "1"), at(0, 5, "k", ":1", "HSET", "a", "2")},
		"list": {at(0, 1, "k", ":1", "RPUSH", "x"), at(2, 9, "k", "$x", "LPOP"), at(2, 9, "k", "$x", "RPOP")},
		"register": {
			at(0, 1, "k", ok, "SET", "a"), at(2, 9, "k", ok, "SET", "b", "IFEQ", "a"),
			at(2, 9, "k", ok, "SET", "c", "IFEQ", "a"),
		},
	} {
		if !outcome(t, history...) {
			t.Error(name)
		}
	}
}

func TestSlotOfTag(t *testing.T) {
	if got := slot("123456789"); got != 0x31c3 {
		t.Errorf("the slot of the check value of CRC-16/XMODEM is %d", got)
	}
	for index, tag := range tagsOfSlots(8184, 8) {
		if slot(tag) != 8184+index {
			t.Errorf("tag %s is in slot %d", tag, slot(tag))
		}
	}
}
