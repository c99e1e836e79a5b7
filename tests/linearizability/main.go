// Checks that single-key operations are linearizable: eight clients execute operations on few keys, and every history
// of a key must be explained by some order of its operations that respects their times.
//
//	linearizability -server PATH [-duration 10s] [-kinds alone,bgsave,migration] [-out DIRECTORY]
//
// The kinds are: "alone", a server with four workers; "bgsave", the same while it saves snapshots; "migration", a
// cluster of two primaries while slots move between them by MIGRATE and by MIGRATESLOTS in turn ("migrate-keys" and
// "migrate-slots" do only one of these); and "replica", whose reads go to a replica, which must be found not to be
// linearizable. The exit status is 1 if a history is not linearizable; a file shows it, and the logs of the servers are
// kept beside it. The exit status is 2 if something else fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	clients = 8
	// Slots that migrate, at the border of the two primaries, and keys that fill each of them.
	movingSlots, keysPerSlot = 8, 100
	// Windows that wait for their check. The workload waits if there are more.
	windowsMax = 4
)

type options struct {
	// ctx ends when the user interrupts the program.
	ctx          context.Context
	program, out string
	workers      int
	duration     time.Duration
	seed         uint64
}

// scene is what the workload runs against.
type scene struct {
	nodes []*node
	// reader is a replica for the commands that only read, if not empty.
	reader string
	tags   []string
	// background runs until the context ends, and tells what it did.
	background func(context.Context) (string, error)
}

func start(kind string, options options) (*scene, error) {
	made := &scene{tags: tagsOfSlots(0, 16)}
	count := 1
	if kind == "replica" || ways[kind] != nil {
		count = 2
	} else if kind != "alone" && kind != "bgsave" {
		return nil, fmt.Errorf("there is no kind %q", kind)
	}
	for range count {
		node, err := startNode(options.program, options.workers, count > 1)
		if err != nil {
			made.stop()
			return nil, err
		}
		made.nodes = append(made.nodes, node)
	}
	if err := made.prepare(kind); err != nil {
		made.stop()
		return nil, err
	}
	return made, nil
}

func (s *scene) prepare(kind string) error {
	made, nodes := s, s.nodes
	made.background = func(ctx context.Context) (string, error) { return "nothing else", nil }
	switch {
	case kind == "bgsave":
		made.background = func(ctx context.Context) (string, error) { return saveRepeatedly(ctx, nodes[0]) }
		return fill(nodes, made.tags, 1000)
	case ways[kind] != nil:
		first := slots/2 - movingSlots
		moving := slotRange{first, tagsOfSlots(first, movingSlots)}
		made.tags = moving.tags
		made.background = func(ctx context.Context) (string, error) {
			return migrateRepeatedly(ctx, nodes[0], nodes[1], moving, ways[kind])
		}
		if err := form(nodes, nil); err != nil {
			return err
		}
		return fill(nodes, moving.tags, keysPerSlot)
	case kind == "replica":
		made.reader = nodes[1].address
		return form(nodes[:1], nodes[1:])
	}
	return nil
}

func (s *scene) stop() {
	for _, node := range s.nodes {
		node.stop()
	}
}

// run executes the workload for a time, and checks its windows meanwhile. It prints what was done.
func run(kind string, options options) error {
	scene, err := start(kind, options)
	if err != nil {
		return err
	}
	defer scene.stop()
	var all []*client
	for range clients {
		client := newClient(scene.nodes[0].address, scene.reader)
		defer client.close()
		all = append(all, client)
	}
	ctx, cancel := context.WithTimeout(options.ctx, options.duration)
	defer cancel()
	windows, checked := make(chan window, windowsMax), make(chan error, 1)
	operations, unknowns, histories := 0, 0, 0
	go func() {
		var first error
		for window := range windows {
			if first != nil {
				continue
			}
			operations += len(window.operations)
			unknowns += window.unknown
			var count int
			if count, first = check(window, options.out, kind); first != nil {
				cancel()
			}
			histories += count
		}
		checked <- first
	}()
	type result struct {
		done string
		err  error
	}
	background := make(chan result, 1)
	go func() {
		done, err := scene.background(ctx)
		if err != nil {
			cancel()
		}
		background <- result{done, err}
	}()
	began, workload := time.Now(), newWorkload(all, scene.tags, options.seed)
	var failed error
	for number := 0; ctx.Err() == nil && failed == nil; number++ {
		var window window
		if window, failed = workload.run(number); failed == nil {
			windows <- window
		}
	}
	elapsed := time.Since(began)
	cancel()
	close(windows)
	done := <-background
	if err := errors.Join(<-checked, failed, done.err); err != nil {
		for index, node := range scene.nodes {
			err = errors.Join(err, node.keepLog(filepath.Join(options.out, fmt.Sprintf("%s-node-%d.log", kind, index))))
		}
		return err
	}
	var followed redirects
	for _, client := range all {
		followed.moved += client.redirects.moved
		followed.asked += client.redirects.asked
		followed.tryAgain += client.redirects.tryAgain
	}
	fmt.Printf("%s: linearizable: %d histories of %d operations, %.0f per second in %.1f s; %d of unknown outcome; "+
		"%d MOVED, %d ASK, %d TRYAGAIN; meanwhile: %s\n", kind, histories, operations,
		float64(operations)/elapsed.Seconds(), elapsed.Seconds(), unknowns, followed.moved, followed.asked,
		followed.tryAgain, done.done)
	return nil
}

func main() {
	interrupted, forget := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer forget()
	options := options{ctx: interrupted}
	flag.StringVar(&options.program, "server", "", "server program")
	flag.StringVar(&options.out, "out", ".", "directory for histories that are not linearizable, and logs")
	flag.IntVar(&options.workers, "workers", 4, "workers of a server")
	flag.DurationVar(&options.duration, "duration", 10*time.Second, "duration of each kind")
	flag.Uint64Var(&options.seed, "seed", 1, "seed of the requests")
	kinds := flag.String("kinds", "alone,bgsave,migration", "kinds, separated by commas")
	flag.Parse()
	if options.program == "" {
		fmt.Fprintln(os.Stderr, "-server PATH is missing")
		os.Exit(2)
	}
	options.program, _ = filepath.Abs(options.program)
	for kind := range strings.SplitSeq(*kinds, ",") {
		if err := run(kind, options); err != nil {
			fmt.Fprintln(os.Stderr, err)
			var found violation
			if errors.As(err, &found) {
				os.Exit(1)
			}
			os.Exit(2)
		}
	}
}
