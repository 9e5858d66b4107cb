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
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A place is a broker with dead letters of the group billing.
type place struct {
	*brokertest.Broker
	t    *testing.T
	c    *admin.Client
	rest *rest.Client
}

func newPlace(t *testing.T, b *brokertest.Broker) *place {
	t.Helper()
	c := assert.Value(admin.New(b.HTTPAddress(), admin.Options{Dialer: b.DialHTTP, Backoff: backoff.Steps{time.Second}, MaxAttempts: 2}))(t)
	r := assert.Value(rest.New(b.HTTPAddress(), rest.Options{Dialer: b.DialHTTP}))(t)
	t.Cleanup(func() {
		c.Close()
		r.Close()
	})
	b.CreateTopic("orders", settings.Topic{})
	return &place{b, t, c, r}
}

// placed and placedAs run a test, and a subtest, with a place.
func placed(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) { test(t, newPlace(t, b)) })
}

func placedAs(t *testing.T, name string, test func(t *testing.T, p *place)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { placed(t, test) })
}

// fail sends messages with these IDs and makes dead letters of them for this reason.
func (p *place) fail(reason string, ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.Broker.Send(&tidegate.Message{ID: id, Topic: "orders", Body: []byte(id), Tag: "tag", Properties: map[string]string{"p": "v"}})
	}
	p.giveUp(reason, len(ids))
}

// giveUp makes dead letters of the next n messages of the topic orders.
func (p *place) giveUp(reason string, n int) {
	p.t.Helper()
	p.giveUpIn("orders", reason, n)
}

// die makes a dead letter of a message.
func (p *place) die(topic, id, body, reason string) {
	p.t.Helper()
	p.Broker.Send(&tidegate.Message{ID: id, Topic: topic, Body: []byte(body)})
	p.giveUpIn(topic, reason, 1)
}

// twins makes two dead letters with one ID in the topic short, which forgets the ID of the first.
// Their bodies and reasons are a and b.
func (p *place) twins() {
	p.t.Helper()
	p.CreateTopic("short", settings.Topic{DuplicateWindow: settings.Duration(time.Second)})
	for _, body := range []string{"a", "b"} {
		p.die("short", "17", body, body)
		time.Sleep(3 * time.Second)
	}
}

func (p *place) giveUpIn(topic, reason string, n int) {
	p.t.Helper()
	for _, d := range p.receive("billing", topic, n) {
		_, err := p.Settle(p.t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: reason})
		assert.MustThat(p.t, err == nil, "%v", err)
	}
}

func (p *place) receive(group, topic string, n int) (all []*tidegate.Delivery) {
	p.t.Helper()
	for len(all) < n {
		ds := assert.Value(p.Receive(p.t.Context(), transport.ReceiveRequest{Group: group, Topic: topic, Queue: transport.AnyQueue, Max: min(n-len(all), 32), InvisibleDuration: time.Hour}))(p.t)
		if len(ds) == 0 {
			return all
		}
		all = append(all, ds...)
	}
	return all
}

// left returns the IDs of the dead letters that a source has, in order.
func (p *place) left(src deadletter.Source) (ids []string) {
	p.t.Helper()
	for l, err := range deadletter.List(p.t.Context(), src, deadletter.Filter{}, false) {
		assert.Must(p.t, err)
		ids = append(ids, l.Message.ID)
	}
	slices.Sort(ids)
	return ids
}

func (p *place) source() deadletter.Broker { return deadletter.Broker{Client: p.c, Group: "billing"} }

func (p *place) queue() deadletter.Queue {
	return deadletter.Queue{Transport: p.rest, Group: "billing", As: "undertaker", Lease: time.Minute, Wait: time.Second}
}

func (p *place) redrive(src deadletter.Source, o deadletter.Options) (deadletter.Report, error) {
	p.t.Helper()
	if o.Journal == "" && !o.DryRun {
		o.Journal = filepath.Join(p.t.TempDir(), "journal")
	}
	if o.Sender == nil {
		o.Sender = p.rest
	}
	return deadletter.Redrive(p.t.Context(), src, o)
}

// bySource runs a test with each kind of source, on a broker of its own.
func bySource(t *testing.T, test func(t *testing.T, p *place, source func() deadletter.Source)) {
	for _, kind := range []string{"broker", "queue"} {
		placedAs(t, kind, func(t *testing.T, p *place) {
			test(t, p, func() deadletter.Source {
				if kind == "broker" {
					return p.source()
				}
				return p.queue()
			})
		})
	}
}

func ids(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s%03d", prefix, i))
	}
	return all
}

func bodies(ds []*tidegate.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, string(d.Body))
	}
	slices.Sort(all)
	return all
}

