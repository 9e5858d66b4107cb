package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// After the end of ctx, a listing releases its letters, so that the next listing finds them before
// their leases end.
func TestCancelledListingReleases(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "a", "b", "c")
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		var last error
		for _, err := range deadletter.List(ctx, p.queue(), deadletter.Filter{}, false) {
			last = err
			cancel(enough)
		}
		assert.That(t, last != nil, "the listing ended without an error")
		assert.Slices(t, "the next listing has", p.left(p.queue()), []string{"a", "b", "c"})
	})
}

// A recording client requires that the journal has the result of a letter that is removed.
type recording struct {
	*rest.Client
	t       *testing.T
	journal string
	removed int
}

func (r *recording) Ack(ctx context.Context, ds []*tidegate.Delivery) []error {
	text, err := os.ReadFile(r.journal)
	assert.NoError(r.t, err)
	for _, d := range ds {
		r.removed++
		if !slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			return strings.Contains(line, `"event":"redriven"`) && strings.Contains(line, fmt.Sprintf(`"message_id":%q`, d.ID))
		}) {
			r.t.Errorf("letter %s is removed, and the journal has no result", d.ID)
		}
	}
	return r.Client.Ack(ctx, ds)
}

// The journal has the result of a letter before the letter is removed. After a crash between the
// two, the next run would otherwise not know that the letter was sent.
func TestResultBeforeRemoval(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "a", "b", "c")
		client := &recording{Client: p.rest, t: t, journal: filepath.Join(t.TempDir(), "journal")}
		q := p.queue()
		q.Transport = client
		report, err := p.redrive(q, deadletter.Options{Journal: client.journal})
		assert.That(t, err == nil && report.Redriven == 3 && client.removed == 3,
			"%+v, %v, and %d letters removed, want 3", report, err, client.removed)
	})
}

// An edited letter, and every letter of a Queue, is sent in the form that its topic accepts: with a
// delivery time in the past for DELAY, as a committed half message for TRANSACTION. A letter with
// as many properties as a message can have is sent too.
func TestFormsOfLetters(t *testing.T) {
	for _, kind := range []settings.TopicType{settings.TopicNormal, settings.TopicDelay, settings.TopicTransaction} {
		t.Run(string(kind), func(t *testing.T) {
			bySource(t, func(t *testing.T, p *place, source func() deadletter.Source) {
				p.CreateTopic("target", settings.Topic{Type: kind})
				properties := map[string]string{}
				for i := range protocol.MaxProperties {
					properties[fmt.Sprint("p", i)] = "v"
				}
				p.Broker.Send(&tidegate.Message{ID: "full", Topic: "orders", Body: []byte("full"), Properties: properties})
				p.giveUp("always", 1)
				p.fail("always", "a", "b")
				report, err := p.redrive(source(), deadletter.Options{To: "target", Sender: p.Client(), Edit: func(*tidegate.Message) error { return nil }})
				assert.That(t, err == nil && report.Redriven == 3 && report.Failed == 0, "%+v, %v", report, err)
				got := bodies(p.receive("audit", "target", 3))
				slices.Sort(got)
				assert.Slices(t, "the target has", got, []string{"a", "b", "full"})
				assert.Equal(t, "are left", len(p.left(source())), 0)
			})
		})
	}
}

// A counting client is one of a RocketMQ: its server continues the count of a letter's attempts,
// and allows most of them.
type counting struct {
	*rest.Client
	most, had int
}

func (c counting) Capabilities(string) transport.Capabilities { return transport.Capabilities{} }

func (c counting) ConsumerSettings(context.Context, string, string) (transport.ConsumerSettings, error) {
	return transport.ConsumerSettings{MaxAttempts: c.most}, nil
}

func (c counting) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	for _, d := range ds {
		d.Attempt += c.had
	}
	return ds, err
}

// If released letters count as attempts, a group with few attempts is rejected before it receives a
// letter. A letter in its last attempt is listed and can be sent back; if it stays, the listing
// ends with an error.
func TestQueueNeedsAttempts(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "a", "b")
		list := func(most, had int) string {
			q := p.queue()
			q.Transport = counting{p.rest, most, had}
			var seen []string
			for l, err := range deadletter.List(t.Context(), q, deadletter.Filter{}, false) {
				switch {
				case errors.Is(err, tidegate.ErrInvalid) && strings.Contains(err.Error(), "%DLQ%undertaker"):
					seen = append(seen, "error")
				case err != nil:
					t.Error(err)
				default:
					seen = append(seen, l.Message.ID)
				}
			}
			return fmt.Sprint(seen)
		}
		for _, tt := range []struct {
			most, had int
			want      string
		}{
			{17, 0, "[error]"}, {99, 0, "[error]"}, {100, 17, "[a b]"}, {1000, 998, "[a b]"}, {1000, 999, "[a b error]"}, {0, 999, "[a b]"}, {-1, 999, "[a b]"},
		} {
			got := list(tt.most, tt.had)
			assert.That(t, got == tt.want, "%d attempts, %d before: listed %s, want %s", tt.most, tt.had, got, tt.want)
		}
		q := p.queue()
		q.Transport = counting{p.rest, 1000, 999}
		report, err := deadletter.Redrive(t.Context(), q, deadletter.Options{Sender: p.rest, To: "orders", Journal: filepath.Join(t.TempDir(), "journal")})
		assert.That(t, err == nil && report.Redriven == 2, "redrive: %+v, %v, want both letters sent back", report, err)
		assert.Slices(t, "came back", bodies(p.receive("billing", "orders", 10)), []string{"a", "b"})
	})
}

