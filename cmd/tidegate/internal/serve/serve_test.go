package serve

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/tidegate/tidegate/internal/assert"
)

// Errors name the flag, the value and the legal values. The exit code is 2.
func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		args string
		says []string
	}{
		{"serv", []string{`unknown command "serv"`, "serve", "tidegate --help"}},
		{"serve now", []string{"no arguments", `"now"`}},
		{"serve --nope", []string{"--nope", "tidegate serve --help"}},
		{"serve --grpc 1", []string{`--grpc is "1"`, "host:port"}},
		{"serve --http 0.0.0.0:1 --log-level loud --log-format xml", []string{`--http is "0.0.0.0:1"`, "--insecure", `--log-level is "loud"`}},
		{"serve --max-backlog -1 --stop-timeout -1s --topic a:B", []string{"--max-backlog", "--stop-timeout", `"a:B"`, "FIFO"}},
		{"serve --topic a!b:FIFO --advertise here", []string{`--topic is "a!b:FIFO"`, "allowed are letters", `--advertise is "here"`, "host:port"}},
		{"serve --advertise h:99999", []string{`--advertise is "h:99999"`, "65535"}},
	} {
		var stdout, stderr strings.Builder
		if code := run(t.Context(), strings.Fields(c.args), &stdout, &stderr); code != 2 || stdout.Len() > 0 {
			t.Errorf("%s: code %d, stdout %q", c.args, code, stdout.String())
		}
		for _, w := range c.says {
			assert.That(t, strings.Contains(stderr.String(), w), "%s: stderr does not contain %q: %s", c.args, w, stderr.String())
		}
	}
}

func TestServeFailures(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data", dir)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--data", dir}, "another process uses the directory"},
		{[]string{"--grpc", p.grpc}, "address already in use"},
	} {
		var stdout, stderr strings.Builder
		args := append([]string{"serve", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"}, c.args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%v: code %d, stderr %q, want %q", c.args, code, stderr.String(), c.says)
		}
	}
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: code %d\n%s", code, p.stderr.String())
	}
}

// Clients of the admin that stop in the middle, or never begin, are cut off.
func TestSilentAdminConnections(t *testing.T) {
	for name, said := range map[string]string{
		"nothing":     "",
		"half a line": "PUT /v1/top",
		"no body":     "PUT /v1/topics/t HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{",
		"idle":        "GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := bufconn.Listen(1 << 16)
				admin := adminServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }),
					slog.New(slog.DiscardHandler))
				go admin.Serve(lis)
				defer admin.Close()
				c, err := lis.DialContext(t.Context())
				assert.Must(t, err)
				defer c.Close()
				assert.Must(t, assert.Err(io.WriteString(c, said)))
				c.SetReadDeadline(time.Now().Add(5 * time.Minute))
				_, err = io.Copy(io.Discard, c)
				if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
					t.Errorf("still open after 5 minutes: %v", err)
				}
			})
		})
	}
}

// A client that does not read has a minute for a response.
func TestUnreadAdminResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan time.Duration, 1)
		admin := adminServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began := time.Now()
			_, _ = w.Write(make([]byte, 1<<20))
			ended <- time.Since(began)
		}), slog.New(slog.DiscardHandler))
		lis := bufconn.Listen(1 << 16)
		go admin.Serve(lis)
		defer admin.Close()
		c := assert.Value(lis.DialContext(t.Context()))(t)
		defer c.Close()
		assert.Must(t, assert.Err(io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")))
		select {
		case took := <-ended:
			assert.That(t, took == time.Minute, "the response was given up after %v, want 1m0s", took)
		case <-time.After(time.Hour):
			t.Error("the response still waits for its reader after an hour")
		}
	})
}

// The server closes the connection of a client that sends its headers one byte at a time after 10
// s. It closes that of a client with larger headers after 64 KiB.
func TestHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := bufconn.Listen(1 << 10)
		admin := adminServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
		go admin.Serve(lis)
		defer admin.Close()
		dial := func() net.Conn {
			c := assert.Value(lis.DialContext(t.Context()))(t)
			go io.Copy(io.Discard, c)
			return c
		}
		slow, began := dial(), time.Now()
		for err := error(nil); err == nil; time.Sleep(time.Second) {
			_, err = slow.Write([]byte("G"))
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("a client without a complete header was cut off after %v", took)
		}
		large, sent := dial(), 0
		_, err := large.Write([]byte("GET / HTTP/1.1\r\nHost: h\r\nX: "))
		for ; err == nil && sent < 1<<20; sent += 1 << 10 {
			_, err = large.Write(make([]byte, 1<<10))
		}
		assert.That(t, sent <= 96<<10, "%d KiB of headers were read", sent>>10) // net/http reads a buffer more
	})
}

// The help shows the default of each flag, and a name for the value of those that take one.
func TestHelpShowsDefaults(t *testing.T) {
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"serve", "--help"}, &stdout, &stderr); code != 0 {
		t.Fatalf("code %d: %s", code, stderr.String())
	}
	lines := map[string]string{}
	for line := range strings.Lines(stdout.String()) {
		if f := strings.Fields(line); len(f) > 1 {
			lines[f[0]] = line
		}
	}
	for flag, want := range map[string]struct{ value, preset string }{
		"--grpc":         {"address", "127.0.0.1:8081"},
		"--stop-timeout": {"duration", "10s"},
		"--log-format":   {"format", "text"},
		"--max-backlog":  {"messages", ""},
		"--insecure":     {},
	} {
		line := lines[flag]
		value, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), flag), "  ")
		preset, ok := "", strings.HasSuffix(line, ")\n")
		if _, after, found := strings.Cut(line, " (default "); found && ok {
			preset = strings.TrimSuffix(after, ")\n")
		}
		assert.That(t, strings.TrimSpace(value) == want.value && preset == want.preset, "%q: value %q and default %q, want %q and %q", line, value, preset, want.value, want.preset)
	}
}
