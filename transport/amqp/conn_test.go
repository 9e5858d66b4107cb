package amqp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goamqp "github.com/Azure/go-amqp"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/amqppeer"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

// refusing returns a supervisor of a server that refuses connections after a while, and the number
// of attempts.
func refusing(t *testing.T, after time.Duration, err error) (*supervisor, *atomic.Int64) {
	t.Helper()
	var dials atomic.Int64
	s := newSupervisor(connOptions{DialTimeout: 10 * time.Second, Dial: func(ctx context.Context) (net.Conn, error) {
		dials.Add(1)
		select {
		case <-time.After(after):
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	t.Cleanup(s.Close)
	return s, &dials
}

var (
	errRefused = &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	errEnough  = errors.New("the caller has enough")
)

// Calls that do not wait for a connection fail with the error of the last attempt, and connect at
// most once a second.
func TestGetFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dials := refusing(t, 100*time.Millisecond, errRefused)
		start := time.Now()
		for time.Since(start) < 10*time.Second {
			before := time.Now()
			_, err := s.Get(t.Context(), false)
			if err == nil || !err.NotConnected || !errors.Is(err, errRefused) || tidegate.Classify(err) != tidegate.ClassTransient {
				t.Fatalf("got %#v, want the error of the attempt with NotConnected", err)
			}
			d := time.Since(before)
			assert.MustThat(t, d <= 100*time.Millisecond, "a call took %v", d)
			time.Sleep(10 * time.Millisecond)
		}
		n := dials.Load()
		assert.That(t, n >= 9 && n <= 11, "%d attempts to connect in 10 s, want one a second", n)
	})
}

// Nothing connects while no call needs a connection.
func TestNoAttemptWithoutACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dials := refusing(t, 0, errRefused)
		time.Sleep(time.Hour)
		_, err := s.Get(t.Context(), false)
		assert.That(t, err != nil && dials.Load() == 1, "%v after %d attempts, want one", err, dials.Load())
		time.Sleep(time.Hour)
		assert.Equal(t, "attempts", dials.Load(), 1)
	})
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dials := refusing(t, 0, errRefused)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5500*time.Millisecond, errEnough)
		defer cancel()
		start := time.Now()
		_, err := s.Get(ctx, true)
		assert.That(t, err != nil && err.NotConnected && errors.Is(err, errEnough) && time.Since(start) == 5500*time.Millisecond,
			"after %v: %#v, want the cause of the context with NotConnected", time.Since(start), err)
		assert.Equal(t, "attempts to connect in 5.5 s", dials.Load(), 6)
	})
}

// The end of a caller's context neither ends nor spoils the attempt that other callers wait for.
func TestCallersShareAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, dials := refusing(t, 500*time.Millisecond, errRefused)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, errEnough)
		defer cancel()
		if _, err := s.Get(ctx, false); err == nil || !errors.Is(err, errEnough) || !err.NotConnected {
			t.Errorf("got %#v, want the cause of the context with NotConnected", err)
		}
		for range 2 { // the second fails with the error of the first, and does not share it
			_, err := s.Get(t.Context(), false)
			assert.That(t, errors.Is(err, errRefused) && dials.Load() == 1 && err.Op == "",
				"%v after %d attempts, want the error of the one attempt", err, dials.Load())
			err.Op = "changed by its caller"
		}
	})
}

// Close ends the waits of all calls at once: also behind a Dialer that ignores its context, and
// between two attempts to connect.
func TestCloseEndsAllWaits(t *testing.T) {
	for name, dial := range map[string]func(released chan struct{}) (net.Conn, error){
		"during an attempt": func(released chan struct{}) (net.Conn, error) { <-released; return nil, errRefused },
		"between attempts":  func(chan struct{}) (net.Conn, error) { return nil, errRefused },
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			released := make(chan struct{})
			defer close(released)
			s := newSupervisor(connOptions{DialTimeout: 10 * time.Second, Dial: func(context.Context) (net.Conn, error) { return dial(released) }})
			done := make(chan *tidegate.Error, 1)
			go func() {
				_, err := s.Get(t.Context(), true)
				done <- err
			}()
			synctest.Wait()
			s.Close()
			synctest.Wait() // no time passes
			select {
			case err := <-done:
				assert.Is(t, "err", err, tidegate.ErrClosed)
			default:
				t.Error("the call still waits after Close")
			}
			_, err := s.Get(t.Context(), false)
			assert.That(t, errors.Is(err, tidegate.ErrClosed) && s.Closed(), "a later call: %v, want ErrClosed", err)
		})
	}
}

