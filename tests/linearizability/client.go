package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// patience is how long a client waits for a reply. A server that takes longer fails the run.
const patience = 30 * time.Second

// reply is a RESP2 reply; nulls have the kind 'n'.
type reply struct {
	kind  byte
	text  string
	items []reply
}

// String is unambiguous for the values of the workload, which contain no blanks.
func (r reply) String() string {
	switch r.kind {
	case 'n':
		return null
	case '*':
		words := make([]string, len(r.items))
		for index, item := range r.items {
			words[index] = item.String()
		}
		return "[" + strings.Join(words, " ") + "]"
	}
	return string(r.kind) + r.text
}

// connection is a connection to one node.
type connection struct {
	socket net.Conn
	reader *bufio.Reader
}

func dial(address string) (*connection, error) {
	socket, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return nil, err
	}
	return &connection{socket, bufio.NewReader(socket)}, nil
}

func (c *connection) send(words ...string) error {
	request := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		request = fmt.Appendf(request, "$%d\r\n%s\r\n", len(word), word)
	}
	c.socket.SetDeadline(time.Now().Add(patience))
	_, err := c.socket.Write(request)
	return err
}

func (c *connection) receive() (reply, error) {
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return reply{}, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return reply{}, errors.New("an empty line")
	}
	kind, text := line[0], line[1:]
	if kind != '$' && kind != '*' {
		return reply{kind: kind, text: text}, nil
	}
	size, err := strconv.Atoi(text)
	if err != nil {
		return reply{}, err
	}
	if size < 0 {
		return reply{kind: 'n'}, nil
	}
	if kind == '$' {
		bytes := make([]byte, size+2)
		_, err := io.ReadFull(c.reader, bytes)
		return reply{kind: '$', text: string(bytes[:size])}, err
	}
	all := reply{kind: '*'}
	for range size {
		item, err := c.receive()
		if err != nil {
			return reply{}, err
		}
		all.items = append(all.items, item)
	}
	return all, nil
}

func (c *connection) call(words ...string) (reply, error) {
	if err := c.send(words...); err != nil {
		return reply{}, err
	}
	return c.receive()
}

// client sends commands to the nodes that own their keys, and follows redirections.
type client struct {
	start string
	// readers is a replica that receives the commands that only read, if not empty.
	reader      string
	connections map[string]*connection
	// owners has the address of the last MOVED for the hash tag of a key.
	owners    map[string]string
	redirects redirects
}

// redirects counts the redirections that clients followed.
type redirects struct{ moved, asked, tryAgain int }

func newClient(start, reader string) *client {
	return &client{start: start, reader: reader, connections: map[string]*connection{}, owners: map[string]string{}}
}

func (c *client) connection(address string) (*connection, error) {
	if known := c.connections[address]; known != nil {
		return known, nil
	}
	opened, err := dial(address)
	if err != nil {
		return nil, err
	}
	if address == c.reader {
		if _, err := opened.call("READONLY"); err != nil {
			return nil, err
		}
	}
	c.connections[address] = opened
	return opened, nil
}

func (c *client) drop(address string) {
	if known := c.connections[address]; known != nil {
		known.socket.Close()
		delete(c.connections, address)
	}
}

func (c *client) close() {
	for address := range c.connections {
		c.drop(address)
	}
}

// errBroken means that the connection broke before the reply: the outcome of the command is unknown.
var errBroken = errors.New("the connection broke")

// do executes a command. With `breaks`, it closes the connection instead of reading the reply.
func (c *client) do(in input, breaks bool) (string, error) {
	words := append([]string{in.command, in.key}, in.args...)
	address := c.start
	if owner := c.owners[tag(in.key)]; owner != "" {
		address = owner
	}
	if c.reader != "" && reads[in.command] {
		address = c.reader
	}
	asking := false
	for began := time.Now(); time.Since(began) < patience; {
		connection, err := c.connection(address)
		if err != nil {
			return "", err
		}
		if asking {
			if _, err := connection.call("ASKING"); err != nil {
				c.drop(address)
				return "", errBroken
			}
		}
		if err := connection.send(words...); err != nil || breaks {
			c.drop(address)
			return "", errBroken
		}
		got, err := connection.receive()
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return "", fmt.Errorf("%v: no reply within %v", in, patience)
		}
		if err != nil {
			c.drop(address)
			return "", errBroken
		}
		if got.kind != '-' {
			return got.String(), nil
		}
		asking = false
		fields := strings.Fields(got.text)
		switch fields[0] {
		case "MOVED":
			c.redirects.moved++
			address = fields[2]
			c.owners[tag(in.key)] = address
		case "ASK":
			c.redirects.asked++
			address, asking = fields[2], true
		case "TRYAGAIN":
			c.redirects.tryAgain++
			time.Sleep(time.Millisecond)
		default:
			return "", fmt.Errorf("%v: %s", in, got.text)
		}
	}
	return "", fmt.Errorf("%v: redirected for %v", in, patience)
}

// tag is the text between the first braces of a key.
func tag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}
