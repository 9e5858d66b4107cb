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

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
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