// A permanent fault of a connection is not awaited: a call that would wait for a connection fails
// at once, also within the second after the attempt.
func TestPermanentFaultIsNotAwaited(t *testing.T) {
	for _, fault := range []error{
		&goamqp.Error{Condition: goamqp.ErrCondUnauthorizedAccess, Description: "wrong password"}, errors.New("SASL PLAIN auth failed with code 0x1: []"),
	} {
		synctest.Test(t, func(t *testing.T) {
			s, dials := refusing(t, 0, fault)
			start := time.Now()
			for range 3 {
				_, err := s.Get(t.Context(), true)
				assert.MustThat(t, err != nil && !err.NotConnected && err.Code == tidegate.CodeUnauthorized, "got %#v, want Unauthorized without NotConnected", err)
			}
			assert.That(t, time.Since(start) == 0 && dials.Load() == 1, "three calls took %v and %d attempts, want one attempt without a wait", time.Since(start), dials.Load())
			time.Sleep(time.Second)
			_, err := s.Get(t.Context(), true)
			assert.That(t, err != nil && dials.Load() == 2, "a second later: %v after %d attempts, want a second attempt", err, dials.Load())
		})
	}
}

// A fault of the certificate or of the host name is an outage at an address that has worked, and an
// error at once at another one.
func TestFaultOfAnAddressThatHasWorked(t *testing.T) {
	for name, err := range map[string]error{
		"issuer": &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"name":   &net.DNSError{Err: "no such host", Name: "broker.test", IsNotFound: true},
	} {
		for _, worked := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s, dials := refusing(t, 0, err)
				s.worked.Store(worked)
				ctx, cancel := context.WithTimeoutCause(t.Context(), 5500*time.Millisecond, errEnough)
				defer cancel()
				_, got := s.Get(ctx, true)
				assert.That(t, got != nil && got.NotConnected == worked && (dials.Load() > 1) == worked,
					"%s, worked %t: %#v after %d attempts", name, worked, got, dials.Load())
				if transient := tidegate.Classify(got) == tidegate.ClassTransient; name == "issuer" && transient != worked {
					t.Errorf("%s, worked %t: the class is %v", name, worked, tidegate.Classify(got))
				}
			})
		}
	}
}

// A watched connection notes the first read after its establishment, and its close.
type watched struct {
	net.Conn
	established    atomic.Bool
	reading, ended chan struct{}
	read, end      sync.Once
}

// SetDeadline is called without a deadline at the end of the establishment.
func (w *watched) SetDeadline(at time.Time) error {
	if at.IsZero() {
		w.established.Store(true)
	}
	return w.Conn.SetDeadline(at)
}

func (w *watched) Read(b []byte) (int, error) {
	if w.established.Load() {
		w.read.Do(func() { close(w.reading) })
	}
	return w.Conn.Read(b)
}

func (w *watched) Close() error {
	w.end.Do(func() { close(w.ended) })
	return w.Conn.Close()
}

// A connection whose establishment ends after Close is closed, and no call gets it.
func TestConnectionAfterClose(t *testing.T) {
	w := &watched{reading: make(chan struct{}), ended: make(chan struct{})}
	s := newSupervisor(connOptions{DialTimeout: time.Minute, Dial: func(ctx context.Context) (net.Conn, error) {
		raw, err := new(amqppeer.Peer).Dial(ctx, "")
		w.Conn = raw
		return w, err
	}})
	a := &attempt{done: make(chan struct{}), at: time.Now()}
	s.mu.Lock() // keeps the established connection from becoming that of the supervisor
	go s.connect(a)
	select {
	case <-w.reading:
	case <-a.done:
		s.mu.Unlock()
		t.Fatal(a.err)
	}
	s.closed = true // Close with this lock
	s.mu.Unlock()
	s.end(tidegate.ErrClosed)
	<-a.done
	assert.MustThat(t, a.live == nil && errors.Is(a.err, tidegate.ErrClosed) && s.Current() == nil,
		"the attempt has %v and %v, want ErrClosed", a.live, a.err)
	select {
	case <-w.ended:
	case <-time.After(30 * time.Second): // go-amqp closes it after a minute, because the peer is silent
		t.Error("the connection stays open")
	}
}

