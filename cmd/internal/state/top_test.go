package state

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/cmd/internal/call"
	"github.com/tidegate/tidegate/cmd/internal/view"
)

func TestTopKeys(t *testing.T) {
	k := &topCommand{TopView: view.TopView{By: "backlog"}}
	s := &view.TopScreen{}
	for _, key := range []byte("srgpfab\x7fc\r") {
		if k.pressed(key, s) {
			t.Fatalf("the key %q ends top", key)
		}
	}
	if want := (view.TopView{By: "age", Reverse: true, Topics: true, Match: "ac"}); k.TopView != want || !s.Paused || s.Typing {
		t.Errorf("the keys give %+v, paused %v, typing %v; want %+v", k.TopView, s.Paused, s.Typing, want)
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
		"backlogs": func(k *topCommand) error { return k.live(ctx, view.TopFrame{}) },
		"clients":  func(k *topCommand) error { return k.liveClients(ctx, view.ClientFrame{}) },
	} {
		client, err := admin.New("http://127.0.0.1:1", admin.Options{})
		if err != nil {
			t.Fatal(err)
		}
		notes := new(strings.Builder)
		app := call.New(strings.NewReader(""), io.Discard, notes)
		k := &topCommand{Call: &call.Call{App: app}, client: client, every: time.Second}
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
