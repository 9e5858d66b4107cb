package deadletter_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rest"
)

// A journal that ends with intents shows a crash. A letter that no longer exists was sent back. A
// letter that exists is sent now. One that became a dead letter again meanwhile is not sent again.
func TestAfterACrash(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
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
		assert.Must(t, os.WriteFile(journal, []byte(text+`{"event":"redri`), 0o600))
		report, err := p.redrive(p.source(), deadletter.Options{Journal: journal, MaxFailureShare: 1})
		assert.That(t, err == nil && report.Redriven == 1 && report.Recovered == 2 && report.Returned == 1,
			"%+v, %v, want 1 sent, 2 found and 1 returned", report, err)
		assert.Slices(t, "came", bodies(p.receive("billing", "orders", 10)), []string{"there"})
	})
}

// A letter whose send and removal an earlier run could not record, for example on a full disk, is
// found as sent back, also if its messages go through a Sender.
func TestAfterAFullDisk(t *testing.T) {
	brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
		p := newPlace(t, b)
		p.fail("always", "there")
		journal := filepath.Join(t.TempDir(), "journal")
		text := `{"event":"begin","group":"billing"}` + "\n" +
			`{"event":"intent","message_id":"gone","generation":0,"origin":"orders","topic":"orders","sent_as":"gone.redrive-1","edited":true}` + "\n"
		assert.Must(t, os.WriteFile(journal, []byte(text), 0o600))
		report, err := p.redrive(p.source(), deadletter.Options{Journal: journal, Sender: b.Client(), Edit: change})
		assert.That(t, err == nil && report.Redriven == 1 && report.Recovered == 1 && report.Unresolved == 0,
			"%+v, %v, want 1 sent and 1 found", report, err)
	})
}

// A tapped connection calls a function before each POST, and another one after the response. It
// loses the response if that one returns true.
type tapped struct {
	net.Conn
	post   *atomic.Bool
	before func()
	loses  func() bool
}

func (c tapped) Write(b []byte) (int, error) {
	if c.post.Store(bytes.HasPrefix(b, []byte("POST"))); c.post.Load() {
		c.before()
	}
	return c.Conn.Write(b)
}

func (c tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.post.Load() && err == nil && c.loses() {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// tap returns the place's letters, as a source over tapped connections.
func (p *place) tap(before func(), loses func() bool) deadletter.Broker {
	p.t.Helper()
	c, err := admin.New(p.HTTPAddress(), admin.Options{Dialer: func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := p.DialHTTP(ctx, addr)
		return tapped{conn, new(atomic.Bool), before, loses}, err
	}})
	assert.Must(p.t, err)
	p.t.Cleanup(func() { c.Close() })
	return deadletter.Broker{Client: c, Group: "billing"}
}

// The response to every redrive is lost. The letters that have left were sent back.
func TestLostResponses(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		p.fail("always", ids("m", 50)...)
		report, err := p.redrive(p.tap(func() {}, func() bool { return true }), deadletter.Options{})
		assert.That(t, err == nil && report.Redriven == 50 && report.Failed == 0, "%+v, %v, want 50", report, err)
		got := bodies(p.receive("billing", "orders", 100))
		assert.That(t, slices.Equal(got, ids("m", 50)), "%d messages came, want each of 50 once", len(got))
	})
}

// Messages fail again after their redrive, before the job knows its result or even begins it. They
// are letters of the next generation, which stay for another job.
func TestNextGenerationStays(t *testing.T) {
	for _, tt := range []struct {
		name          string
		before, loses bool
	}{
		{name: "sent back by another job", before: true},
		{name: "lost response", loses: true},
	} {
		placedAs(t, tt.name, func(t *testing.T, p *place) {
			p.fail("always", ids("m", 3)...)
			posts, responses := 0, 0
			src := p.tap(func() {
				if posts++; tt.before && posts == 1 {
					_, err := p.c.RedriveDeadLetters(t.Context(), "billing", status.DeadLetterSelection{})
					assert.That(t, err == nil, "%v", err)
					p.giveUp("still", 3)
				}
			}, func() bool {
				if responses++; tt.loses && responses == 1 {
					p.giveUp("still", 3)
					return true
				}
				return false
			})
			report, err := p.redrive(src, deadletter.Options{})
			assert.That(t, err == nil && report.Redriven == 3 && report.Failed == 0, "%+v, %v, want 3 sent back", report, err)
			for l, err := range deadletter.List(t.Context(), p.source(), deadletter.Filter{}, false) {
				assert.That(t, err == nil && l.Generation() == 1,
					"%s: generation %d, %v, want 1", l.Message.ID, l.Generation(), err)
			}
			assert.Equal(t, "are left", len(p.left(p.source())), 3)
			assert.Equal(t, "came once more", len(bodies(p.receive("billing", "orders", 100))), 0)
		})
	}
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
		assert.Must(t, err)
		defer c.Close()
		report, err := p.redrive(deadletter.Broker{Client: c, Group: "billing"}, deadletter.Options{Edit: func(*tidegate.Message) error { return nil }})
		assert.That(t, err == nil && report.Redriven == 3 && rejected.Load() == 3,
			"%+v, %v, want 3 sent and each first removal rejected", report, err)
		assert.Equal(t, "are left in the dead letters", len(p.left(p.source())), 0)
	})
}

