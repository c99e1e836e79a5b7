package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// saveRepeatedly runs BGSAVE again and again, and returns how often.
func saveRepeatedly(ctx context.Context, server *node) (string, error) {
	saves := 0
	for ; ctx.Err() == nil; saves++ {
		if _, err := server.call("BGSAVE"); err != nil {
			return "", err
		}
		err := until("the snapshot ends", func() (bool, error) {
			return server.has("INFO persistence", "rdb_bgsave_in_progress:0")
		})
		if err != nil {
			return "", err
		}
		if done, err := server.has("INFO persistence", "rdb_last_bgsave_status:ok"); err != nil || !done {
			return "", fmt.Errorf("a snapshot failed: %v", err)
		}
	}
	return fmt.Sprint(saves, " snapshots"), nil
}

// slotRange are the slots that migrate, with a hash tag for each.
type slotRange struct {
	first int
	tags  []string
}

// A way moves slots from one node to another.
type way func(from, to *node, moving slotRange) error

// ways are the kinds of runs that move slots, with what they do in turn.
var ways = map[string][]way{
	"migration":     {migrateKeys, migrateSlots},
	"migrate-keys":  {migrateKeys},
	"migrate-slots": {migrateSlots},
}

// migrateRepeatedly moves slots from the first node to the second and back, in different ways by turns.
func migrateRepeatedly(ctx context.Context, from, to *node, moving slotRange, ways []way) (string, error) {
	rounds := 0
	for ; ctx.Err() == nil; rounds++ {
		if err := ways[rounds%len(ways)](from, to, moving); err != nil {
			return "", err
		}
		from, to = to, from
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Sprintf("%d slots moved in %d rounds", rounds*len(moving.tags), rounds), nil
}

// gaveUp is how Kvick's error begins if clients change keys more often than MIGRATE sends them again. They stay where
// they are, and may be migrated again.
const gaveUp = "ERR Keys changed again and again"

// migrateKeys moves slots with SETSLOT and MIGRATE, as `valkey-cli --cluster reshard` does.
func migrateKeys(from, to *node, moving slotRange) error {
	source, err := from.call("CLUSTER MYID")
	if err != nil {
		return err
	}
	target, err := to.call("CLUSTER MYID")
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(to.address)
	for slot := moving.first; slot < moving.first+len(moving.tags); slot++ {
		if _, err := to.call(fmt.Sprint("CLUSTER SETSLOT ", slot, " IMPORTING ", source)); err != nil {
			return err
		}
		if _, err := from.call(fmt.Sprint("CLUSTER SETSLOT ", slot, " MIGRATING ", target)); err != nil {
			return err
		}
		for {
			keys, err := from.call(fmt.Sprint("CLUSTER GETKEYSINSLOT ", slot, " 7"))
			if err != nil {
				return err
			}
			names := strings.Fields(strings.Trim(keys, "[]"))
			if len(names) == 0 {
				break
			}
			words := []string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}
			for _, name := range names {
				words = append(words, strings.TrimPrefix(name, "$"))
			}
			got, err := from.admin.call(words...)
			if got.kind == '-' && strings.HasPrefix(got.text, gaveUp) {
				fmt.Fprintln(os.Stderr, "MIGRATE is repeated:", got.text)
			} else if err != nil || got.kind == '-' {
				return fmt.Errorf("MIGRATE: %v %v", got, err)
			}
		}
		for _, node := range []*node{to, from} {
			if _, err := node.call(fmt.Sprint("CLUSTER SETSLOT ", slot, " NODE ", target)); err != nil {
				return err
			}
		}
	}
	return nil
}

// migrateSlots moves slots with CLUSTER MIGRATESLOTS.
func migrateSlots(from, to *node, moving slotRange) error {
	target, err := to.call("CLUSTER MYID")
	if err != nil {
		return err
	}
	last := moving.first + len(moving.tags) - 1
	begin := fmt.Sprint("CLUSTER MIGRATESLOTS SLOTSRANGE ", moving.first, " ", last, " NODE ", target)
	if _, err := from.call(begin); err != nil {
		return err
	}
	probe := "{" + moving.tags[0] + "}"
	return until("the slots have moved", func() (bool, error) {
		source, err := from.admin.call("EXISTS", probe)
		if err != nil || !strings.HasPrefix(source.text, "MOVED") {
			return false, err
		}
		owner, err := to.admin.call("EXISTS", probe)
		return owner.kind == ':', err
	})
}
