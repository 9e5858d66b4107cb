package ledger

import (
	"context"
	"testing"
	"testing/synctest"
)

// A message that got its place and its result before its Await noticed: an Await whose ctx has
// ended meanwhile still reports that the message was accepted.
func TestEndedCtxHidesNoAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 { // Await may come before Leave; then the message has ended
			l := New[*note](1, 100)
			first := enter(t, l, 1, Wait, Admitted)
			ctx, cancel := context.WithCancel(t.Context())
			n := &note{}
			got := make(chan Admission, 1)
			go func() { got <- enterFull(ctx, t, l, n, 1, Wait) }()
			synctest.Wait()
			cancel() // wakes Await, which waits for the lock while all this happens:
			l.Leave([]*note{first}, resultOf)
			l.Close()
			pending := l.Pending()
			l.Leave(pending, resultOf)
			a := <-got
			if ended := len(pending) == 0; ended != (a == Ended) || !ended && a != Admitted {
				t.Fatalf("admission %d; the message has a result: %v", a, !ended)
			}
		}
	})
}
