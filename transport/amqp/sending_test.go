package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
)

// A peer is a link with credit, as go-amqp shows it.
type peer struct {
	mu       sync.Mutex
	credit   int
	granted  chan struct{}
	written  []string
	silent   bool          // no outcomes
	hangs    chan struct{} // a write ends when it is closed; nil: at once
	broken   error         // of the next transfer
	refusals int           // of further attempts to attach
	attached int
	closed   int
	done     chan struct{}
	traffic  func() (int64, bool)
}

func newPeer(credit int) *peer {
	return &peer{credit: credit, granted: make(chan struct{}, 1), done: make(chan struct{}), traffic: func() (int64, bool) { return 0, false }}
}

func (p *peer) link() *sendLink {
	return newSendLink(sendLinkOptions{
		Attach:  p.attach,
		Traffic: func() (int64, bool) { return p.traffic() },
		Done:    p.done,
		Lost:    func() error { return &amqp.ConnError{} },
	})
}

func (p *peer) attach() (linkSender, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached++
	if p.refusals > 0 {
		p.refusals--
		return nil, &amqp.Error{Condition: amqp.ErrCondInternalError, Description: "the server starts"}
	}
	return p, nil
}

func (p *peer) grant(n int) {
	p.mu.Lock()
	p.credit += n
	p.mu.Unlock()
	p.granted <- struct{}{}
}

func (p *peer) Transfer(ctx context.Context, m *amqp.Message) (receipt, error) {
	for {
		p.mu.Lock()
		if err := p.broken; err != nil {
			p.broken = nil
			p.mu.Unlock()
			return nil, err
		}
		if p.credit > 0 {
			p.credit--
			p.written = append(p.written, m.Properties.MessageID.(string))
			p.mu.Unlock()
			if p.hangs != nil {
				<-p.hangs
			}
			return outcome{p.silent}, nil
		}
		p.mu.Unlock()
		select {
		case <-p.granted:
		case <-ctx.Done(): // go-amqp's error
			return nil, &amqp.Error{Condition: amqp.ErrCondTransferLimitExceeded, Description: "credit limit exceeded"}
		}
	}
}

func (p *peer) Close() { p.mu.Lock(); p.closed++; p.mu.Unlock() }

type outcome struct{ silent bool }

func (o outcome) Wait(ctx context.Context) (amqp.DeliveryState, error) {
	if o.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &amqp.StateAccepted{}, nil
}

func message(id string) *amqp.Message {
	return &amqp.Message{Properties: &amqp.MessageProperties{MessageID: id}}
}

func send(ctx context.Context, l *sendLink, id string, size int) *tidegate.Error {
	p, err := l.Send(ctx, message(id), size)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

func mustSend(t *testing.T, l *sendLink, id string, size int) {
	t.Helper()
	if err := send(t.Context(), l, id, size); err != nil {
		t.Fatal(err)
	}
}

func TestMissingCreditThrottlesAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(1)
		defer close(p.done)
		l := p.link()
		mustSend(t, l, "first", 1)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				err := send(t.Context(), l, fmt.Sprint(i), 1)
				assert.That(t, errors.Is(err, tidegate.ErrThrottled) && !err.MaybeStored && time.Since(start) <= time.Second,
					"after %v: %v, want a throttle within 1 s and nothing stored", time.Since(start), err)
			})
		}
		wg.Wait()
		p.grant(1)
		mustSend(t, l, "last", 1)
		assert.That(t, fmt.Sprint(p.written) == "[first last]" && p.attached == 1,
			"written %v on %d links, want the first and the last on one link", p.written, p.attached)
	})
}

// A link on which a part of a message may have been written is not used again, whether missing
// credit or the caller ended the write: the server would take the next message for the rest. A
// message of one frame is written as a whole or not at all, so its link stays.
func TestCutOffMessageEndsItsLink(t *testing.T) {
	for name, c := range map[string]struct {
		size, attached int
		patience       time.Duration // of the caller
	}{
		"large, no credit":   {severalFrames, 2, time.Minute},
		"small, no credit":   {severalFrames - 1, 1, time.Minute},
		"large, caller gone": {severalFrames, 2, time.Second / 2},
		"small, caller gone": {severalFrames - 1, 1, time.Second / 2},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			p := newPeer(0)
			defer close(p.done)
			l := p.link()
			ctx, cancel := context.WithTimeoutCause(t.Context(), c.patience, errEnoughSends)
			defer cancel()
			err := send(ctx, l, "first", c.size)
			assert.That(t, err != nil && !err.MaybeStored, "got %v, want an error with nothing stored", err)
			p.mu.Lock()
			p.credit = 1
			p.mu.Unlock()
			mustSend(t, l, "second", 1)
			assert.That(t, p.attached == c.attached && p.closed == c.attached-1,
				"%d links were attached and %d closed, want %d and %d", p.attached, p.closed, c.attached, c.attached-1)
		})
	}
}

var errEnoughSends = errors.New("the caller has enough")