func TestRedriveRejects(t *testing.T) {
	placed(t, func(t *testing.T, p *place) {
		other := filepath.Join(t.TempDir(), "other")
		assert.Must(t, os.WriteFile(other, []byte("{\"event\":\"begin\",\"group\":\"shipping\"}\n"), 0o600))
		text := filepath.Join(t.TempDir(), "text")
		assert.Must(t, os.WriteFile(text, []byte("dear diary\n"), 0o600))
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
			"no RocketMQ":           {p.queue(), deadletter.Options{Sender: p.rest, Journal: "x", ToGroupOnly: true, To: "orders"}, "only RocketMQ has retry topics"},
			"one group and a topic": {p.source(), deadletter.Options{Journal: "x", ToGroupOnly: true, To: "orders"}, "Options.ToGroupOnly"},
			"a journal of others":   {p.source(), deadletter.Options{Journal: other}, `"shipping"`},
			"a file of other kinds": {p.source(), deadletter.Options{Journal: text}, "line 1"},
		} {
			_, err := deadletter.Redrive(t.Context(), tt.src, tt.o)
			assert.That(t, err != nil && strings.Contains(err.Error(), tt.says), "%s: %v, want %q", name, err, tt.says)
		}
	})
}

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

// crashJob has the address, the journal and the kind of job of the process that is killed.
const crashJob = "TIDEGATE_DEADLETTER_CRASH_JOB"