// Frames of go-amqp on channel 7.
var (
	beginFrame  = []byte{0, 0, 0, 14, 2, 0, 0, 7, 0x00, 0x53, 0x11, 0xc0, 1, 0}
	endFrame    = []byte{0, 0, 0, 12, 2, 0, 0, 7, 0x00, 0x53, 0x17, 0x45}
	attachFrame = []byte{0, 0, 0, 21, 2, 0, 0, 7, 0x00, 0x53, 0x12, 0xc0, 8, 3, 0xa1, 2, 'm', 'e', 0x43, 0x41, 0x40}
)

// accepts returns the frame that accepts first to last on channel 7.
func accepts(first, last byte) []byte {
	return []byte{
		0, 0, 0, 30, 2, 0, 0, 7, 0x00, 0x53, 0x15, 0xc0, 17, 5,
		0x41, 0x70, 0, 0, 0, first, 0x70, 0, 0, 0, last, 0x41, 0x00, 0x53, 0x24, 0x45,
	}
}

func deliveries(ids ...uint32) (list []*sessionDelivery) {
	for _, id := range ids {
		list = append(list, &sessionDelivery{ID: id})
	}
	return list
}

// accepting returns an Acceptor of a link whose frames so far are written, and the connection.
func accepting(t *testing.T) (*wire, *traffic, *acceptor) {
	t.Helper()
	w := newWire()
	close(w.free)
	c := newTraffic(w)
	for _, frame := range [][]byte{beginFrame, attachFrame} {
		write(t, c, string(frame))
	}
	a := (&connection{traffic: c}).Acceptor("me")
	assert.MustThat(t, a != nil, "the link has no Acceptor")
	synctest.Wait()
	return w, c, a
}

// Adjacent deliveries share a frame, even if their IDs wrap around. Nothing is accepted twice.
func TestAccept(t *testing.T) {
	for name, c := range map[string]struct {
		list []*sessionDelivery
		want [][]byte
	}{
		"none":                 {nil, nil},
		"one":                  {deliveries(5), [][]byte{accepts(5, 5)}},
		"a range":              {deliveries(7, 5, 6), [][]byte{accepts(5, 7)}},
		"gaps":                 {deliveries(9, 1, 2, 5, 8), [][]byte{accepts(1, 2), accepts(5, 5), accepts(8, 9)}},
		"accepted ones":        {slices.Insert(deliveries(1, 3), 1, &sessionDelivery{ID: 2, accepted: true}), [][]byte{accepts(1, 1), accepts(3, 3)}},
		"IDs that wrap around": {deliveries(0, 1<<32-1, 1), [][]byte{bytes.Replace(accepts(0, 1), []byte{0, 0, 0, 0}, []byte{255, 255, 255, 255}, 1)}},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			w, traffic, a := accepting(t)
			defer traffic.Close()
			before := len(w.written())
			assert.NoError(t, a.Accept(slices.Clone(c.list)))
			assert.NoError(t, traffic.flush())
			got := []byte{}
			for _, b := range w.written()[before:] {
				got = append(got, b...)
			}
			if want := bytes.Join(c.want, nil); !bytes.Equal(got, want) {
				t.Errorf("wrote  %x\nwant   %x", got, want)
			}
			for _, d := range c.list {
				assert.That(t, a.Accepted(d), "delivery %d is not accepted", d.ID)
			}
		})
	}
}

// After the end of a session another one can have its channel, and deliveries with the same IDs.
func TestAcceptAfterTheEndOfTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c, a := accepting(t)
		defer c.Close()
		for _, frame := range [][]byte{endFrame, beginFrame, attachFrame} {
			write(t, c, string(frame))
		}
		synctest.Wait()
		before := len(w.written())
		list := deliveries(1)
		err := a.Accept(list)
		assert.That(t, errors.Is(err, errEnded) && !a.Accepted(list[0]), "got %v, want errEnded", err)
		synctest.Wait()
		n := len(w.written())
		assert.That(t, n == before, "%d writes after the end of the session", n-before)
		b := (&connection{traffic: c}).Acceptor("me")
		assert.That(t, b != nil && b.Accept(list) == nil, "the link of the next session accepts nothing")
	})
}

func TestAcceptAfterTheEndOfTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, a := accepting(t)
		c.Close()
		list := deliveries(1)
		err := a.Accept(list)
		assert.That(t, errors.Is(err, net.ErrClosed) && !a.Accepted(list[0]), "got %v, want net.ErrClosed", err)
	})
}

