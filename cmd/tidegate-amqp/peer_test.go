package main

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate/cmd/internal/cli"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
)

// A tool runs commands against a server.
type tool struct {
	t       *testing.T
	address string // of the server, host:port
	home    string // the directories of the user
	env     map[string]string
}

// A result is the output of a command and its exit code.
type result struct {
	code           int
	stdout, stderr string
}

// on returns a tool for a server.
func on(t *testing.T, address string) *tool {
	t.Helper()
	home := t.TempDir()
	return &tool{t, address, home, map[string]string{
		"XDG_CONFIG_HOME": filepath.Join(home, "config"), "XDG_STATE_HOME": filepath.Join(home, "state"), "HOME": home,
		"TIDEGATE_SERVER_AMQP": "amqp://" + address,
	}}
}

// onPeer returns a tool for a peer.
func onPeer(t *testing.T, p *amqppeer.Peer) *tool {
	t.Helper()
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go p.Serve(l)
	return on(t, l.Addr().String())
}

// input runs a command with a standard input.
func (tl *tool) input(stdin string, args ...string) result {
	tl.t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(tl.t.Context(), args, &cli.App{
		In: strings.NewReader(stdin), Out: &stdout, Err: &stderr,
		Env: func(name string) string { return tl.env[name] },
	})
	return result{code, stdout.String(), stderr.String()}
}

func (tl *tool) run(args ...string) result {
	tl.t.Helper()
	return tl.input("", args...)
}

// must runs a command that ends with 0, and returns its result.
func (tl *tool) must(args ...string) result {
	tl.t.Helper()
	r := tl.run(args...)
	if r.code != 0 {
		tl.t.Fatalf("tidegate-amqp %s: exit code %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}
