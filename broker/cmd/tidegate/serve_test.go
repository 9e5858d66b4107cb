package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Errors name the flag, the value and what to give, and end with code 2.
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
	} {
		var stdout, stderr strings.Builder
		if code := run(t.Context(), strings.Fields(c.args), &stdout, &stderr); code != 2 || stdout.Len() > 0 {
			t.Errorf("%s: code %d, stdout %q", c.args, code, stdout.String())
		}
		for _, w := range c.says {
			if !strings.Contains(stderr.String(), w) {
				t.Errorf("%s: stderr does not say %q: %s", c.args, w, stderr.String())
			}
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
		{[]string{"--data", dir}, "another process has it open"},
		{[]string{"--topic", "no good"}, "allowed are letters"},
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

func TestAdminOverHTTP(t *testing.T) {
	p := start(t)
	for _, c := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"GET", "/readyz", "", 200, ""},
		{"PUT", "/v1/topics/orders", `{"type":"FIFO","queues":3}`, 201, `"queues":3`},
		{"PUT", "/v1/groups/billing", `{"fifo":true,"max_attempts":4,"retry":"1s 5s"}`, 201, `"retry":"1s 5s"`},
		{"GET", "/v1/topics/orders", "", 200, `"stored_messages":0`},
		{"PUT", "/v1/topics/orders", `{"quues":3}`, 400, "quues"},
		{"DELETE", "/v1/topics/orders", "", 204, ""},
		{"GET", "/v1/topics/orders", "", 404, "40402"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+p.http+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.code || !strings.Contains(strings.ReplaceAll(string(b), `": `, `":`), c.says) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, resp.StatusCode, b)
		}
	}
	if code := p.stop(); code != 0 {
		t.Errorf("SIGTERM: code %d\n%s", code, p.stderr.String())
	}
}