// Acceptances do not wait for space as frames of go-amqp do: the messages in hand bound them.
func TestAcceptDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newTraffic(w)
		defer c.Close()
		for _, frame := range [][]byte{beginFrame, attachFrame, make([]byte, maxUnwritten+1)} {
			write(t, c, string(frame))
		}
		start := time.Now()
		err := (&connection{traffic: c}).Acceptor("me").Accept(deliveries(1))
		assert.That(t, err == nil && time.Since(start) <= 0, "Accept: %v after %v", err, time.Since(start))
		close(w.free)
	})
}

// Frames that are cut off or unknown name no link.
func FuzzNote(f *testing.F) {
	for _, frame := range [][]byte{beginFrame, attachFrame, endFrame} {
		for n := range len(frame) + 1 {
			f.Add(frame[:n])
		}
	}
	f.Add([]byte{0, 0, 0, 21, 2, 0, 0, 7, 0x00, 0x53, 0x12, 0xd0, 0, 0, 0, 9, 0, 0, 0, 1, 0xa1, 2, 'm', 'e'})
	f.Fuzz(func(t *testing.T, frame []byte) {
		c := &traffic{channels: map[uint16]*channel{}}
		c.note(beginFrame)
		c.note(frame)
		for n, ch := range c.channels {
			if ch.number != n || ch.ended || len(ch.link) > len(frame) {
				t.Errorf("channel %d is %+v", n, *ch)
			}
		}
	})
}

// The version of go-amqp in go.mod has the field that deliveryID reads.
func TestDeliveryID(t *testing.T) {
	assert.That(t, deliveryIDs,
		"an amqp.Message has no field deliveryID of type uint32: each acknowledgement gets a frame of its own")
}

// Acknowledgements of adjacent messages share a frame, and end these messages only. Without the IDs
// of the deliveries each has a frame of its own.
func TestAcknowledgementsShareFrames(t *testing.T) {
	for _, ids := range []bool{true, false} {
		t.Run(fmt.Sprint("ids=", ids), func(t *testing.T) {
			defer func(was bool) { deliveryIDs = was }(deliveryIDs)
			deliveryIDs = ids
			synctest.Test(t, func(t *testing.T) { acknowledge(t, ids) })
		})
	}
}

func acknowledge(t *testing.T, ids bool) {
	t.Helper()
	var frames atomic.Int64
	p := &amqppeer.Peer{Script: func(_ int, frame byte) amqppeer.Reaction {
		if frame == amqppeer.Disposition {
			frames.Add(1)
		}
		return amqppeer.Responds
	}}
	c := clientOf(t, p)
	request := transport.ReceiveRequest{
		Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 100, InvisibleDuration: time.Minute, Wait: time.Second,
	}
	receive := func() []*tidegate.Delivery {
		return assert.Value(c.Receive(t.Context(), request))(t)
	}
	receive() // creates the queue
	for i := range 50 {
		m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), Body: []byte("x")}
		assert.Must(t, c.Send(t.Context(), []*tidegate.Message{m})[0].Err)
	}
	ds := receive()
	assert.MustEqual(t, "received messages", len(ds), 50)
	kept := ds[20]
	rest := append(append([]*tidegate.Delivery{}, ds[:20]...), ds[21:]...)
	for i, err := range c.Ack(t.Context(), rest) {
		if err != nil {
			t.Errorf("the acknowledgement of %s: %v", rest[i].ID, err)
		}
	}
	synctest.Wait()
	want := int64(2)
	if !ids {
		want = 49
	}
	assert.Equal(t, "frames for the acknowledgements of 0 to 19 and 21 to 49", frames.Load(), want)
	assert.NoError(t, assert.Err(c.Settle(t.Context(), kept, transport.Verdict{Kind: transport.Retry, Reason: "again"})))
	if ds := receive(); len(ds) != 1 || ds[0].ID != kept.ID {
		t.Errorf("received %d messages after the acknowledgements and a retry, want message %s only", len(ds), kept.ID)
	}
}

// A gated connection writes nothing before its gate is closed, if it has one.
type gated struct {
	net.Conn
	gate *atomic.Pointer[chan struct{}]
}

func (g *gated) Write(b []byte) (int, error) {
	if gate := g.gate.Load(); gate != nil {
		<-*gate
	}
	return g.Conn.Write(b)
}

