package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

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
	if resp, err := http.Get(m[1] + "/console/"); err != nil || resp.StatusCode != 200 {
		t.Errorf("GET /console/: %+v, %v", resp, err)
	}
	login := assert.Value(http.NewRequestWithContext(ctx, "POST", m[1]+"/v1/session", http.NoBody))(t)
	login.Header.Set("Authorization", "Bearer "+m[2])
	session := assert.Value(http.DefaultClient.Do(login))(t)
	var half struct{ Token string }
	assert.Must(t, json.NewDecoder(session.Body).Decode(&half), "POST /v1/session: %s", session.Status)
	list := assert.Value(http.NewRequestWithContext(ctx, "GET", m[1]+"/v1/topics", http.NoBody))(t)
	for _, c := range session.Cookies() {
		list.AddCookie(c)
	}
	list.Header.Set("X-Tidegate-Session", half.Token)
	resp := assert.Value(http.DefaultClient.Do(list))(t)
	if text, err := io.ReadAll(resp.Body); resp.StatusCode != 200 || err != nil || !strings.Contains(string(text), "orders") {
		t.Errorf("GET /v1/topics: %s %s, %v", resp.Status, text, err)
	}
	stop()
	if c := <-code; c != 0 {
		t.Errorf("after Ctrl-C the exit code is %d: %s", c, stderr.String())
	}
}
