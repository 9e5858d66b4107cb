package cli

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/admin"
)

func TestTopKeys(t *testing.T) {
	k := &topCommand{topView: topView{By: "backlog"}}
	s := &topScreen{}
	for _, key := range []byte("srgpfab\x7fc\r") {
		assert.MustThat(t, !k.pressed(key, s), "the key %q ends top", key)
	}
	if want := (topView{By: "age", Reverse: true, Topics: true, Match: "ac"}); k.topView != want || !s.Paused || s.Typing {
		t.Errorf("the keys give %+v, paused %v, typing %v; want %+v", k.topView, s.Paused, s.Typing, want)
	}
	for _, key := range []byte{'q', 3} {
		assert.That(t, k.pressed(key, s), "the key %q does not end top", key)
	}
}

// While top draws on the whole screen, it prints no notes about a server that is away.
func TestTopPrintsNoNotes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	client := assert.Value(admin.New("http://127.0.0.1:1", admin.Options{}))(t)
	defer client.Close()
	notes := new(strings.Builder)
	k := &topCommand{Call: &Call{App: New(strings.NewReader(""), io.Discard, notes)}, client: client, every: time.Second}
	before := k.WaitingNotes()
	if err := k.live(ctx, topFrame{}); err != nil || before != notes || k.WaitingNotes() != io.Discard {
		t.Errorf("%v; notes are dropped before it, or printed on the screen", err)
	}
}
