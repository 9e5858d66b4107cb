package move

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

func deliver(n int, group string) *tidegate.Delivery {
	return &tidegate.Delivery{Message: tidegate.Message{ID: fmt.Sprintf("id%d", n), Topic: "orders", MessageGroup: group, Body: []byte{byte(n)}}, Attempt: 1}
}

// A fakeSource delivers batches, one for each receive.
type fakeSource struct {
	transport.Receiver // nil: only Receive is used

	mu      sync.Mutex
	batches [][]*tidegate.Delivery
	acked   []string
	lose    bool // acknowledgements fail
}

func (s *fakeSource) Receive(context.Context, transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.batches) == 0 {
		return nil, nil
	}
	first := s.batches[0]
	s.batches = s.batches[1:]
	return first, nil
}

func (s *fakeSource) Ack(_ context.Context, ds []*tidegate.Delivery) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	errs := make([]error, len(ds))
	for i, d := range ds {
		if s.lose {
			errs[i] = errors.New("lost")
			continue
		}
		s.acked = append(s.acked, d.ID)
	}
	return errs
}

// A fakeTarget accepts messages except for those in refuse, or none at all if it is silent.
type fakeTarget struct {
	mu     sync.Mutex
	sent   []string
	refuse string
	silent bool
}

func (f *fakeTarget) SendAsync(ctx context.Context, m *tidegate.Message, done func(tidegate.Receipt, error)) error {
	if f.silent {
		go func() {
			<-ctx.Done()
			done(tidegate.Receipt{}, context.Cause(ctx))
		}()
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.ID == f.refuse {
		go done(tidegate.Receipt{}, errors.New("too large"))
		return nil
	}
	f.sent = append(f.sent, m.ID)
	go done(tidegate.Receipt{}, nil)
	return nil
}

func options(t *testing.T, s *fakeSource, f *fakeTarget, journal string) Options {
	t.Helper()
	j, err := OpenJournal(journal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return Options{Source: s, Target: f, Group: "billing", Topic: "orders", ToTopic: "moved", Workers: 1, Lease: time.Minute, Journal: j,
		Done: func(context.Context, time.Duration) (bool, error) { return true, nil }}
}

// After a message that the target rejects, no later message of its message group is sent, and
// neither is acknowledged. The others are.
func TestRejectedMessageStopsItsGroup(t *testing.T) {
	s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a"), deliver(2, "a"), deliver(3, "a"), deliver(4, "b"), deliver(5, "")}}}
	f := &fakeTarget{refuse: "id2"}
	r, err := Run(t.Context(), options(t, s, f, filepath.Join(t.TempDir(), "j")))
	if err == nil || err.Error() != "message id2: too large" || r.Moved != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	slices.Sort(f.sent)
	if want := []string{"id1", "id4", "id5"}; !slices.Equal(f.sent, want) || !slices.Equal(s.acked, want) {
		t.Errorf("sent %q, acknowledged %q, want %q", f.sent, s.acked, want)
	}
}

// A message whose acknowledgement was lost is not sent again, also not by a run that continues the
// journal, and also if the end of the journal was cut off.
func TestLostAcknowledgement(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "j")
	s, f := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "")}, {deliver(1, "")}}, lose: true}, &fakeTarget{}
	r, err := Run(t.Context(), options(t, s, f, journal))
	if err != nil || r.Moved != 1 || r.Earlier != 1 || r.Unacked != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	file, err := os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"event":"sent","ids":["id`); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	s = &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, ""), deliver(2, "")}}}
	r, err = Run(t.Context(), options(t, s, f, journal))
	if err != nil || r.Moved != 1 || r.Earlier != 1 || !slices.Equal(f.sent, []string{"id1", "id2"}) || !slices.Equal(s.acked, []string{"id1", "id2"}) {
		t.Errorf("%+v, %v; sent %q, acknowledged %q", r, err, f.sent, s.acked)
	}
	if err := os.WriteFile(journal, []byte("a note\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenJournal(journal); err == nil {
		t.Error("a file that is no journal was opened")
	}
}

// A target that is silent ends the run before the leases end: a message that is sent later could
// pass one that was delivered again.
func TestSendEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeSource{batches: [][]*tidegate.Delivery{{deliver(1, "a")}}}
		began := time.Now()
		_, err := Run(t.Context(), options(t, s, &fakeTarget{silent: true}, filepath.Join(t.TempDir(), "j")))
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 50*time.Second || len(s.acked) > 0 {
			t.Errorf("%v after %v, acknowledged %q", err, took, s.acked)
		}
	})
}

func TestMessage(t *testing.T) {
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	d := deliver(1, "a")
	d.Keys, d.Tag, d.StoredAt, d.TraceContext = []string{"k"}, "t", at, "00-x"
	d.Properties = map[string]string{"color": "red", "DLQ_REASON": "why"}
	m := Message(d, "moved", false)
	if m.ID != "id1" || m.Topic != "moved" || !slices.Equal(m.Keys, []string{"k", "id1"}) || m.Tag != "t" || m.MessageGroup != "a" || m.TraceContext != "00-x" ||
		len(m.Properties) != 1 || !m.DeliverAt.IsZero() || len(d.Keys) != 1 {
		t.Errorf("the message is %+v", m)
	}
	if m := Message(d, "moved", true); !m.DeliverAt.Equal(at) {
		t.Errorf("a message for a topic with delays is delivered at %v", m.DeliverAt)
	}
	d.Keys = []string{"id1"}
	if m := Message(d, "moved", false); m.ID == "id1" || m.ID == "" || !slices.Equal(m.Keys, []string{"id1"}) {
		t.Errorf("a message that was moved before is %+v", m)
	}
}
