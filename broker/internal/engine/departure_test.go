package engine

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/transport"
)

// receive receives one message, and returns its handle.
func (f *subscriptionFixture) receive(s *Subscription) consume.Handle {
	f.t.Helper()
	ds, err := s.Receive(f.t.Context(), &Request{ReceiveRequest: transport.ReceiveRequest{Queue: -1, Max: 1, InvisibleDuration: time.Minute}})
	if err != nil || len(ds) != 1 {
		f.t.Fatal(ds, err)
	}
	h, err := consume.ParseHandle(ds[0].Handle)
	if err != nil {
		f.t.Fatal(err)
	}
	return h
}

// letters returns the IDs and attempts of the dead letters of the group.
func (f *subscriptionFixture) letters() (ids []string, attempts []int) {
	f.t.Helper()
	t := f.topics["%DLQ%g"]
	if t == nil {
		return nil, nil
	}
	ms, _, err := f.Store.Read(t.ID(), 0, 0, t.Queues()[0].End(), 100, 1<<20)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, m := range ms {
		d, _ := m.DeadLetter()
		ids, attempts = append(ids, m.ID), append(attempts, d.Attempts)
	}
	return ids, attempts
}

var giveUp = transport.Verdict{Kind: transport.DeadLetter, Reason: "no"}

// A message that leaves is written to the dead letter topic, outside of the lock, and then its
// lease is removed. A repeated request waits for its end.
func TestDeadLetterLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		f.send(message("a", ""))
		s := f.subscribe(false)
		h := f.receive(s)
		repeated := make(chan error, 1)
		f.creating = func() {
			go func() {
				_, err := s.Settle(t.Context(), h, giveUp, 16)
				repeated <- err
			}()
			synctest.Wait()
			select {
			case err := <-repeated:
				t.Errorf("the repeated request returned %v before the message had left", err)
			default:
			}
		}
		out, err := s.Settle(t.Context(), h, giveUp, 16)
		if err != nil || out.To != consume.DeadLetter {
			t.Errorf("settled: %+v, %v", out, err)
		}
		if err := <-repeated; err != nil {
			t.Errorf("the repeated request: %v", err)
		}
		if ids, attempts := f.letters(); !slices.Equal(ids, []string{"a"}) || attempts[0] != 16 || !s.Marked() {
			t.Errorf("the dead letters are %q, delivered %d times, marked %v", ids, attempts, s.Marked())
		}
		if d := s.Status(); d.DeadLetters != 1 || s.Backlog().Messages != 0 {
			t.Errorf("the group has %+v, backlog %+v", d, s.Backlog())
		}
	})
}

// The mark beside a dead letter prevents a second one, as after a crash before the lease was
// removed.
func TestDeadLetterIsWrittenOnce(t *testing.T) {
	t.Parallel()
	f := newSubscriptionFixture(t)
	f.send(message("a", ""))
	s := f.subscribe(false)
	h := f.receive(s)
	policy := s.Policy().Rules()
	_, ds := s.Update(func(p *consume.Progress) {
		if _, err := p.Settle(h, giveUp, 16, &policy, time.Now()); err != nil {
			t.Fatal(err)
		}
	})
	ds[0].Start()
	if err := ds[0].put.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := s.writeDepartures(ds)[0]; err != nil {
		t.Error(err)
	}
	if ids, _ := f.letters(); len(ids) != 1 {
		t.Errorf("the dead letters are %q", ids)
	}
}

// A departure that fails returns the lease: the handle stays valid, and the next request succeeds.
func TestDepartureFails(t *testing.T) {
	t.Parallel()
	f := newSubscriptionFixture(t)
	f.send(message("a", ""))
	s := f.subscribe(false)
	h := f.receive(s)
	f.cannotCreate = errors.New("the disk is full")
	if _, err := s.Settle(t.Context(), h, giveUp, 16); !errors.Is(err, f.cannotCreate) || f.topics["%DLQ%g"] != nil {
		t.Errorf("it returned %v", err)
	}
	if n, err := s.Attempt(h); n != 1 || err != nil {
		t.Errorf("the delivery has attempt %d, %v", n, err)
	}
	f.cannotCreate = nil
	if _, err := s.Settle(t.Context(), h, giveUp, 16); err != nil {
		t.Errorf("again: %v", err)
	}
	if ids, _ := f.letters(); !slices.Equal(ids, []string{"a"}) {
		t.Errorf("the dead letters are %q", ids)
	}
}

// A repeated request fails if the first one does.
func TestRepeatedDeadLetterFailsWithTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newSubscriptionFixture(t)
		f.send(message("a", ""))
		s := f.subscribe(false)
		h := f.receive(s)
		f.cannotCreate = errors.New("no room")
		repeated := make(chan error, 1)
		f.creating = func() {
			f.creating = nil
			go func() {
				_, err := s.Settle(t.Context(), h, giveUp, 16)
				repeated <- err
			}()
			synctest.Wait()
		}
		if _, err := s.Settle(t.Context(), h, giveUp, 16); !errors.Is(err, f.cannotCreate) {
			t.Errorf("the first request: %v", err)
		}
		if err := <-repeated; !errors.Is(err, f.cannotCreate) {
			t.Errorf("the repeated request: %v", err)
		}
	})
}
