package deadletter_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
)

// Letters of two topics can have the same message ID. Each is sent back to its own topic, also if a
// filter selects the other one only at the next run of the job.
func TestSameIDInTwoTopics(t *testing.T) {
	broker := func(p *place) deadletter.Source { return p.source() }
	queue := func(p *place) deadletter.Source { return p.queue() }
	for _, tt := range []struct {
		name   string
		source func(*place) deadletter.Source
		runs   []deadletter.Options
	}{
		{"broker", broker, []deadletter.Options{{}}},
		{"broker, one letter in each request", broker, []deadletter.Options{{PerSecond: 1}}},
		{"broker, edited", broker, []deadletter.Options{{Edit: func(*tidegate.Message) error { return nil }}}},
		{"broker, the second topic first", broker, []deadletter.Options{{Filter: deadletter.Filter{Topic: "returns"}}, {}}},
		{"queue", queue, []deadletter.Options{{}}},
		{"queue, the second topic first", queue, []deadletter.Options{{Filter: deadletter.Filter{Topic: "returns"}}, {}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
				p := newPlace(t, b)
				p.CreateTopic("returns", settings.Topic{})
				for _, topic := range []string{"orders", "returns"} {
					p.Broker.Send(&tidegate.Message{ID: "17", Topic: topic, Body: []byte(topic)})
					for _, d := range p.receive("billing", topic, 1) {
						if _, err := p.DeadLetter(t.Context(), d, "always"); err != nil {
							t.Fatal(err)
						}
					}
				}
				journal, redriven := filepath.Join(t.TempDir(), "journal"), 0
				for _, o := range tt.runs {
					o.Journal = journal
					report, err := p.redrive(tt.source(p), o)
					if err != nil || report.Failed+report.Returned+report.Recovered+report.Unresolved != 0 {
						t.Errorf("%+v, %v", report, err)
					}
					redriven += report.Redriven
				}
				if redriven != 2 {
					t.Errorf("%d letters sent back, want both", redriven)
				}
				for _, topic := range []string{"orders", "returns"} {
					if got := bodies(p.receive("billing", topic, 1)); !slices.Equal(got, []string{topic}) {
						t.Errorf("%s: %q came, want its message", topic, got)
					}
				}
				if left := p.left(tt.source(p)); len(left) != 0 {
					t.Errorf("%q are left", left)
				}
			})
		})
	}
}
