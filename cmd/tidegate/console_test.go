package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// An answer is the status and the header of a response.
type answer struct {
	status int
	header http.Header
}

// The command serves the console for a broker whose own console is off, and forwards the API.
func TestConsole(t *testing.T) {
	tl := newTool(t, "--console", "off")
	tl.must("topic", "create", "orders")
	ctx, stop := context.WithCancel(t.Context())
	var stdout, stderr lockedBuffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"console"}, tl.app(&stdout, &stderr))
	}()
	link := regexp.MustCompile(`^(http://127\.0\.0\.1:\d+)/console/#token=(\S+)\n$`)
	for !link.MatchString(stdout.String()) {
		select {
		case c := <-code:
			t.Fatalf("the command ended with %d: %s%s", c, stdout.String(), stderr.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	m := link.FindStringSubmatch(stdout.String())
	request := func(method, path string, header ...string) (answer, string) {
		r := assert.Value(http.NewRequestWithContext(ctx, method, m[1]+path, http.NoBody))(t)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp := assert.Value(http.DefaultClient.Do(r))(t)
		defer resp.Body.Close()
		text := assert.Value(io.ReadAll(resp.Body))(t)
		return answer{resp.StatusCode, resp.Header}, string(text)
	}
	if resp, text := request("GET", "/console/"); resp.status != 200 || !strings.Contains(text, "<!doctype html>") {
		t.Errorf("GET /console/: %d %s", resp.status, text)
	}
	if resp, text := request("GET", "/v1/topics"); resp.status != 401 {
		t.Errorf("without a session: %d %s", resp.status, text)
	}
	resp, text := request("POST", "/v1/session", "Authorization", "Bearer "+m[2])
	half := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(text)
	assert.MustThat(t, resp.status == 200 && half != nil, "POST /v1/session: %d %s", resp.status, text)
	cookie, _, _ := strings.Cut(resp.header.Get("Set-Cookie"), ";")
	if resp, text := request("GET", "/v1/topics", "Cookie", cookie, "X-Tidegate-Session", half[1]); resp.status != 200 || !strings.Contains(text, "orders") {
		t.Errorf("GET /v1/topics: %d %s", resp.status, text)
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("after Ctrl-C the exit code is %d: %s", c, stderr.String())
	}
}
