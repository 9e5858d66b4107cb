package cli

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/admin"
)

func TestTopKeys(t *testing.T) {
	k := &topCommand{topView: topView{By: "backlog"}}
	s := &topScreen{}
	for _, key := range []byte("srgpfab\x7fc\r") {
		if k.pressed(key, s) {
			t.Fatalf("the key %q ends top", key)
		}
	}
	if want := (topView{By: "age", Reverse: true, Topics: true, Match: "ac"}); k.topView != want || !s.Paused || s.Typing {
		t.Errorf("the keys give %+v, paused %v, typing %v; want %+v", k.topView, s.Paused, s.Typing, want)
	}
	for _, key := range []byte{'q', 3} {
		if !k.pressed(key, s) {
			t.Errorf("the key %q does not end top", key)
		}
	}
}

// While top draws on the whole screen, it prints no notes about a server that is away.
func TestTopPrintsNoNotes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, live := range map[string]func(*topCommand) error{
		"backlogs": func(k *topCommand) error { return k.live(ctx, topFrame{}) },
		"clients":  func(k *topCommand) error { return k.liveClients(ctx, clientFrame{}) },
	} {
		client, err := admin.New("http://127.0.0.1:1", admin.Options{})
		if err != nil {
			t.Fatal(err)
		}
		notes := new(strings.Builder)
		app := New(strings.NewReader(""), io.Discard, notes)
		k := &topCommand{Call: &Call{App: app}, client: client, every: time.Second}
		if before := k.WaitingNotes(); before != notes {
			t.Fatalf("%s: the notes before it are dropped", name)
		}
		if err := live(k); err != nil {
			t.Fatal(err)
		}
		if k.WaitingNotes() != io.Discard {
			t.Errorf("%s: notes would be printed on the screen", name)
		}
		_ = client.Close()
	}
}
