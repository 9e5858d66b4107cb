package server

import (
	"testing"
	"time"
)

func TestLongPoll(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		asked, left, request, lo, hi time.Duration
		want                         time.Duration
		ok                           bool
	}{
		{asked: 1 * s, left: 9 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 5 * s, ok: true},
		{asked: 30 * s, left: 33 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 20 * s, ok: true},
		{asked: 40 * s, left: 40 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 20 * s, ok: true}, // Rust
		{asked: 10 * s, left: 7 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 6500 * time.Millisecond, ok: true},
		{asked: 1 * s, left: 4 * s, request: 3 * s, lo: 5 * s, hi: 20 * s},
		{asked: -1, left: 3 * s, request: 3 * s, lo: 5 * s, hi: 20 * s},
		{asked: -1, left: 10 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 8500 * time.Millisecond, ok: true},
		{asked: -1, left: -1, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 20 * s, ok: true},
		{asked: 7 * s, left: -1, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 7 * s, ok: true},
		{asked: 5 * s, left: 5 * s, request: 3 * s, lo: 5 * s, hi: 20 * s, want: 4500 * time.Millisecond, ok: true},
		{asked: 0, left: 3 * s, request: 3 * s, lo: 1, hi: 20 * s, want: 1, ok: true},
		{asked: 20 * s, left: 100 * time.Millisecond, request: 3 * s, lo: 1, hi: 20 * s, want: 90 * time.Millisecond, ok: true},
		{asked: 20 * s, left: 0, request: 3 * s, lo: 1, hi: 20 * s},
	} {
		got, ok := longPoll(c.asked, c.left, c.request, c.lo, c.hi)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("longPoll(%v, %v, %v, %v, %v) = %v, %v; want %v, %v", c.asked, c.left, c.request, c.lo, c.hi, got, ok, c.want, c.ok)
		}
	}
}