func TestMain(m *testing.M) {
	if job := strings.Split(os.Getenv(crashJob), " "); len(job) == 4 {
		last, err := strconv.ParseInt(job[3], 10, 64)
		if err == nil {
			_, err = runJob(context.Background(), job[0], job[1], job[2], mortal(last), func(e deadletter.Event) { fmt.Println(e.Event, e.MessageID) })
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// mortal returns a dialer for connections that kill the process at the response to the n-th request
// that sends messages. These requests took effect, but the job does not know it. Zero means never.
func mortal(last int64) func(context.Context, string) (net.Conn, error) {
	var sends atomic.Int64
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &mortalConn{Conn: c, sends: &sends, last: last}, nil
	}
}

type mortalConn struct {
	net.Conn
	sends *atomic.Int64
	last  int64
}

func (c *mortalConn) Write(b []byte) (int, error) {
	if line, _, _ := bytes.Cut(b, []byte("\r\n")); bytes.HasPrefix(line, []byte("POST")) && (bytes.Contains(line, []byte("/redrive ")) || bytes.Contains(line, []byte("/messages "))) {
		c.sends.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *mortalConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.last > 0 && c.sends.Load() >= c.last {
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		fmt.Fprintln(os.Stderr, err)
		select {} // the signal is on its way
	}
	return n, err
}

// runJob redrives the dead letters of billing on the broker at an address.
func runJob(ctx context.Context, address, journal, kind string, dial func(context.Context, string) (net.Conn, error), on func(deadletter.Event)) (deadletter.Report, error) {
	c, err := admin.New(address, admin.Options{Dialer: dial})
	if err != nil {
		return deadletter.Report{}, err
	}
	defer c.Close()
	t, err := rest.New(address, rest.Options{RequestTimeout: time.Minute, Dialer: dial})
	if err != nil {
		return deadletter.Report{}, err
	}
	defer t.Close()
	o := deadletter.Options{Journal: journal, PerSecond: 500, Sender: t, OnEvent: on}
	var src deadletter.Source = deadletter.Broker{Client: c, Group: "billing"}
	switch kind {
	case "edited":
		o.Edit = func(*tidegate.Message) error { return nil }
	case "queue":
		// The leases of a killed process end while the next one waits.
		src = deadletter.Queue{Transport: t, Group: "billing", As: "undertaker", Lease: 2 * time.Second, Wait: 3 * time.Second}
	}
	return deadletter.Redrive(ctx, src, o)
}

// A job whose process is killed at any time, and which is run again, sends every message back once.
func TestKillSendsEachOnce(t *testing.T) {
	for kind, n := range map[string]int{"broker": 1000, "edited": 300, "queue": 300} { // a broker moves 50 at once
		t.Run(kind, func(t *testing.T) {
			b, address := crashBroker(t)
			sendAndFail(t, b, n)
			journal := filepath.Join(t.TempDir(), "journal")
			for round := range 6 {
				// Before a send, after one, and while its response is on its way.
				event, n, last := "redriven", 30, 0
				switch round % 3 {
				case 0:
					event = "intent"
				case 1:
					n, last = 0, 1+round/3
				}
				killAfter(t, fmt.Sprintf("%s=%s %s %s %d", crashJob, address, journal, kind, last), event, n)
				tear(t, journal)
			}
			for {
				report, err := runJob(t.Context(), address, journal, kind, nil, nil)
				assert.Must(t, err, "%+v", report)
				if report.Seen == 0 && report.Unresolved == 0 {
					break
				}
			}
			var got []string
			for len(got) < 2*n {
				ds := assert.Value(b.Receive(t.Context(), transport.ReceiveRequest{Group: "checker", Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour}))(t)
				if len(ds) == 0 {
					break
				}
				got = append(got, bodies(ds)...)
			}
			slices.Sort(got)
			assert.That(t, slices.Equal(got, ids("m", n)),
				"%d messages came, %d of them different; want each of %d once", len(got), len(slices.Compact(slices.Clone(got))), n)
			text := assert.Value(os.ReadFile(journal))(t)
			assert.Equal(t, "the journal has events redriven", strings.Count(string(text), `"event":"redriven"`), n)
		})
	}
}

func crashBroker(t *testing.T) (*broker.Broker, string) {
	t.Helper()
	b := assert.Value(broker.Open(broker.Options{Memory: broker.NewMemory(), MinInvisibleDuration: 1}))(t)
	t.Cleanup(func() { b.Close() })
	s := assert.Value(server.New(b, server.Options{Advertise: "127.0.0.1:8081"}))(t)
	t.Cleanup(func() { s.Close() })
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return b, web.URL
}

// sendAndFail makes n dead letters, and leaves nothing in the topic.
func sendAndFail(t *testing.T, b *broker.Broker, n int) {
	t.Helper()
	ctx := t.Context()
	assert.Must(t, assert.Err(b.PutTopic(ctx, "orders", settings.Topic{DuplicateWindow: settings.Duration(time.Hour)})))
	assert.Must(t, assert.Err(b.PutGroup(ctx, "undertaker", settings.Group{Retry: backoff.Steps{time.Millisecond}})))
	for _, id := range ids("m", n) {
		if r := b.Send(ctx, []*tidegate.Message{{ID: id, Topic: "orders", Body: []byte(id)}}); r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
	}
	for n > 0 {
		ds, err := b.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 32, InvisibleDuration: time.Hour})
		assert.MustThat(t, err == nil && len(ds) != 0, "%d left: %v", n, err)
		for _, d := range ds {
			_, err := b.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "no such customer"})
			assert.MustThat(t, err == nil, "%v", err)
		}
		n -= len(ds)
	}
	assert.Must(t, assert.Err(b.PurgeTopic(ctx, "orders")))
}

// killAfter runs the job in a process of its own, and kills the process after a number of events;
// 0: it kills itself.
func killAfter(t *testing.T, env, event string, n int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	out := assert.Value(cmd.StdoutPipe())(t)
	assert.Must(t, cmd.Start())
	lines, itself := bufio.NewScanner(out), n == 0
	for n > 0 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), event) {
			n--
		}
	}
	assert.That(t, n <= 0, "the process ended before its kill, %d too early", n)
	if !itself {
		assert.NoError(t, cmd.Process.Kill())
	}
	for lines.Scan() { // the lines that it had written
	}
	cmd.Wait()
	s := cmd.ProcessState
	assert.That(t, !s.Exited(), "the process was not killed: %v", s)
}

// tear cuts the last line of a journal off in its middle, as a crash of the machine does.
func tear(t *testing.T, journal string) {
	t.Helper()
	f := assert.Value(os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0))(t)
	assert.Must(t, assert.Err(f.WriteString(`{"time":"2026-01-31T12:00:00Z","event":"redr`)))
	assert.Must(t, f.Close())
}
