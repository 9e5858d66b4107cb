package deadletter_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

// A journal that ends with intents is that of a crash. A letter that is not there any more was sent
// back, one that is there is sent now, and one that came back meanwhile is not sent again.
func TestAfterACrash(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		p.fail("always", "gone", "there", "back")
		if _, err := p.c.RedriveDeadLetters(t.Context(), "billing", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"back"}}}); err != nil {
			t.Fatal(err)
		}
		p.giveUp("always", 1)
		if _, err := p.c.PurgeDeadLetters(t.Context(), "billing", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"gone"}}}); err != nil {
			t.Fatal(err)
		}
		journal := filepath.Join(t.TempDir(), "journal")
		text := `{"event":"begin","group":"billing"}` + "\n"
		for _, id := range []string{"gone", "there", "back"} {
			text += fmt.Sprintf(`{"event":"intent","message_id":%q,"generation":0,"origin":"orders","topic":"orders"}`, id) + "\n"
		}
		if err := os.WriteFile(journal, []byte(text+`{"event":"redri`), 0o600); err != nil {
			t.Fatal(err)
		}
		report, err := p.redrive(p.source(), deadletter.Options{Journal: journal, MaxFailureShare: 1})
		if err != nil || report.Redriven != 1 || report.Recovered != 2 || report.Returned != 1 {
			t.Errorf("%+v, %v, want 1 sent, 2 found and 1 returned", report, err)
		}
		if got := bodies(p.receive("billing", "orders", 10)); !slices.Equal(got, []string{"there"}) {
			t.Errorf("%q came, want the one that was there", got)
		}
	})
}

// A deaf connection loses the broker's response to a POST.
type deaf struct {
	net.Conn
	post *atomic.Bool
}

func (d deaf) Write(b []byte) (int, error) {
	d.post.Store(bytes.HasPrefix(b, []byte("POST")))
	return d.Conn.Write(b)
}

func (d deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.post.Load() && err == nil {
		d.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// The response to every redrive is lost. The letters that have left were sent back.
func TestLostResponses(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		p.fail("always", ids("m", 50)...)
		c, err := admin.New(b.HTTPAddress(), admin.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := b.DialHTTP(ctx, addr)
			return deaf{conn, new(atomic.Bool)}, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		report, err := p.redrive(deadletter.Broker{Client: c, Group: "billing"}, deadletter.Options{})
		if err != nil || report.Redriven != 50 || report.Failed != 0 {
			t.Errorf("%+v, %v, want 50", report, err)
		}
		if got := bodies(p.receive("billing", "orders", 100)); !slices.Equal(got, ids("m", 50)) {
			t.Errorf("%d messages came, want each of 50 once", len(got))
		}
	})
}

// An old connection renames the parameter sent_as, so that the broker rejects it as older ones do.
type old struct {
	net.Conn
	rejected *atomic.Int64
}

func (o old) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("sent_as=")) {
		o.rejected.Add(1)
		b = bytes.Replace(b, []byte("sent_as="), []byte("sent_xy="), 1)
	}
	return o.Conn.Write(b)
}

// A broker that does not know sent_as loses an edited letter as others do.
func TestEditOnOlderBroker(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		p.fail("always", ids("m", 3)...)
		var rejected atomic.Int64
		c, err := admin.New(b.HTTPAddress(), admin.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := b.DialHTTP(ctx, addr)
			return old{conn, &rejected}, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		report, err := p.redrive(deadletter.Broker{Client: c, Group: "billing"}, deadletter.Options{Edit: func(*tidegate.Message) error { return nil }})
		if err != nil || report.Redriven != 3 || rejected.Load() != 3 {
			t.Errorf("%+v, %v, want 3 sent and each first removal rejected", report, err)
		}
		if left := p.left(p.source()); len(left) != 0 {
			t.Errorf("%q are left in the dead letters", left)
		}
	})
}

func TestRedriveRefuses(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		other := filepath.Join(t.TempDir(), "other")
		if err := os.WriteFile(other, []byte("{\"event\":\"begin\",\"group\":\"shipping\"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		text := filepath.Join(t.TempDir(), "text")
		if err := os.WriteFile(text, []byte("dear diary\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for name, tt := range map[string]struct {
			src  deadletter.Source
			o    deadletter.Options
			says string
		}{
			"no source":             {nil, deadletter.Options{}, "source"},
			"no client":             {deadletter.Broker{Group: "billing"}, deadletter.Options{}, "Broker.Client"},
			"group":                 {deadletter.Broker{Client: p.c, Group: "a b"}, deadletter.Options{}, "Group"},
			"no transport":          {deadletter.Queue{Group: "billing", As: "x"}, deadletter.Options{}, "Queue.Transport"},
			"no group of its own":   {deadletter.Queue{Transport: p.rest, Group: "billing"}, deadletter.Options{}, "Queue.As"},
			"lease":                 {p.queue(), deadletter.Options{Journal: "x", Sender: p.rest, PerSecond: 0.1}, "Queue.Lease"},
			"no sender":             {p.queue(), deadletter.Options{Journal: "x"}, "Options.Sender"},
			"edits without sender":  {p.source(), deadletter.Options{Journal: "x", Edit: func(*tidegate.Message) error { return nil }}, "Options.Sender"},
			"no journal":            {p.source(), deadletter.Options{}, "Options.Journal"},
			"rate":                  {p.source(), deadletter.Options{PerSecond: -1}, "Options.PerSecond"},
			"limit":                 {p.source(), deadletter.Options{Limit: -1}, "Options.Limit"},
			"generations":           {p.source(), deadletter.Options{MaxGenerations: 4}, "Options.MaxGenerations"},
			"failures":              {p.source(), deadletter.Options{MaxFailureShare: 1.5}, "Options.MaxFailureShare"},
			"topic":                 {p.source(), deadletter.Options{To: "a b"}, "Options.To"},
			"one group of a queue":  {p.queue(), deadletter.Options{Sender: p.rest, Journal: "x", ToGroupOnly: true}, "Options.ToGroupOnly"},
			"one group and a topic": {p.source(), deadletter.Options{Journal: "x", ToGroupOnly: true, To: "orders"}, "Options.ToGroupOnly"},
			"a journal of others":   {p.source(), deadletter.Options{Journal: other}, `"shipping"`},
			"a file of other kinds": {p.source(), deadletter.Options{Journal: text}, "line 1"},
		} {
			if _, err := deadletter.Redrive(t.Context(), tt.src, tt.o); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %q", name, err, tt.says)
			}
		}
	})
}