// A message of a caller that has gone is not sent later without MaybeStored. One that still waits
// is sent when there is credit.
func TestEndedContext(t *testing.T) {
	const granted = 900 * time.Millisecond
	for want, limits := range map[string][]time.Duration{ // one waits for credit, the others behind it
		"[alive]":   {200 * time.Millisecond, 400 * time.Millisecond, 600 * time.Millisecond},
		"[0 alive]": {950 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(0)
			defer close(p.done)
			l := p.link()
			var wg sync.WaitGroup
			for i, d := range limits {
				ctx, cancel := context.WithTimeoutCause(t.Context(), d, errEnoughSends)
				defer cancel()
				wg.Go(func() {
					start := time.Now()
					err := send(ctx, l, fmt.Sprint(i), 1)
					if took := time.Since(start); took != min(d, granted) || d > granted && err != nil || d < granted && (!errors.Is(err, errEnoughSends) || err.MaybeStored) {
						t.Errorf("message %d after %v: %v, want the cause of the context and nothing stored, or a success after %v", i, took, err, granted)
					}
				})
				synctest.Wait()
			}
			time.Sleep(granted)
			p.grant(5)
			wg.Wait()
			mustSend(t, l, "alive", 1)
			assert.Equal(t, "written", fmt.Sprint(p.written), want)
		})
	}
}

// A write that hangs holds no caller beyond its context, and may have sent the message.
func TestEndedContextDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(1)
		p.hangs = make(chan struct{})
		defer close(p.done)
		defer close(p.hangs)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errEnoughSends)
		defer cancel()
		start := time.Now()
		err := send(ctx, p.link(), "x", 1)
		assert.That(t, errors.Is(err, errEnoughSends) && err.MaybeStored && time.Since(start) <= 2*time.Second+interruptGrace,
			"after %v: %v, want the cause of the context and MaybeStored", time.Since(start), err)
	})
}

// The wait for credit begins again for each message, also on a link that was busy or idle before.
func TestEachMessageWaitsAsLongForCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(100)
		defer close(p.done)
		l := p.link()
		for _, pause := range []time.Duration{0, 300 * time.Millisecond, 900 * time.Millisecond, time.Second, time.Hour} {
			mustSend(t, l, "x", 1)
			time.Sleep(pause)
			p.mu.Lock()
			credit := p.credit
			p.credit = 0
			p.mu.Unlock()
			start := time.Now()
			if err := send(t.Context(), l, "y", 1); !errors.Is(err, tidegate.ErrThrottled) || time.Since(start) != creditWait {
				t.Errorf("%v after another message, after %v: %v; want a throttle after 1 s", pause, time.Since(start), err)
			}
			p.mu.Lock()
			p.credit = credit
			p.mu.Unlock()
		}
	})
}

func TestDeadlineAfterTheTransferMaybeStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(5)
		p.silent = true
		defer close(p.done)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, errEnoughSends)
		defer cancel()
		err := send(ctx, p.link(), "x", 1)
		assert.That(t, errors.Is(err, errEnoughSends) && err.MaybeStored, "got %v, want the cause of the context and MaybeStored", err)
	})
}

func TestLostLinkIsAttachedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(5)
		defer close(p.done)
		l := p.link()
		p.broken = &amqp.LinkError{RemoteErr: &amqp.Error{Condition: "amqp:link:detach-forced"}}
		err := send(t.Context(), l, "x", 1)
		assert.That(t, tidegate.Classify(err) == tidegate.ClassTransient && err.MaybeStored,
			"got %v, want a transient error with MaybeStored", err)
		mustSend(t, l, "y", 1)
		assert.Equal(t, "attached times", p.attached, 2)
	})
}

// A server that refuses a link for a moment gets one attempt a second. It ends one attempt of the
// messages that wait for it; their next attempts wait for the next link.
func TestRefusedLinkIsAttachedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(100)
		p.refusals = 2
		defer close(p.done)
		l := p.link()
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				failures := 0
				for err := send(t.Context(), l, fmt.Sprint(i), 1); err != nil; err = send(t.Context(), l, fmt.Sprint(i), 1) {
					if failures++; tidegate.Classify(err) != tidegate.ClassTransient || err.MaybeStored || failures > 2 {
						t.Errorf("failure %d after %v: %v, want two transient ones, with nothing stored", failures, time.Since(start), err)
						return
					}
				}
			})
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, errEnoughSends)
		defer cancel()
		err := send(ctx, l, "late", 1)
		if err != nil && time.Since(start) == 0 { // it waited for the first attempt to attach
			err = send(ctx, l, "late", 1)
		}
		assert.That(t, errors.Is(err, errEnoughSends) && !err.MaybeStored && time.Since(start) == 500*time.Millisecond,
			"after %v: %v, want the cause of the context and nothing stored", time.Since(start), err)
		wg.Wait()
		if d := time.Since(start); d != 2*time.Second || p.attached != 3 || len(p.written) != 10 {
			t.Errorf("%d messages after %v and %d attempts to attach, want 10 after 2 s and 3", len(p.written), d, p.attached)
		}
	})
}

// The transfer of a large message over a slow network is no wait for credit.
func TestProgressIsNoThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(0)
		defer close(p.done)
		start := time.Now()
		p.traffic = func() (int64, bool) { return int64(time.Since(start)/time.Second) * severalFrames, false }
		time.AfterFunc(5500*time.Millisecond, func() { p.grant(1) })
		mustSend(t, p.link(), "large", 1<<20)
		p.traffic = func() (int64, bool) { return 0, true } // the network does not take the bytes
		time.AfterFunc(5500*time.Millisecond, func() { p.grant(1) })
		mustSend(t, p.link(), "small", 1)
	})
}

func TestLostConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(0)
		l := p.link()
		close(p.done)
		synctest.Wait()
		err := send(t.Context(), l, "x", 1)
		assert.That(t, err != nil && err.NotConnected && !err.MaybeStored && tidegate.Classify(err) == tidegate.ClassTransient,
			"got %#v, want a transient error with NotConnected", err)
	})
}
