package producer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidegate/tidegate/transport"
)

// A topic is the producer's state of one topic: its queue, and the known state of the
// server.
//
// Its lock guards the queue and the state of the items in it. The locks acquired under it are the
// ledger's, the functions', the spooler's and, in Holds, the spool's; none of them is held while
// another lock is acquired. It is never held during a call of the transport or of the user's
// functions.
type topic struct {
	p     *Producer
	name  string
	users atomic.Int64 // the producer keeps the topic while this is not 0

	good       atomic.Bool            // the server accepted a send to the topic
	answer     atomic.Pointer[answer] // the last response with settings; nil before the first
	requesting chan struct{}          // holds a token while a goroutine requests the settings

	mu       sync.Mutex
	spooling map[string]int // message groups with messages that wait for a write to the spool
	permits  []string       // endpoints that accepted a send to the topic; with a spool only
	down     bool           // the last messages with a result went to the spool after failed attempts

	queue  queue
	lookup scope       // of the ask under way: pump sets it, and only the goroutine of the ask uses its ctx
	timer  *time.Timer // calls wake at timerAt; nil before its first use
	wakeAt time.Time   // zero if the timer is stopped

	watches watchSet[*item] // of the messages of SendAsync
}

// submit queues messages. If own is one of them and can be sent at once, submit returns the ask for
// it, which the caller has to carry out by work.
func (t *topic) submit(own *queueItem, items ...*item) (job, bool) {
	var begun *watch[*item]
	now := time.Now()
	t.mu.Lock()
	for _, it := range items {
		switch {
		case it.state != pending: // Close has aborted it
		case t.p.spooler != nil && t.diverts(it):
			t.spool(it, it.fail(StopSpool, nil))
		default:
			t.queue.Add(&it.Item, now)
			if it.done != nil { // items has no other one then
				begun = t.watches.Join(it.ctx, it, &it.watched)
			}
		}
	}
	ended := t.hopeless(now, items...)
	j, ok := t.pump(now, own, false)
	t.mu.Unlock()
	if begun != nil {
		begun.Start()
	}
	if len(ended) > 0 {
		t.p.complete(ended)
	}
	return j, ok
}

// pump begins the jobs that are ready, and starts a goroutine for each. It returns one of them
// instead for the caller to carry out: the ask for own alone or, if worker is true, the first. It
// begins none while Close aborts the messages. A message whose caller waits does not wait for the
// request of others in a crowd. The lock is held.
func (t *topic) pump(now time.Time, own *queueItem, worker bool) (mine job, ok bool) {
	t.queue.Crowded = own == nil && t.p.calls.Load() > crowd
	for !t.p.closed.Load() {
		j, more := t.queue.Next(now, own)
		if !more {
			break
		}
		switch {
		case j.Ask != nil:
			head := j.Ask.Head.Of
			t.lookup = newScope(head.ctx, j.Ask.Own, head.history.Attempts > 0, head.Share(now))
		case t.p.opts.Limiter == nil: // otherwise send starts it when the limiter has permitted it
			t.start(j.Request, now)
		}
		if !ok && (worker || j.Ask != nil && j.Ask.Own) {
			mine, ok = j, true
			continue
		}
		t.p.ledger.Running.Go(func() { t.work(j) }) // a message is pending, so Close does not wait for Running yet
	}
	t.schedule(now)
	return mine, ok
}

// schedule sets the timer for the next event of the queue. The lock is held.
func (t *topic) schedule(now time.Time) {
	at := t.queue.WakeAt(now)
	if t.p.closed.Load() { // the messages are about to leave
		at = time.Time{}
	}
	switch {
	case at.Equal(t.wakeAt):
	case at.IsZero():
		t.wakeAt = at
		t.timer.Stop()
	case t.timer == nil:
		t.wakeAt = at
		t.timer = time.AfterFunc(at.Sub(now), t.wake)
	default:
		t.wakeAt = at
		t.timer.Reset(at.Sub(now))
	}
}

func (t *topic) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wakeAt = time.Time{}
	t.pump(time.Now(), nil, false)
}

// work carries out a job and those that are ready after it. It returns true if its last request
// ended a message. Each lane has one worker for each of its requests.
//
// The first attempt of a Send runs on the goroutine of its caller, further ones have a worker. The
// caller's goroutine saves two switches between goroutines and four of 232 allocations of a message
// (BenchmarkSendSDK with one caller).
func (t *topic) work(j job) (over bool) {
	for ok := true; ok; {
		r := j.Request
		if j.Ask != nil {
			r, j, ok = t.route(j.Ask)
		}
		if r == nil {
			continue
		}
		results, err := t.send(r)
		var ended []*item
		ended, j, ok = t.settle(r, results, err, !r.Own)
		over = len(ended) > 0
		if ok && len(ended) > 1 {
			// The next request does not wait for the wake-ups. It needs more stack than they do,
			// and this goroutine has it already.
			t.p.ledger.Running.Go(func() { t.p.wakeCallers(ended) })
		} else {
			t.p.wakeCallers(ended)
		}
	}
	return over
}

// newScope returns the scope of an attempt, which begins with the ask for its lane or, if it shares
// a request, with the request. The scope ends after share, which is item.Share. On the caller's own
// goroutine it ends with the caller's ctx too. Otherwise it does not, because the message itself
// watches the end of that ctx. With await the transport waits for a connection.
func newScope(ctx context.Context, own, await bool, share time.Duration) (s scope) {
	if !own {
		ctx = context.WithoutCancel(ctx) // keeps the values
	}
	if await {
		ctx = transport.AwaitConnection(ctx)
	}
	s.ctx, s.cancel = context.WithTimeoutCause(ctx, share, errAttemptTimeout)
	return s
}