// An acknowledgement without an error was written to the connection.
func TestAckIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{Script: func(int, byte) amqppeer.Reaction { return amqppeer.Responds }}
		var gate atomic.Pointer[chan struct{}]
		c, err := New("orders.example:5672", Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := p.Dial(ctx, addr)
			return &gated{conn, &gate}, err
		}})
		assert.Must(t, err)
		defer c.Close()
		ds := delivered(t, c)
		synctest.Wait() // all frames so far are written
		open := make(chan struct{})
		gate.Store(&open)
		acked := make(chan []error, 1)
		go func() { acked <- c.Ack(t.Context(), ds) }()
		select {
		case errs := <-acked:
			t.Errorf("Ack returned %v before its frame was written", errs)
			close(open)
			return
		case <-time.After(time.Second):
		}
		close(open)
		if errs := <-acked; errs[0] != nil {
			t.Errorf("Ack: %v", errs[0])
		}
	})
}

// A lost connection costs a message at most one attempt, and none if the message was not written:
// the next attempt waits for another connection.
func TestLostConnectionCostsOneAttempt(t *testing.T) {
	for _, c := range []struct {
		name  string
		frame byte
		cost  int // counted attempts for each lost connection
	}{
		{"before the connection is open", amqppeer.Open, 0},
		{"before the session is open", amqppeer.Begin, 0},
		{"before the link is open", amqppeer.Attach, 0},
		{"after the transfer", amqppeer.Transfer, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, down := range []int{0, 3} {
				synctest.Test(t, func(t *testing.T) { lose(t, c.frame, c.cost, down) })
			}
		})
	}
}

// lose sends messages to a peer that breaks two connections, and refuses others after each.
func lose(t *testing.T, at byte, cost, down int) {
	const losses = 2
	var p *amqppeer.Peer
	p = &amqppeer.Peer{Script: func(n int, frame byte) amqppeer.Reaction {
		if n > losses || frame != at {
			return amqppeer.Responds
		}
		p.RefuseNext(down)
		return amqppeer.Cuts
	}}
	c := clientOf(t, p)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint(i), Body: []byte("x")}
			counted := 0
			for start := time.Now(); ; {
				err := c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{m})[0].Err
				if err == nil {
					break
				}
				e, ok := err.(*tidegate.Error)
				if !ok || tidegate.Classify(err) != tidegate.ClassTransient || e.NotConnected == e.MaybeStored {
					t.Errorf("got %#v, want a transient error with either NotConnected or MaybeStored", err)
					return
				}
				if !e.NotConnected {
					counted++
				}
				if time.Since(start) > time.Minute {
					t.Errorf("the message is not stored after a minute: %v", err)
					return
				}
			}
			assert.That(t, counted <= cost*losses, "%d counted attempts failed, want at most %d", counted, cost*losses)
		})
	}
	wg.Wait()
}

// The first error of a connection ends it, although a write hangs: no later message gets it.
func TestFirstErrorEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &amqppeer.Peer{Script: func(n int, frame byte) amqppeer.Reaction {
			if n == 1 && frame == amqppeer.Transfer {
				return amqppeer.Hangs
			}
			return amqppeer.Responds
		}}
		c := assert.Value(New("orders.example:5672", Options{Dialer: p.Dial, IdleTimeout: 20 * time.Second, RequestTimeout: time.Hour}))(t)
		defer c.Close()
		send := func() *tidegate.Error {
			m := &tidegate.Message{Topic: "orders", ID: tidegate.NewMessageID(), Body: []byte("x")}
			e, _ := c.Send(transport.AwaitConnection(t.Context()), []*tidegate.Message{m})[0].Err.(*tidegate.Error)
			return e
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 2 { // the peer reads the first, and the write of the second hangs
			wg.Go(func() {
				e := send()
				if e == nil || !e.MaybeStored || time.Since(start) > 20*time.Second {
					t.Errorf("after %v: %v, want an error with MaybeStored after IdleTimeout", time.Since(start), e)
				} else if !strings.Contains(e.Error(), "read pipe: i/o timeout") { // not the write that this ended
					t.Errorf("got %v, want the timeout of the read", e)
				}
			})
			synctest.Wait()
		}
		time.Sleep(20*time.Second + time.Millisecond)
		if e := send(); e != nil || time.Since(start) > 21*time.Second {
			t.Errorf("after %v: %v, want success on the next connection", time.Since(start), e)
		}
		wg.Wait()
	})
}
