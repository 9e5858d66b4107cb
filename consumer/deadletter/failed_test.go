package deadletter_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
)

// A letter that failed was not sent back. If it is gone at the next run, for example because an
// operator has purged it, the job does not record it as sent.
func TestFailedLettersAreNotRecovered(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "m")
		assert.Must(t, p.DeleteTopic(t.Context(), "orders"))
		o := deadletter.Options{Journal: filepath.Join(t.TempDir(), "journal"), MaxFailureShare: 1}
		report, err := p.redrive(p.source(), o)
		assert.MustThat(t, err == nil && report.Failed == 1 && report.Redriven == 0,
			"%+v, %v; want the letter failed, because its topic is gone", report, err)
		if _, err := p.c.PurgeDeadLetters(t.Context(), "billing", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m"}}}); err != nil {
			t.Fatal(err)
		}
		report, err = p.redrive(p.source(), o)
		assert.That(t, err == nil && report.Recovered == 0 && report.Redriven == 0, "%+v, %v; want nothing sent back", report, err)
		if text, err := os.ReadFile(o.Journal); err != nil || strings.Contains(string(text), `"event":"redriven"`) {
			t.Errorf("the journal records the letter as sent, or cannot be read (%v):\n%s", err, text)
		}
	})
}

// A negative MaxFailureShare stops the run at one failure among at least ten results.
func TestNegativeMaxFailureSharePermitsNone(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", ids("m", 20)...)
		edits := 0
		report, err := p.redrive(p.source(), deadletter.Options{MaxFailureShare: -1, Edit: func(*tidegate.Message) error {
			if edits++; edits == 5 {
				return errors.New("by the test")
			}
			return nil
		}})
		assert.That(t, errors.Is(err, deadletter.ErrTooManyFailures) && report.Redriven == 9 && report.Failed == 1,
			"%+v, %v; want 9 sent back, 1 failed, and ErrTooManyFailures", report, err)
	})
}

// A queue of a group whose topic of dead letters does not exist has no letters. This is no error.
func TestQueueWithoutATopic(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		assert.Equal(t, "letters", len(p.left(p.queue())), 0)
		report, err := p.redrive(p.queue(), deadletter.Options{})
		assert.That(t, err == nil && report.Seen == 0, "%+v, %v", report, err)
	})
}
