package engine

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// sendingDirectory has a topic of each type, named for it, and a NORMAL topic of dead letters.
type sendingDirectory map[string]*Topic

func newDirectory() sendingDirectory {
	d := sendingDirectory{}
	for name, kind := range map[string]settings.TopicType{
		"NORMAL": settings.TopicNormal, "FIFO": settings.TopicFIFO, "DELAY": settings.TopicDelay,
		"TRANSACTION": settings.TopicTransaction, "PRIORITY": settings.TopicPriority, "%DLQ%g": settings.TopicNormal,
	} {
		d[name] = newTopic(TopicConfig{ID: uint32(len(d) + 1), Name: name}, settings.Topic{Type: kind}.WithDefaults())
	}
	return d
}

func (d sendingDirectory) Topic(name string) (*Topic, error) {
	if t := d[name]; t != nil {
		return t, nil
	}
	return nil, refusal.TopicNotFound(name)
}

// codeOf returns the code of an error, and 0 for nil.
func codeOf(err error) tidegate.Code {
	if e, ok := errors.AsType[*tidegate.Error](err); ok {
		return e.Code
	}
	return 0
}

// A topic accepts only messages of its type. A topic of dead letters also accepts messages with a
// message group, a delivery time or a priority, because dead letters keep the fields of the message.
func TestTopicsAcceptTheirType(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := NewSending(SendingConfig{Directory: newDirectory(), MaxBodySize: 10})
		kinds := map[string]Incoming{
			"NORMAL":      {},
			"FIFO":        {Message: &tidegate.Message{MessageGroup: "m"}},
			"DELAY":       {Message: &tidegate.Message{DeliverAt: time.Now().Add(time.Hour)}},
			"TRANSACTION": {Half: true},
			"PRIORITY":    {Message: &tidegate.Message{Priority: 1}},
		}
		accepted := map[[2]string]bool{
			{"NORMAL", "NORMAL"}: true, {"FIFO", "FIFO"}: true, {"DELAY", "DELAY"}: true, {"TRANSACTION", "TRANSACTION"}: true,
			{"PRIORITY", "PRIORITY"}: true, {"PRIORITY", "NORMAL"}: true, // 0 is the lowest priority
			{"%DLQ%g", "NORMAL"}: true, {"%DLQ%g", "FIFO"}: true, {"%DLQ%g", "DELAY"}: true, {"%DLQ%g", "PRIORITY"}: true,
		}
		for _, to := range []string{"NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "%DLQ%g"} {
			for kind, m := range kinds {
				copied := tidegate.Message{}
				if m.Message != nil {
					copied = *m.Message
				}
				copied.ID, copied.Topic, copied.Body = "id", to, []byte("x")
				m.Message = &copied
				found, err := s.check(&m)
				switch want := accepted[[2]string{to, kind}]; {
				case want && (err != nil || found.Name() != to):
					t.Errorf("%s message to topic %s: %v", kind, to, err)
				case !want && codeOf(err) != protocol.CodeMessagePropertyConflict:
					t.Errorf("%s message to topic %s: %v, want code %d", kind, to, err, protocol.CodeMessagePropertyConflict)
				}
			}
		}
	})
}

// Each invalid message has the code of its fault, and a message at a limit is valid.
func TestInvalidMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := NewSending(SendingConfig{Directory: newDirectory(), MaxBodySize: 10})
		now := time.Now()
		for name, c := range map[string]struct {
			topic      string
			noID       bool
			body       string
			ahead      time.Duration // 0: no delivery time
			group      string
			half       bool
			firstCheck time.Duration
			want       tidegate.Code // 0: valid
		}{
			"no ID":                           {topic: "NORMAL", body: "x", noID: true, want: protocol.CodeIllegalMessageID},
			"no topic of that name":           {topic: "none", body: "x", want: tidegate.CodeTopicNotFound},
			"a topic with an invalid name":    {topic: "a b", body: "x", want: protocol.CodeIllegalTopic},
			"body of the maximum":             {topic: "NORMAL", body: "0123456789"},
			"body above the maximum":          {topic: "NORMAL", body: "0123456789a", want: tidegate.CodeMessageBodyTooLarge},
			"24 h ahead":                      {topic: "DELAY", body: "x", ahead: 24 * time.Hour},
			"more than 24 h ahead":            {topic: "DELAY", body: "x", ahead: 24*time.Hour + 1, want: protocol.CodeIllegalDeliveryTime},
			"delivery time in the past":       {topic: "DELAY", body: "x", ahead: -time.Hour},
			"half message with a group":       {topic: "TRANSACTION", body: "x", half: true, group: "m", want: protocol.CodeMessagePropertyConflict},
			"half message with delivery time": {topic: "TRANSACTION", body: "x", half: true, ahead: time.Hour, want: protocol.CodeMessagePropertyConflict},
			"first check after an hour":       {topic: "TRANSACTION", body: "x", half: true, firstCheck: time.Hour},
			"first check after more":          {topic: "TRANSACTION", body: "x", half: true, firstCheck: time.Hour + 1, want: tidegate.CodeBadRequest},
			"first check in the past":         {topic: "TRANSACTION", body: "x", half: true, firstCheck: -1, want: tidegate.CodeBadRequest},
			"group and delivery time":         {topic: "FIFO", body: "x", group: "m", ahead: time.Hour, want: protocol.CodeMessagePropertyConflict},
		} {
			m := Incoming{Message: &tidegate.Message{ID: "id", Topic: c.topic, Body: []byte(c.body), MessageGroup: c.group}, Half: c.half, FirstCheck: c.firstCheck}
			if c.noID {
				m.ID = ""
			}
			if c.ahead != 0 {
				m.DeliverAt = now.Add(c.ahead)
			}
			_, err := s.check(&m)
			assert.That(t, codeOf(err) == c.want, "%s: %v, want code %d", name, err, c.want)
		}
	})
}

