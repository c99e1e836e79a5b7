// Checks documented features of go-redis and valkey-go against a server.
//
// Usage: checks PORT TLS-PORT FOLDER, where FOLDER contains ca.crt, own.crt and own.key. For their cluster modes:
// checks cluster PORT TAGS MOVING, see cluster.go.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Timeout of a check.
const patience = 30 * time.Second

// Addresses of the server and the TLS configuration for it.
type server struct {
	plain, encrypted string
	tls              *tls.Config
}

// A named check.
type check struct {
	name string
	run  func(context.Context, server)
}

// Panic value that ends a failed check.
type failure string

func fail(format string, args ...any) {
	panic(failure(fmt.Sprintf(format, args...)))
}

func must(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func the[T any](value T, err error) T {
	must(err)
	return value
}

func same[T comparable](got, expected T) {
	if got != expected {
		fail("expected %v, got %v", expected, got)
	}
}

func refused(err error, words string) {
	if err == nil || !strings.Contains(err.Error(), words) {
		fail("expected an error with %q, got %v", words, err)
	}
}

func run(library string, checks []check, at server) bool {
	holds := true
	for _, check := range checks {
		flush(at)
		result := attempt(check, at)
		holds = holds && result == "ok"
		fmt.Printf("CHECK %s %s %s\n", library, check.name, result)
	}
	return holds
}

func attempt(check check, at server) string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return reported(func() { check.run(ctx, at) })
}

// reported runs a check, and returns "ok" or its failure.
func reported(check func()) (result string) {
	defer func() {
		if reason := recover(); reason != nil {
			result = "FAIL: " + strings.Join(strings.Fields(fmt.Sprint(reason)), " ")
		}
	}()
	check()
	return "ok"
}

func connection(port, tlsPort, directory string) server {
	file := func(name string) string { return filepath.Join(directory, name) }
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(the(os.ReadFile(file("ca.crt"))))
	own := the(tls.LoadX509KeyPair(file("own.crt"), file("own.key")))
	config := &tls.Config{RootCAs: authorities, Certificates: []tls.Certificate{own}, ServerName: "localhost"}
	return server{plain: "127.0.0.1:" + port, encrypted: "127.0.0.1:" + tlsPort, tls: config}
}

func main() {
	if os.Args[1] == "cluster" {
		runCluster(os.Args[2], os.Args[3], os.Args[4])
		return
	}
	at := connection(os.Args[1], os.Args[2], os.Args[3])
	run("go-redis", goRedis, at)
	run("valkey-go", valkeyGo, at)
}