// A timeless client is one of a server that does not report when it stored a message.
type timeless struct{ *rest.Client }

func (c timeless) Receive(ctx context.Context, r transport.ReceiveRequest) ([]*tidegate.Delivery, error) {
	ds, err := c.Client.Receive(ctx, r)
	for _, d := range ds {
		d.StoredAt = time.Time{}
	}
	return ds, err
}

// A filter by time sends nothing back, and is an error, if the times of the letters are not known.
func TestTimesAreNotReported(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "a")
		q := p.queue()
		q.Transport = timeless{p.rest}
		for name, f := range map[string]deadletter.Filter{"Since": {Since: time.Now().Add(-time.Hour)}, "Before": {Before: time.Now().Add(-time.Hour)}} {
			report, err := deadletter.Redrive(t.Context(), q, deadletter.Options{Sender: p.rest, To: "orders", Filter: f, Journal: filepath.Join(t.TempDir(), "journal")})
			assert.That(t, errors.Is(err, tidegate.ErrInvalid) && report.Redriven == 0, "%s: %+v, %v, want an error", name, report, err)
		}
		assert.Slices(t, "dead letters without a filter by time", p.left(q), []string{"a"})
	})
}

func TestSummarize(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		p.fail("customer 7 not found", ids("a", 3)...)
		time.Sleep(time.Hour)
		p.fail("customer 8 not found", ids("b", 2)...)
		p.fail("database is down", ids("c", 4)...)
		for _, src := range []deadletter.Source{p.source(), p.queue()} {
			classes, err := deadletter.Summarize(t.Context(), src, deadletter.Filter{})
			assert.MustThat(t, err == nil && len(classes) == 2, "%T: %+v, %v, want 2 classes", src, classes, err)
			c := classes[0]
			if c.Count != 5 || c.Reason != "customer 8 not found" || c.Topic != "orders" || c.Bytes != 20 || len(c.Sample) != 5 ||
				c.Reasons["customer 7 not found"] != 3 || c.Last.Sub(c.First).Round(time.Minute) != time.Hour {
				t.Errorf("%T: %+v", src, c)
			}
			n := 0
			for l, err := range deadletter.List(t.Context(), src, deadletter.Filter{}, false) {
				assert.MustThat(t, err == nil && l.Message.Body == nil && l.BodySize != 0,
					"without bodies: the letter is %+v: %v", l, err)
			}
			for l, err := range deadletter.List(t.Context(), src, deadletter.Filter{Fingerprint: c.Fingerprint, Match: func(l *deadletter.Letter) bool { return l.Message.ID[0] == 'b' }}, true) {
				assert.That(t, err == nil && string(l.Message.Body) == l.Message.ID, "%T: %+v, %v", src, l, err)
				n++
			}
			assert.That(t, n == 2, "%T: %d letters, want 2", src, n)
		}
	})
}

// A list reaches every dead letter, for any number of them.
func TestListsAll(t *testing.T) {
	n := model.Rounds(100_000)
	b := brokertest.New(t)
	p := newPlace(t, b)
	b.CreateTopic(tidegate.DeadLetterTopic("billing"), settings.Topic{})
	for from := 0; from < n; from += 1000 {
		var msgs []*tidegate.Message
		for i := range 1000 {
			msgs = append(msgs, &tidegate.Message{ID: fmt.Sprint(from + i), Topic: tidegate.DeadLetterTopic("billing"), Body: []byte("x")})
		}
		for _, r := range b.Broker.Send(t.Context(), msgs) {
			assert.Must(t, r.Err)
		}
	}
	seen := make(map[string]bool, n)
	for l, err := range deadletter.List(t.Context(), p.source(), deadletter.Filter{}, false) {
		assert.Must(t, err)
		seen[l.Message.ID] = true
	}
	assert.Equal(t, "dead letters were listed", len(seen), n)
}