// appendingOf returns the Append of one message of each message group to one topic; "" means no
// message group.
func appendingOf(groups ...string) (*appending, *Topic) {
	to := newDirectory()["FIFO"]
	a := &appending{
		Sending: NewSending(SendingConfig{Throttled: new(Counters)}), messages: make([]Incoming, len(groups)),
		topics: make([]*Topic, len(groups)), results: make([]transport.SendResult, len(groups)),
	}
	for i := range a.topics {
		a.topics[i] = to
		a.messages[i].Message = &tidegate.Message{Topic: to.Name(), MessageGroup: groups[i]}
	}
	return a, to
}

// If the whole rest is rejected, messages that have a result keep it.
func TestRejectAllKeepsResults(t *testing.T) {
	t.Parallel()
	a, _ := appendingOf("a", "a", "")
	a.topics[1] = nil // it is stored, or a duplicate
	a.rejectAll(&tidegate.Error{Code: tidegate.CodeTooManyRequests}, "room")
	for i, want := range []tidegate.Code{tidegate.CodeTooManyRequests, 0, tidegate.CodeTooManyRequests} {
		got := codeOf(a.results[i].Err)
		assert.That(t, got == want, "message %d: code %d, want %d", i, got, want)
	}
}

// A message waits behind a suspected duplicate of its message group in the same topic until the
// next write.
func TestMessagesWaitBehindASuspectedDuplicate(t *testing.T) {
	t.Parallel()
	all := newDirectory()
	one, other := all["FIFO"], all["NORMAL"]
	var o order
	o.begin()
	o.suspect(one, "a")
	o.suspect(one, "")
	for i, c := range []struct {
		to    *Topic
		group string
		want  bool
	}{{one, "a", true}, {one, "b", false}, {one, "", false}, {other, "a", false}, {one, "a", true}} {
		if got := o.hold(i, c.to, c.group); got != c.want {
			t.Errorf("message of group %q of topic %s waits: %t, want %t", c.group, c.to.Name(), got, c.want)
		}
	}
	assert.Slices(t, "the messages wait", o.held, []int{0, 4})
	o.begin()
	assert.That(t, !o.hold(0, one, "a") && len(o.held) == 0, "a message waits in the next write")
}

// Names has each constant of a limit, so that each of them has a counter.
func TestNamesAreComplete(t *testing.T) {
	t.Parallel()
	file := assert.Value(parser.ParseFile(token.NewFileSet(), "throttle.go", nil, parser.SkipObjectResolution))(t)
	var constants []string
	ast.Inspect(file, func(n ast.Node) bool {
		if c, ok := n.(*ast.ValueSpec); ok && len(c.Values) == 1 && !strings.HasPrefix(c.Names[0].Name, "unit") && !strings.HasPrefix(c.Names[0].Name, "remedy") {
			if value, ok := c.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
				constants = append(constants, strings.Trim(value.Value, `"`))
			}
		}
		return true
	})
	slices.Sort(constants)
	if got := slices.Sorted(slices.Values(Names[:])); !slices.Equal(got, constants) || !slices.Contains(got, topicMessages) {
		t.Errorf("the constants are %q, Names has %q", constants, got)
	}
}

// Each limit that rejects sends has a remedy. The limit of a client's quota has its own error.
func TestEachLimitHasARemedy(t *testing.T) {
	for _, name := range Names {
		if (remedies[name] == "") != (name == ClientQuota) {
			t.Errorf("the remedy of %q is %q", name, remedies[name])
		}
	}
}

// The error about a full disk has the number of missing bytes, and the remedy.
func TestDiskFullText(t *testing.T) {
	t.Parallel()
	err := Rejected(*diskFull(&store.DiskFull{Missing: 98746368}))
	for _, w := range []string{"530 TOO_MANY_REQUESTS", "the disk of the data directory is full", "when 98746368 more bytes are free", "no restart"} {
		assert.That(t, strings.Contains(err.Error(), w), "the text lacks %q: %v", w, err)
	}
	assert.That(t, !strings.Contains(err.Error(), "the limit is 1"), "%v", err)
}

