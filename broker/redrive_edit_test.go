package broker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// edit redrives the first dead letter of g with an edit.
func edit(t *testing.T, b *broker.Broker, alone bool, e status.DeadLetterEdit) (status.DeadLetterRedrive, error) {
	t.Helper()
	page, err := b.DeadLetters("g", status.DeadLetterQuery{})
	if err != nil || len(page.DeadLetters) == 0 {
		t.Fatalf("%+v, %v", page, err)
	}
	l := page.DeadLetters[0]
	e.Queue, e.Offset = l.Queue, l.Offset
	return b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{l.MessageID}}, ToGroupOnly: alone, Edit: &e})
}

// An edited letter comes with its changes and a new ID, to the group alone or to all groups. It
// keeps the rest, also through a restart and further failures and edits. The trace of the first
// message leads to the new one.
func TestEditedRedrive(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{true, false} {
		for name, group := range map[string]settings.Group{
			"no retry topics": {}, "retry topics": {RetryTopic: settings.RetryTopic{Enabled: true, DeadLetterTopic: "%DLQ%g"}},
		} {
			t.Run(fmt.Sprint(name, ", alone: ", alone), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fs := vfs.NewMem()
					b := open(t, broker.Options{Dir: "data"}.On(fs))
					putTopic(t, b, "t", settings.Topic{Queues: 2})
					putGroup(t, b, "g", group)
					nothing(t, b, "g", "t")
					nothing(t, b, "h", "t")
					kill(t, b, &tidegate.Message{ID: "m", Topic: "t", Tag: "tag", Keys: []string{"k"}, Properties: map[string]string{"p": "v", "r": "s"}, Body: []byte("x")})
					ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", "t")})
					tag, value := "", "w"
					for round := 1; round <= 2; round++ {
						id, body := fmt.Sprint("m.redrive-", round), fmt.Sprint("body ", round)
						done, err := edit(t, b, alone, status.DeadLetterEdit{BodyText: body, Tag: &tag, Keys: []string{}, Properties: map[string]*string{"p": &value, "r": nil}})
						if err != nil || done != (status.DeadLetterRedrive{Redriven: 1, SentAs: id}) {
							t.Fatalf("round %d: %+v, %v", round, done, err)
						}
						if left := listLetters(t, b, status.DeadLetterFilter{}); len(left) > 0 {
							t.Errorf("round %d: %v are dead letters still", round, left)
						}
						f := fateOfGroup(t, b, "g")
						if f.RedrivenAs != id && round == 1 || alone && f.Topic != "%RETRY%g_t" {
							t.Errorf("round %d: the trace has %+v", round, f)
						}
						b = reopen(t, b, fs)
						if alone {
							nothing(t, b, "h", "t")
						} else {
							ackDeliveries(t, b, []*tidegate.Delivery{one(t, b, "h", "t")})
						}
						d := one(t, b, "g", "t")
						if d.ID != id || d.Topic != "t" || d.Attempt != 1 || d.Tag != "" || len(d.Keys) > 0 || string(d.Body) != body ||
							d.Properties["p"] != "w" || d.Properties["r"] != "" || d.Properties[protocol.PropertyDeadLetterRedrives] != fmt.Sprint(round) {
							t.Fatalf("round %d: %+v", round, d)
						}
						if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: time.Minute}); err != nil {
							t.Fatal(err)
						}
						elapse(time.Minute)
						if d = one(t, b, "g", "t"); d.ID != id || d.Attempt != 2 {
							t.Errorf("round %d: after a retry %+v", round, d)
						}
						if _, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "again"}); err != nil {
							t.Fatal(err)
						}
						page, err := b.DeadLetters("g", status.DeadLetterQuery{})
						if err != nil || len(page.DeadLetters) != 1 || page.DeadLetters[0].Origin.Topic != "t" || page.DeadLetters[0].MessageID != id || page.DeadLetters[0].Origin.Redrives != round {
							t.Fatalf("round %d: %+v, %v", round, page, err)
						}
					}
				})
			})
		}
	}
}