// Both sources send every letter back once, at the requested rate, with the count of redrives, and
// write a line for each.
//
// Rate and audit of a redrive.
func TestRedrive(t *testing.T) {
	bySource(t, func(t *testing.T, p *place, source func() deadletter.Source) {
		p.fail("no such customer", ids("m", 250)...)
		journal := filepath.Join(t.TempDir(), "journal")
		start := time.Now()
		report, err := p.redrive(source(), deadletter.Options{PerSecond: 20, Journal: journal, Actor: "anna"})
		assert.That(t, err == nil && report.Redriven == 250 && report.Seen == 250 && report.Failed == 0 && report.Stopped == "",
			"%+v, %v, want 250 sent back", report, err)
		if took := time.Since(start); took < 12*time.Second || took > 20*time.Second { // and the waits of the queue
			t.Errorf("250 at 20 each second took %v", took)
		}
		assert.Equal(t, "dead letters are left", len(p.left(source())), 0)
		ds := p.receive("billing", "orders", 1000)
		got := bodies(ds)
		assert.That(t, slices.Equal(got, ids("m", 250)), "%d messages came, want each of 250 once", len(got))
		for _, d := range ds {
			if d.Tag != "tag" || d.Properties["p"] != "v" || d.Properties[protocol.PropertyDeadLetterRedrives] != "1" || d.Attempt != 1 {
				t.Fatalf("delivered %+v", d)
			}
		}
		text, err := os.ReadFile(journal)
		assert.Must(t, err)
		for event, want := range map[string]int{"begin": 1, "intent": 250, "redriven": 250, "end": 1} {
			got := strings.Count(string(text), `"event":"`+event+`"`)
			assert.That(t, got == want, "%d events %q, want %d", got, event, want)
		}
		if !strings.Contains(string(text), `"actor":"anna"`) || !strings.Contains(string(text), `"reason":"no such customer"`) {
			t.Error("the journal lacks the actor or the reason")
		}
	})
}

// A dry run with a filter reports the letters that would be sent back, two with one ID included,
// and does nothing.
//
// Filter and dry run of a redrive.
func TestDryRun(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.CreateTopic("orders", settings.Topic{DuplicateWindow: -1}) // duplicates are stored
		wanted := append(ids("a", 5), "twin", "twin")
		p.fail("a", wanted...)
		p.fail("b", ids("b", 3)...)
		for _, src := range []deadletter.Source{p.source(), p.source(), p.queue()} {
			var events []string
			report, err := p.redrive(src, deadletter.Options{DryRun: true, Filter: deadletter.Filter{Reason: "a"}, OnEvent: func(e deadletter.Event) { events = append(events, e.MessageID) }})
			slices.Sort(events)
			assert.That(t, err == nil && report.Redriven == 7 && report.DryRun && slices.Equal(events, wanted),
				"%T: %+v, %v, %q", src, report, err, events)
			if left := p.left(src); len(left) != 10 {
				t.Errorf("%T: %q are left, want all 10", src, left)
			}
		}
	})
}

// An edited message is stored under an ID of its own and replaces the dead letter; one that Edit
// rejects stays.
func TestEdit(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("typo", ids("m", 3)...)
		report, err := p.redrive(p.source(), deadletter.Options{MaxFailureShare: 1, Edit: func(m *tidegate.Message) error {
			if string(m.Body) == "m001" {
				return errors.New("cannot be repaired")
			}
			m.Body, m.Properties["p"] = []byte("repaired "+string(m.Body)), "w"
			return nil
		}})
		assert.That(t, err == nil && report.Redriven == 2 && report.Failed == 1, "%+v, %v, want 2 sent and 1 failed", report, err)
		ds := p.receive("billing", "orders", 10)
		assert.Slices(t, "delivered", bodies(ds), []string{"repaired m000", "repaired m002"})
		for _, d := range ds {
			assert.That(t, strings.HasSuffix(d.ID, ".redrive-1") && d.Properties["p"] == "w" && d.Tag == "tag", "delivered %+v", d)
		}
		assert.Slices(t, "are left", p.left(p.source()), []string{"m001"})
	})
}

// A job that is run again sends nothing twice. A message that came back waits for another job, and
// after three redrives it stays.
//
// The number of redrives is bounded.
func TestGenerations(t *testing.T) {
	bySource(t, func(t *testing.T, p *place, source func() deadletter.Source) {
		p.fail("always", "m")
		for generation := range 4 {
			journal := filepath.Join(t.TempDir(), "journal")
			report, err := p.redrive(source(), deadletter.Options{Journal: journal})
			if generation == 3 {
				assert.That(t, err == nil && report.Redriven == 0 && report.Skipped["sent back too often"] == 1,
					"generation 3: %+v, %v, want it skipped", report, err)
				return
			}
			assert.MustThat(t, err == nil && report.Redriven == 1,
				"generation %d: %+v, %v, want it sent back", generation, report, err)
			p.giveUp("always", 1)
			report, err = p.redrive(source(), deadletter.Options{Journal: journal})
			assert.That(t, err == nil && report.Redriven == 0 && report.Returned == 1 && len(p.left(source())) == 1,
				"generation %d, the same job: %+v, %v, want it skipped", generation, report, err)
		}
	})
}

