package ledger

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate/internal/assert"
)

// A note is a message of these tests.
type note struct {
	entry  Entry[*note]
	result Result
	called bool
}

func resultOf(n *note) (*Entry[*note], Result, bool) { return &n.entry, n.result, n.called }

// enter has a message of some bytes enter a ledger that does not let it wait.
func enter(t *testing.T, l *Ledger[*note], bytes int, when WhenFull, want Admission) *note {
	t.Helper()
	n := &note{}
	if w, got, err := l.Enter(t.Context(), n, &n.entry, bytes, when); w != nil || got != want || (err != nil) != (want == Full) {
		t.Fatalf("admission %d, %v, waits: %t; want %d", got, err, w != nil, want)
	}
	return n
}

// enterFull has a message of some bytes wait for a place, and returns the end of the wait.
func enterFull(ctx context.Context, t *testing.T, l *Ledger[*note], n *note, bytes int, when WhenFull) Admission {
	t.Helper()
	w, got, err := l.Enter(ctx, n, &n.entry, bytes, when)
	if w == nil {
		t.Errorf("admission %d, %v; want it to wait", got, err)
		return got
	}
	return l.Await(ctx, w)
}

// empty fails the test unless the ledger has forgotten all messages and can be waited for.
func empty(t *testing.T, l *Ledger[*note]) {
	t.Helper()
	if l.messages != 0 || l.bytes != 0 || l.backlog != 0 || l.queue.Len() != 0 || len(l.Pending()) != 0 || len(l.sealed) != 0 {
		t.Errorf("left behind: %d messages, %d bytes, %d functions, %d that wait, %d pending, %d flushes",
			l.messages, l.bytes, l.backlog, l.queue.Len(), len(l.Pending()), len(l.sealed))
	}
	l.Running.Wait()
}

func TestBounds(t *testing.T) {
	l := New[*note](3, 100)
	a := enter(t, l, 60, Reject, Admitted)
	enter(t, l, 41, Reject, Full)
	b := enter(t, l, 40, Reject, Admitted)
	n := &note{}
	if _, _, err := l.Enter(t.Context(), n, &n.entry, 1, Reject); err == nil || !strings.Contains(err.Error(), "2 of 3 messages") || !strings.Contains(err.Error(), "100 of 100 bytes") {
		t.Errorf("the error is %v", err)
	}
	l.Leave([]*note{a, b}, resultOf)
	large := enter(t, l, 1<<40, Reject, Admitted) // alone
	enter(t, l, 1, Reject, Full)
	l.Leave([]*note{large}, resultOf)
	empty(t, l)
}

// A message whose function was not called yet counts in the bound of messages, but not in that of
// bytes.
func TestFunctionsCount(t *testing.T) {
	l := New[*note](1, 100)
	a := enter(t, l, 100, Reject, Admitted)
	a.called = true
	l.Leave([]*note{a}, resultOf)
	enter(t, l, 1, Reject, Full)
	l.calling()
	b := enter(t, l, 100, Reject, Admitted)
	l.called(&a.entry)
	l.Leave([]*note{b}, resultOf)
	empty(t, l)
}

// Messages wait in their order, also behind one that is too large; a message whose ctx ends lets
// those behind it in.
func TestWaitForAPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[*note](10, 100)
		first := enter(t, l, 80, Wait, Admitted)
		var mu sync.Mutex
		var order []int // guarded by mu
		wait := func(ctx context.Context, number, bytes int, want Admission) *note {
			n := &note{}
			go func() {
				got := enterFull(ctx, t, l, n, bytes, Wait)
				assert.That(t, got == want, "message %d: admission %d, want %d", number, got, want)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, number)
			}()
			synctest.Wait()
			return n
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait(ctx, 1, 30, Ended)
		second := wait(t.Context(), 2, 20, Admitted)
		assert.That(t, len(order) == 0, "%v did not wait", order)
		cancel()
		synctest.Wait()
		third := wait(t.Context(), 3, 50, Admitted)
		l.Leave([]*note{first}, resultOf)
		synctest.Wait()
		assert.That(t, slices.Equal(order, []int{2, 1, 3}) || slices.Equal(order, []int{1, 2, 3}), "they ended as %v", order)
		l.Leave([]*note{second, third}, resultOf)
		empty(t, l)
	})
}

// A full ledger admits messages on their way to the spool, as long as functions keep up.
func TestSpoolWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[*note](1, 100)
		a := enter(t, l, 1, Spool, Admitted)
		b := enter(t, l, 1, Spool, Forced)
		b.result, b.called = Spooled, true
		l.Leave([]*note{b}, resultOf)
		c := &note{result: Spooled}
		var got Admission
		go func() { got = enterFull(t.Context(), t, l, c, 1, Spool) }()
		synctest.Wait()
		assert.That(t, !c.entry.Place.Joined(), "a message was admitted while a function was not called")
		l.calling()
		synctest.Wait()
		assert.Equal(t, "admission after the call", got, Forced)
		l.called(&b.entry)
		l.Leave([]*note{a, c}, resultOf)
		empty(t, l)
	})
}

// Flush waits for the messages before it, and their functions, alone.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[*note](10, 100)
		a := enter(t, l, 1, Wait, Admitted)
		a.called = true
		flushed := make(chan error, 1)
		go func() { flushed <- l.Flush(t.Context()) }()
		synctest.Wait()
		b := enter(t, l, 1, Wait, Admitted)
		l.Leave([]*note{a}, resultOf)
		l.calling()
		synctest.Wait()
		assert.Equal(t, "Flush did not wait for the function", len(flushed), 0)
		l.called(&a.entry)
		assert.NoError(t, <-flushed)
		cause := errors.New("the caller has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		assert.Is(t, "err", l.Flush(ctx), cause)
		l.Leave([]*note{b}, resultOf)
		empty(t, l)
	})
}

// Close rejects the waiting messages, and Settled follows the last result. Messages of the spool
// count in no bound and are in no account but their own.
func TestCloseAndReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New[*note](4, 100)
		var all []*note
		for _, r := range []Result{Delivered, Failed, Spooled, Aborted} {
			n := enter(t, l, 1, Wait, Admitted)
			n.result = r
			all = append(all, n)
		}
		for _, r := range []Result{Drained, LeftInSpool} {
			n := &note{result: r}
			assert.MustThat(t, l.Adopt(n, &n.entry), "the ledger is not closed")
			all = append(all, n)
		}
		waiting := &note{}
		go func() {
			got := enterFull(t.Context(), t, l, waiting, 1, Wait)
			assert.That(t, got == Closed, "admission %d of a message that waited, want Closed", got)
		}()
		synctest.Wait()
		got := l.Pending()
		assert.That(t, slices.Equal(got, all), "%d messages are pending, want 6 in order", len(got))
		l.Close()
		l.Close()
		synctest.Wait()
		enter(t, l, 1, Wait, Closed)
		assert.That(t, !l.Adopt(waiting, &waiting.entry) && !l.Hold(), "a closed ledger took something")
		l.Leave(all[1:], resultOf)
		select {
		case <-l.Settled():
			t.Error("settled before the last result")
		default:
		}
		l.Leave(all[:1], resultOf)
		<-l.Settled()
		c, aborted := l.Report()
		want := (Counts{Accepted: 4, Delivered: 1, Failed: 1, Spooled: 1, Aborted: 1, Drained: 1})
		assert.That(t, c == want && slices.Equal(aborted, all[3:4]), "%+v and %d aborted, want %+v", c, len(aborted), want)
		empty(t, l)
	})
}