// An edit that cannot be executed exactly is rejected or has no effect, and the letter stays as it
// is.
func TestEditedRedriveRejects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{MaxBodySize: 1000})
		putTopic(t, b, "t", settings.Topic{})
		putGroup(t, b, "g", settings.Group{})
		kill(t, b, &tidegate.Message{ID: "m", Topic: "t", Properties: map[string]string{"p": "v"}, Body: []byte("x")})
		text := func(s string) *string { return &s }
		var many []string
		for range 200 {
			many = append(many, strings.Repeat("k", 100))
		}
		for name, tt := range map[string]struct {
			e    status.DeadLetterEdit
			says string
		}{
			"two bodies":      {status.DeadLetterEdit{Body: []byte("a"), BodyText: "a"}, "one of the two"},
			"large body":      {status.DeadLetterEdit{Body: make([]byte, 1001)}, "the limit is 1000"},
			"tag":             {status.DeadLetterEdit{Tag: text("a|b")}, "tag"},
			"blank key":       {status.DeadLetterEdit{Keys: []string{" "}}, "key"},
			"keys":            {status.DeadLetterEdit{Keys: many}, "16384"},
			"empty property":  {status.DeadLetterEdit{Properties: map[string]*string{"p": text("")}}, "is empty"},
			"count":           {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyDeadLetterRedrives: text("0")}}, "DLQ_REDRIVES"},
			"count removed":   {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyDeadLetterRedrives: nil}}, "DLQ_REDRIVES"},
			"system property": {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyRealTopic: text("other")}}, "REAL_TOPIC"},
			"origin removed":  {status.DeadLetterEdit{Properties: map[string]*string{protocol.PropertyDeadLetterTopic: nil}}, "DLQ_ORIGIN_TOPIC"},
			"id":              {status.DeadLetterEdit{ID: "a\x1bb"}, "control character"},
		} {
			for _, alone := range []bool{true, false} {
				if done, err := edit(t, b, alone, tt.e); err == nil || !strings.Contains(err.Error(), tt.says) || done.Redriven != 0 || tidegate.Classify(err) == tidegate.ClassTransient {
					t.Errorf("%s: %+v, %v, want %q", name, done, err, tt.says)
				}
			}
		}
		place := func(e status.DeadLetterEdit) *status.DeadLetterEdit { return &e }
		m := status.DeadLetterFilter{MessageIDs: []string{"m"}}
		for name, s := range map[string]status.DeadLetterSelection{
			"all":      {Edit: place(status.DeadLetterEdit{})},
			"two":      {DeadLetterFilter: status.DeadLetterFilter{MessageIDs: []string{"m", "n"}}, Edit: place(status.DeadLetterEdit{})},
			"after":    {DeadLetterFilter: m, After: "0-0", Edit: place(status.DeadLetterEdit{})},
			"newest":   {DeadLetterFilter: m, Newest: true, Edit: place(status.DeadLetterEdit{})},
			"queue":    {DeadLetterFilter: m, Edit: place(status.DeadLetterEdit{Queue: -1})},
			"no queue": {DeadLetterFilter: m, Edit: place(status.DeadLetterEdit{Queue: 1 << 16})},
			"offset":   {DeadLetterFilter: m, Edit: place(status.DeadLetterEdit{Offset: -1})},
		} {
			if done, err := b.RedriveDeadLetters(t.Context(), "g", s); err == nil || done.Redriven != 0 {
				t.Errorf("%s: %+v, %v, want an error", name, done, err)
			}
		}
		page, err := b.DeadLetters("g", status.DeadLetterQuery{Bodies: true})
		if err != nil || len(page.DeadLetters) != 1 {
			t.Fatalf("%+v, %v, want the letter", page, err)
		}
		l := page.DeadLetters[0]
		for _, e := range []status.DeadLetterEdit{{Queue: l.Queue, Offset: l.Offset + 1}, {Queue: l.Queue + 1, Offset: l.Offset}} {
			for i := range 2 { // also a place before it
				e.Offset = max(0, e.Offset-2*int64(i))
				if e.Queue == l.Queue && e.Offset == l.Offset {
					continue
				}
				e.BodyText = "y"
				if done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{DeadLetterFilter: m, Edit: &e}); err != nil || done != (status.DeadLetterRedrive{}) {
					t.Errorf("another place: %+v, %v, want no effect", done, err)
				}
			}
		}
		if string(l.Body) != "x" || !slices.Equal(listLetters(t, b, status.DeadLetterFilter{}), []string{"m"}) {
			t.Errorf("the letter is %+v", l)
		}
		if ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}); len(ds) > 0 {
			t.Errorf("%+v came", ds[0])
		}
	})
}
