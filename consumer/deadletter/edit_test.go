package deadletter_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
)

// change edits every field that an edit can change.
func change(m *tidegate.Message) error {
	m.Body, m.Tag, m.Keys = []byte("new "+string(m.Body)), "fixed", []string{"k1", "k2"}
	delete(m.Properties, "p")
	m.Properties["q"] = "w"
	return nil
}

// Edited messages go to the group of the dead letters alone, without a Sender, each once: also if
// every response is lost, and if the job runs again. Without ToGroupOnly all groups receive them.
func TestEditToOneGroup(t *testing.T) {
	for name, tt := range map[string]struct{ alone, loses bool }{"group": {true, false}, "group, lost responses": {true, true}, "all groups": {false, false}} {
		placedAs(t, name, func(t *testing.T, p *place) {
			p.fail("always", ids("m", 3)...)
			if got := p.receive("audit", "orders", 3); len(got) != 3 {
				t.Fatalf("the other group received %d messages before the redrive", len(got))
			} else if errs := p.Ack(t.Context(), got); errors.Join(errs...) != nil {
				t.Fatal(errs)
			}
			var sent []string
			o := deadletter.Options{ToGroupOnly: tt.alone, Edit: change, Journal: filepath.Join(t.TempDir(), "journal"), OnEvent: func(e deadletter.Event) {
				if e.Event == "redriven" && e.Edited {
					sent = append(sent, e.SentAs)
				}
			}}
			if !tt.alone {
				o.Sender = p.rest
			}
			src := p.source()
			if tt.loses {
				src = p.tap(func() {}, func() bool { return true })
			}
			for run, want := range []int{3, 0} {
				if report, err := deadletter.Redrive(t.Context(), src, o); err != nil || report.Redriven != want || report.Failed != 0 || report.Recovered != 0 {
					t.Fatalf("run %d: %+v, %v, want %d sent back", run, report, err, want)
				}
			}
			anew := []string{"m000.redrive-1", "m001.redrive-1", "m002.redrive-1"}
			assert.Slices(t, "the events have the new IDs", sent, anew)
			var got []string
			for _, d := range p.receive("billing", "orders", 10) {
				got = append(got, d.ID)
				if d.Topic != "orders" || d.Tag != "fixed" || !slices.Equal(d.Keys, []string{"k1", "k2"}) || d.Properties["p"] != "" || d.Properties["q"] != "w" || string(d.Body) != "new "+d.ID[:4] {
					t.Errorf("%+v came", d)
				}
			}
			if slices.Sort(got); !slices.Equal(got, anew) {
				t.Errorf("the group received %q, want %q", got, anew)
			}
			others := 3
			if tt.alone {
				others = 0
			}
			assert.Equal(t, "the other group received messages", len(p.receive("audit", "orders", 10)), others)
			assert.Equal(t, "are left", len(p.left(p.source())), 0)
		})
	}
}

// Two letters with one ID are both edited and sent to the group, each with its own body, and under
// IDs of their own. A letter that is removed after it was listed counts as failed, and the other
// one with its ID stays.
func TestEditOfTwoLettersWithOneID(t *testing.T) {
	for _, removes := range []bool{false, true} {
		placedAs(t, fmt.Sprint(removes), func(t *testing.T, p *place) {
			p.twins()
			o := deadletter.Options{ToGroupOnly: true, MaxFailureShare: 1, Edit: func(m *tidegate.Message) error {
				if removes && string(m.Body) == "a" {
					if _, err := p.c.PurgeDeadLetters(t.Context(), "billing", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{Reason: "a"}}); err != nil {
						return err
					}
				}
				m.Body = append(m.Body, '!')
				return nil
			}}
			want, wantIDs, failed, renamed := []string{"a!", "b!"}, 2, 0, 1
			if removes {
				want, wantIDs, failed = []string{"b!"}, 1, 1
			}
			report, err := p.redrive(p.source(), o)
			assert.That(t, err == nil && report.Redriven == len(want) && report.Failed == failed && report.Renamed == renamed,
				"%+v, %v, want %d sent and %d failed", report, err, len(want), failed)
			ds, names := p.receive("billing", "short", 10), map[string]bool{}
			for _, d := range ds {
				names[d.ID] = true
			}
			got := bodies(ds)
			if slices.Sort(got); !slices.Equal(got, want) || len(names) != wantIDs {
				t.Errorf("%q came with the IDs %v, want %q", got, names, want)
			}
		})
	}
}

