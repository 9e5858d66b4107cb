package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// A load sends messages from several goroutines until it is ended.
type load struct {
	producer *producer.Producer
	stop     chan struct{}
	senders  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	changed *sync.Cond
	sent    []string
	err     error
	longest time.Duration
}

func newLoad(ctx context.Context, t transport.Transport) (*load, error) {
	p, err := producer.New(t, producer.Options{})
	if err != nil {
		return nil, err
	}
	l := &load{producer: p, stop: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	for range 8 {
		l.senders.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				l.send(ctx)
			}
		})
	}
	return l, nil
}

func (l *load) send(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	r, err := l.producer.Send(ctx, &tidegate.Message{Topic: topic, Body: []byte("3 apples")})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.err = err
	} else {
		l.sent = append(l.sent, r.MessageID)
	}
	l.longest = max(l.longest, time.Since(began))
	l.changed.Broadcast()
}

// more returns after 300 more messages were accepted, or a send has failed.
func (l *load) more() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for goal := len(l.sent) + 300; len(l.sent) < goal && l.err == nil; {
		l.changed.Wait()
	}
}

// end ends the load and returns the IDs of the accepted messages.
func (l *load) end() ([]string, error) {
	close(l.stop)
	l.senders.Wait()
	return l.sent, errors.Join(l.err, l.producer.Close())
}

// A ledger counts the effects of messages by ID.
type ledger struct {
	mu   sync.Mutex
	seen map[string]int
}

func newLedger() *ledger { return &ledger{seen: map[string]int{}} }

func (s *ledger) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[id]++
}

// count returns the messages without an effect, and those with more than one.
func (s *ledger) count(ids []string) (none, several int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		switch n := s.seen[id]; {
		case n == 0:
			none++
		case n > 1:
			several++
		}
	}
	return none, several
}

// await returns once each of the messages had its effect.
func (s *ledger) await(ctx context.Context, sent []string) error {
	for {
		none, several := s.count(sent)
		if several > 0 {
			return fmt.Errorf("%d of %d messages had their effect more than once", several, len(sent))
		}
		if none == 0 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d of %d accepted messages were lost", none, len(sent))
		}
	}
}
