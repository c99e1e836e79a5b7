package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const slots = 16384

// node is a running server in a temporary directory.
type node struct {
	address, busPort, directory string
	command                     *exec.Cmd
	admin                       *connection
}

func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, err
}

func startNode(program string, workers int, isClustered bool) (*node, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	busPort, err := freePort()
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "kvick-linearizability-")
	if err != nil {
		return nil, err
	}
	arguments := []string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", directory,
		"--io-threads", strconv.Itoa(workers), "--logfile", filepath.Join(directory, "log")}
	if isClustered {
		arguments = append(arguments, "--cluster-enabled", "yes", "--cluster-port", busPort, "--cluster-node-timeout", "5000")
	}
	started := &node{address: "127.0.0.1:" + port, busPort: busPort, directory: directory,
		command: exec.Command(program, arguments...)}
	if err := started.command.Start(); err != nil {
		return nil, err
	}
	err = until("the server answers", func() (bool, error) {
		admin, err := dial(started.address)
		if err != nil {
			return false, nil
		}
		started.admin = admin
		pong, err := admin.call("PING")
		return err == nil && pong.text == "PONG", nil
	})
	if err != nil {
		started.stop()
		return nil, err
	}
	return started, nil
}

// keepLog copies the log next to the history that it may explain.
func (n *node) keepLog(path string) error {
	log, err := os.ReadFile(filepath.Join(n.directory, "log"))
	if err != nil {
		return err
	}
	return os.WriteFile(path, log, 0o644)
}

func (n *node) stop() {
	n.command.Process.Kill()
	n.command.Wait()
	os.RemoveAll(n.directory)
}

// call sends a command, with words separated by blanks, and returns its reply as text; an error reply is an error.
func (n *node) call(command string) (string, error) {
	got, err := n.admin.call(strings.Fields(command)...)
	if err == nil && got.kind == '-' {
		err = fmt.Errorf("%s: %s", command, got.text)
	}
	if got.kind == '*' {
		return got.String(), err
	}
	return got.text, err
}

// has tells whether the reply to a command contains a text.
func (n *node) has(command, text string) (bool, error) {
	got, err := n.call(command)
	return strings.Contains(got, text), err
}

// until waits for a condition.
func until(what string, holds func() (bool, error)) error {
	for began := time.Now(); time.Since(began) < 2*patience; time.Sleep(5 * time.Millisecond) {
		if done, err := holds(); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("waited in vain until %s", what)
}

// fill writes so many keys of 100 bytes for each hash tag.
func fill(nodes []*node, tags []string, keys int) error {
	client := newClient(nodes[0].address, "")
	defer client.close()
	for _, tag := range tags {
		for number := range keys {
			in := input{fmt.Sprintf("{%s}fill:%d", tag, number), "SET", []string{strings.Repeat("x", 100)}}
			if _, err := client.do(in, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// form joins primaries, which share the slots evenly, and replicas of the first one.
func form(primaries, replicas []*node) error {
	all := append(append([]*node{}, primaries...), replicas...)
	for index, node := range all {
		if _, err := node.call(fmt.Sprint("CLUSTER SET-CONFIG-EPOCH ", index+1)); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(node.address)
		if _, err := all[0].call(fmt.Sprint("CLUSTER MEET ", host, " ", port, " ", node.busPort)); err != nil {
			return err
		}
	}
	for index, node := range primaries {
		first, end := index*slots/len(primaries), (index+1)*slots/len(primaries)
		if _, err := node.call(fmt.Sprint("CLUSTER ADDSLOTSRANGE ", first, " ", end-1)); err != nil {
			return err
		}
	}
	known := fmt.Sprintf("cluster_known_nodes:%d\r", len(all))
	for _, node := range all {
		if err := until("all know all", func() (bool, error) { return node.has("CLUSTER INFO", known) }); err != nil {
			return err
		}
	}
	for _, replica := range replicas {
		primary, err := primaries[0].call("CLUSTER MYID")
		if err != nil {
			return err
		}
		err = until("the replica knows its primary", func() (bool, error) {
			return replica.has("CLUSTER NODES", primary)
		})
		if err != nil {
			return err
		}
		if _, err := replica.call("CLUSTER REPLICATE " + primary); err != nil {
			return err
		}
		err = until("the replica is in sync", func() (bool, error) {
			return replica.has("INFO replication", "master_link_status:up")
		})
		if err != nil {
			return err
		}
	}
	for _, node := range all {
		err := until("the cluster is up", func() (bool, error) { return node.has("CLUSTER INFO", "cluster_state:ok") })
		if err != nil {
			return err
		}
	}
	return nil
}

// slot is the slot of a hash tag: CRC-16/XMODEM modulo 16384.
func slot(tag string) int {
	crc := uint16(0)
	for _, letter := range []byte(tag) {
		crc ^= uint16(letter) << 8
		for range 8 {
			carries := crc&0x8000 != 0
			crc <<= 1
			if carries {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % slots
}

// tagsOfSlots has a hash tag for each of the slots from `first` on.
func tagsOfSlots(first, count int) []string {
	tags := make([]string, count)
	for number, missing := 0, count; missing > 0; number++ {
		tag := strconv.Itoa(number)
		if at := slot(tag) - first; at >= 0 && at < count && tags[at] == "" {
			tags[at] = tag
			missing--
		}
	}
	return tags
}
