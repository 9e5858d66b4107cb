package state

import (
	"testing"

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
