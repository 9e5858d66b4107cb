package deadletter_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
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
		placedAs(t, tt.name, func(t *testing.T, p *place) {
			p.CreateTopic("returns", settings.Topic{})
			for _, topic := range []string{"orders", "returns"} {
				p.die(topic, "17", topic, "always")
			}
			journal, redriven := filepath.Join(t.TempDir(), "journal"), 0
			for _, o := range tt.runs {
				o.Journal = journal
				report, err := p.redrive(tt.source(p), o)
				assert.That(t, err == nil && report.Failed+report.Returned+report.Recovered+report.Unresolved == 0,
					"%+v, %v", report, err)
				redriven += report.Redriven
			}
			assert.Equal(t, "letters sent back", redriven, 2)
			for _, topic := range []string{"orders", "returns"} {
				got := bodies(p.receive("billing", topic, 1))
				assert.That(t, slices.Equal(got, []string{topic}), "%s: %q came, want its message", topic, got)
			}
			assert.Equal(t, "are left", len(p.left(tt.source(p))), 0)
		})
	}
}

// A topic can store two messages with one ID, one after the end of the other's duplicate window.
// Both dead letters are sent back, also if the target remembers the ID of the first, if the run is
// interrupted between the two, and if one of them stays or is not selected.
func TestTwoLettersWithOneID(t *testing.T) {
	broker := func(p *place) deadletter.Source { return p.source() }
	queue := func(p *place) deadletter.Source { return p.queue() }
	edit := func(*tidegate.Message) error { return nil }
	for _, tt := range []struct {
		name    string
		source  func(*place) deadletter.Source
		runs    []deadletter.Options
		renamed int
		left    []string
	}{
		{"broker", broker, []deadletter.Options{{}}, 0, nil},
		{"broker, one letter in each run", broker, []deadletter.Options{{Limit: 1}, {}}, 0, nil},
		{"broker, one letter in each request", broker, []deadletter.Options{{PerSecond: 1}}, 0, nil},
		{"broker, edited", broker, []deadletter.Options{{Edit: edit}}, 1, nil},
		{"broker, edited in two runs", broker, []deadletter.Options{{Edit: edit, Limit: 1}, {Edit: edit}}, 1, nil},
		{"broker, the second alone", broker, []deadletter.Options{{Filter: deadletter.Filter{Reason: "b"}}}, 0, []string{"a"}},
		{"broker, the second alone, edited", broker, []deadletter.Options{{Edit: edit, Filter: deadletter.Filter{Reason: "b"}}}, 0, []string{"a"}},
		{"broker, the second alone, by a function", broker, []deadletter.Options{{Filter: deadletter.Filter{Match: func(l *deadletter.Letter) bool { return l.Origin.Reason == "b" }}}}, 0, []string{"a"}},
		{"broker, the first fails", broker, []deadletter.Options{{MaxFailureShare: 1, Edit: func(m *tidegate.Message) error {
			if string(m.Body) == "a" {
				return errors.New("not this one")
			}
			return nil
		}}}, 1, []string{"a"}},
		{"queue", queue, []deadletter.Options{{}}, 1, nil},
		{"queue in two runs", queue, []deadletter.Options{{Limit: 1}, {}}, 1, nil},
		{"queue, the second alone", queue, []deadletter.Options{{Filter: deadletter.Filter{Reason: "b"}}}, 0, []string{"a"}},
	} {
		placedAs(t, tt.name, func(t *testing.T, p *place) {
			p.twins()
			p.CreateTopic("long", settings.Topic{})
			journal, redriven, renamed := filepath.Join(t.TempDir(), "journal"), 0, 0
			for _, o := range tt.runs {
				o.Journal, o.To = journal, "long"
				report, err := p.redrive(tt.source(p), o)
				assert.That(t, err == nil && report.Returned+report.Recovered+report.Unresolved == 0, "%+v, %v", report, err)
				redriven, renamed = redriven+report.Redriven, renamed+report.Renamed
			}
			assert.That(t, redriven == 2-len(tt.left) && renamed == tt.renamed,
				"%d letters sent back, %d under a new ID, want %d and %d", redriven, renamed, 2-len(tt.left), tt.renamed)
			want := slices.DeleteFunc([]string{"a", "b"}, func(body string) bool { return slices.Contains(tt.left, body) })
			got := bodies(p.receive("audit", "long", 2))
			slices.Sort(got)
			assert.Slices(t, "the target has", got, want)
			if left := p.left(tt.source(p)); len(left) != len(tt.left) {
				t.Errorf("%q are left, want %q", left, tt.left)
			}
			for l, err := range deadletter.List(t.Context(), tt.source(p), deadletter.Filter{}, true) {
				assert.That(t, err == nil && slices.Contains(tt.left, string(l.Message.Body)),
					"the letter %q is left (%v), want %q", l.Message.Body, err, tt.left)
			}
		})
	}
}

// A letter that somebody removes during the run is not sent, and its request does not remove an
// earlier letter with the same ID, which was not sent.
func TestSecondLetterWithOneIDIsGone(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.twins()
		report, err := p.redrive(p.source(), deadletter.Options{MaxFailureShare: 1, Edit: func(m *tidegate.Message) error {
			if string(m.Body) == "b" {
				return nil
			}
			_, err := p.c.PurgeDeadLetters(t.Context(), "billing", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Reason: "b"}})
			return errors.Join(err, errors.New("not this one"))
		}})
		assert.That(t, err == nil && report.Failed == 1 && report.Redriven == 0, "%+v, %v, want one failed letter", report, err)
		assert.Equal(t, "are left", len(p.left(p.source())), 1)
	})
}

// The search for the second of two letters with one ID ends if the server repeats a cursor.
func TestSecondLetterWithOneIDAndRepeatedCursors(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests > 100 {
			t.Error("the search goes on")
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		letter := `{"message_id":"17","queue":0,"offset":%d,"origin":{"topic":"orders","group":"billing","offset":%d}}`
		switch {
		case r.Method != http.MethodGet:
			fmt.Fprint(w, `{"redriven":1,"count":1}`)
		case r.URL.Query().Get("limit") != "1":
			fmt.Fprintf(w, `{"dead_letters":[`+letter+","+letter+`]}`, 1, 1, 2, 2)
		default:
			fmt.Fprintf(w, `{"dead_letters":[`+letter+`],"next":"old"}`, 1, 1)
		}
	}))
	defer server.Close()
	c, err := admin.New(server.URL, admin.Options{})
	assert.Must(t, err)
	defer c.Close()
	_, err = deadletter.Redrive(t.Context(), deadletter.Broker{Client: c, Group: "billing"}, deadletter.Options{Journal: filepath.Join(t.TempDir(), "journal")})
	assert.That(t, err != nil && strings.Contains(err.Error(), "again"), "the error is %v, want that of a repeated cursor", err)
}