// The states of the storage name only limits that are set, each in its unit.
func TestPressureStates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits settings.Pressure
		want   []string
		on     bool
	}{
		{settings.Pressure{MinFreeDisk: 10, MaxCompactionDebt: 7, MaxWriteStall: settings.Duration(time.Second)}, []string{
			"free disk is 5, the limit is 10; sends are accepted again at 12;", "write stall is 2s, the limit is 1s;", "compaction debt is 7, the limit is 7; sends are accepted again at 5;",
		}, true},
		{settings.Pressure{MinFreeDisk: -1, MaxCompactionDebt: 8, MaxWriteStall: -1}, []string{"compaction debt is 7, the limit is 8; sends are accepted again at 6;"}, false},
	} {
		var p storage
		p.limits.Store(&c.limits)
		states := p.decide(store.Pressure{Disk: true, Free: 5, Total: 1000, CompactionDebt: 7}, 2*time.Second, time.Now())
		assert.MustThat(t, len(states) == len(c.want), "%+v: %+v", c.limits, states)
		for i, l := range states {
			if !strings.HasPrefix(text(l.Throttle), c.want[i]) || l.On != c.on || l.Since.IsZero() == c.on {
				t.Errorf("%+v: %v, %+v; want %q", c.limits, l, l, c.want[i])
			}
		}
	}
}

// openLimits returns limits on an empty store in memory.
func openLimits(t *testing.T, s settings.Limits) *Limits {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	st := assert.Value(store.Open(store.Options{Logger: logger}))(t)
	t.Cleanup(func() {
		assert.NoError(t, st.Close())
	})
	l := assert.Value(NewLimits(LimitsConfig{Store: st, Logger: logger}, s))(t)
	return l
}

// Check takes a message from the rate of its topic. Without a message it takes nothing, and a topic
// of dead letters has no limits.
func TestCheckTakesFromTheRate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := openLimits(t, settings.Limits{})
		config := settings.Topic{MaxRate: settings.Rate{MessagesPerSecond: 1, Burst: 2}}.WithDefaults()
		slow := newTopic(TopicConfig{Name: "slow"}, config)
		letters := newTopic(TopicConfig{Name: tidegate.DeadLetterTopic("g")}, config)
		by := &Sender{Client: "c", Size: 1}
		for range 3 {
			th := l.Check(slow, time.Now(), nil)
			assert.MustThat(t, th == nil, "without a message: %v", th)
			th = l.Check(letters, time.Now(), by)
			assert.MustThat(t, th == nil, "dead letters: %v", th)
		}
		for i := range 3 {
			if th := l.Check(slow, time.Now(), by); (th != nil) != (i == 2) {
				t.Fatalf("message %d: %v", i, th)
			} else if th != nil && (th.Limit != topicRateMessages || th.Subject != "slow" || time.Duration(th.RetryAfter) != time.Second) {
				t.Errorf("%+v", th)
			}
		}
		states := l.States([]*Topic{slow, letters}, true, time.Now())
		assert.That(t, len(states) == 1 && states[0].Limit == topicRateMessages && states[0].On, "the states are %+v", states)
		for _, c := range []settings.Topic{{}, config} {
			slow.SetSettings(c)
			rateChanged(slow)
			th := l.Check(slow, time.Now(), by)
			assert.That(t, th == nil, "after a change to %+v: %v", c.MaxRate, th)
		}
	})
}

func TestReasonsOfRejections(t *testing.T) {
	t.Parallel()
	e := func(c tidegate.Code) error { return &tidegate.Error{Code: c} }
	for _, c := range []struct {
		err  error
		want RefusalReason
	}{
		{Rejected(status.Throttle{}), RefusedThrottled},
		{refusal.TopicNotFound("t"), RefusedNoTopic},
		{e(protocol.CodeIllegalMessageID), RefusedInvalid},
		{e(tidegate.CodeMessageBodyTooLarge), RefusedInvalid},
		{e(protocol.CodeInternalError), RefusedOther},
		{&tidegate.Error{Code: tidegate.CodeInternalServerError, MaybeStored: true, Err: errors.New("disk")}, RefusedUnknown},
		{refusal.WithOp("SendMessage", refusal.Closed()), RefusedOther},
		{fmt.Errorf("sending: %w", t.Context().Err()), RefusedOther},
	} {
		got := reasonOf(c.err)
		assert.That(t, got == c.want, "%v: %s, want %s", c.err, got, c.want)
	}
}

// The counters of rejections cost no allocation for each send.
func TestCountingAllocatesNothing(t *testing.T) {
	c := counters{}
	results := make([]transport.SendResult, 64)
	refused := []transport.SendResult{{Err: refusal.TopicNotFound("t")}}
	if n := testing.AllocsPerRun(100, func() {
		c.countRefused(results)
		c.countRefused(refused)
		c.throttled.Add("topic backlog bytes")
	}); n != 0 {
		t.Errorf("%g allocations, want 0", n)
	}
}