// A redrive stops when too many letters cannot be sent: their topic is gone.
//
// The share of failures that stops a redrive.
func TestTooManyFailures(t *testing.T) {
	bySource(t, func(t *testing.T, p *place, source func() deadletter.Source) {
		p.fail("always", ids("m", 200)...)
		assert.Must(t, p.DeleteTopic(t.Context(), "orders"))
		report, err := p.redrive(source(), deadletter.Options{PerSecond: 50})
		if !errors.Is(err, deadletter.ErrTooManyFailures) || report.Failed < 10 || report.Failed > 20 || report.Redriven != 0 {
			t.Errorf("%+v, %v, want ErrTooManyFailures after 10 to 20", report, err)
		}
		assert.Equal(t, "are left", len(p.left(source())), 200)
		p.CreateTopic("rescued", settings.Topic{})
		report, err = p.redrive(source(), deadletter.Options{PerSecond: 50, To: "rescued", Limit: 150})
		assert.That(t, err == nil && report.Redriven == 150 && report.Stopped == "limit reached" && len(p.left(source())) == 50,
			"to another topic: %+v, %v", report, err)
	})
}

// A throttle makes a redrive wait; it is no failure.
func TestThrottled(t *testing.T) {
	bySource(t, func(t *testing.T, p *place, source func() deadletter.Source) {
		p.fail("always", ids("m", 60)...)
		p.CreateTopic("orders", settings.Topic{MaxRate: settings.Rate{MessagesPerSecond: 2, Burst: 5}})
		start := time.Now()
		report, err := p.redrive(source(), deadletter.Options{PerSecond: 1000})
		assert.That(t, err == nil && report.Redriven == 60 && report.Failed == 0, "%+v, %v, want 60", report, err)
		took := time.Since(start)
		assert.That(t, took >= 27*time.Second, "55 messages at 2 each second took %v", took)
		got := bodies(p.receive("billing", "orders", 100))
		assert.That(t, slices.Equal(got, ids("m", 60)), "%d messages came, want each of 60 once", len(got))
	})
}

// The end of ctx ends a redrive; run again, it continues.
func TestCancelled(t *testing.T) {
	enough := errors.New("enough")
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", ids("m", 100)...)
		journal := filepath.Join(t.TempDir(), "journal")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3500*time.Millisecond, func() { cancel(enough) })
		report, err := deadletter.Redrive(ctx, p.source(), deadletter.Options{Journal: journal, PerSecond: 10})
		assert.That(t, errors.Is(err, enough) && report.Redriven != 0 && report.Redriven <= 40,
			"%+v, %v, want the cause after about 35", report, err)
		rest, err := p.redrive(p.source(), deadletter.Options{Journal: journal})
		assert.That(t, err == nil && report.Redriven+rest.Redriven+rest.Recovered == 100,
			"%+v and then %+v, %v, want 100 in all", report, rest, err)
		got := bodies(p.receive("billing", "orders", 200))
		assert.That(t, slices.Equal(got, ids("m", 100)), "%d messages came, want each of 100 once", len(got))
	})
}

// After a throttled send a redrive waits for the backoff of a producer, 1 s with a jitter of a
// fifth, or for the time that the server requests if that is longer.
func TestRedriveWaitsAsTheServerRequests(t *testing.T) {
	for _, tt := range []struct {
		name              string
		wait, least, most time.Duration
	}{
		{"no wait", 0, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"a shorter wait", 100 * time.Millisecond, 800 * time.Millisecond, 1200 * time.Millisecond},
		{"a longer wait", time.Minute, time.Minute, time.Minute},
	} {
		placedAs(t, tt.name, func(t *testing.T, p *place) {
			p.fail("always", "m")
			src, sender := p.queue(), &transporttest.Fake{OnSend: func(_ context.Context, n int, _ transport.Lane, _ []*tidegate.Message) []error {
				if n > 1 {
					return nil
				}
				return []error{&tidegate.Error{Code: tidegate.CodeTooManyRequests, RetryAfter: tt.wait}}
			}}
			src.Lease = 30 * time.Minute
			report, err := p.redrive(src, deadletter.Options{Sender: sender})
			sends := sender.Calls("Send")
			assert.MustThat(t, err == nil && report.Redriven == 1 && report.Failed == 0 && len(sends) == 2,
				"%+v, %v after %d sends; want the letter sent back by the second one", report, err, len(sends))
			if waited := sends[1].At.Sub(sends[0].At); waited < tt.least || waited > tt.most {
				t.Errorf("the second send follows after %v, want %v to %v", waited, tt.least, tt.most)
			}
		})
	}
}

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