// A job ends between the write of the broker and its own record. Its next run recovers the letters,
// and sends none of them again.
func TestEditToOneGroupAfterACrash(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", "m000", "m001")
		journal := filepath.Join(t.TempDir(), "journal")
		o := deadletter.Options{ToGroupOnly: true, Edit: change, Journal: journal}
		assert.Must(t, assert.Err(p.redrive(p.source(), o)))
		cutAfterIntent(t, journal)
		report, err := p.redrive(p.source(), o)
		assert.That(t, err == nil && report.Recovered == 1 && report.Redriven == 0 && report.Unresolved == 0,
			"%+v, %v, want one recovered letter", report, err)
		assert.Equal(t, "messages came", len(p.receive("billing", "orders", 10)), 2)
	})
}

// An edit that makes a message which no server accepts, or one with another ID or topic, sends
// nothing, and its letter stays.
func TestInvalidEditStays(t *testing.T) {
	many := func(m *tidegate.Message) {
		for i := range protocol.MaxProperties + 1 {
			m.Properties[fmt.Sprint("p", i)] = "v"
		}
	}
	for name, tt := range map[string]struct {
		edit func(*tidegate.Message)
		says string
	}{
		"no body":         {func(m *tidegate.Message) { m.Body = nil }, "the body is empty"},
		"ID":              {func(m *tidegate.Message) { m.ID = "another" }, "changed the ID or topic"},
		"topic":           {func(m *tidegate.Message) { m.Topic = "another" }, "changed the ID or topic"},
		"tag":             {func(m *tidegate.Message) { m.Tag = "a|b" }, "tag"},
		"key":             {func(m *tidegate.Message) { m.Keys = []string{" "} }, "key"},
		"empty property":  {func(m *tidegate.Message) { m.Properties["q"] = "" }, `the value of "q" is empty`},
		"system property": {func(m *tidegate.Message) { m.Properties["TAGS"] = "x" }, `"TAGS" is empty, reserved`},
		"properties":      {many, "the limit is 128"},
		"size":            {func(m *tidegate.Message) { m.Properties["q"] = strings.Repeat("x", protocol.MaxPropertiesSize) }, "the limit is 16384"},
	} {
		placedAs(t, name, func(t *testing.T, p *place) {
			p.fail("always", "m000")
			for _, alone := range []bool{false, true} {
				var why string
				report, err := p.redrive(p.source(), deadletter.Options{ToGroupOnly: alone, MaxFailureShare: 1, Edit: func(m *tidegate.Message) error {
					tt.edit(m)
					return nil
				}, OnEvent: func(e deadletter.Event) {
					if e.Event == "failed" {
						why = e.Why
					}
				}})
				assert.That(t, err == nil && report.Failed == 1 && strings.Contains(why, tt.says),
					"%+v, %v: the letter failed with %q, want %q", report, err, why, tt.says)
				assert.Equal(t, "are left", len(p.left(p.source())), 1)
			}
		})
	}
}

// cutAfterIntent removes the lines of a journal that follow its last intent.
func cutAfterIntent(t *testing.T, journal string) {
	t.Helper()
	text := assert.Value(os.ReadFile(journal))(t)
	at := strings.LastIndex(string(text), `"event":"intent"`)
	end := strings.Index(string(text[at:]), "\n")
	assert.Must(t, os.WriteFile(journal, text[:at+end+1], 0o600))
}
