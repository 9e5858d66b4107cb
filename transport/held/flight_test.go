package held_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/held"
)

// A flightFake is a system with a Flight. The body of a message is its fate:
//   - none: it is stored;
//   - "unsent", "invalid": Begin fails, transiently and permanently;
//   - "lost", "refused": Wait fails, transiently and permanently.
type flightFake struct {
	room   int // for messages in flight; 0: for all
	closed bool
	flight []string // message IDs
	trace  []string // "+ID" a begin, "?ID" one that is postponed, "-ID" a wait
}

var errFull = errors.New("the disk is full")

func fate(text string) *tidegate.Error {
	switch text {
	case "unsent":
		return &tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true}
	case "invalid":
		return &tidegate.Error{Code: tidegate.CodeBadRequest, Subject: "priority", Message: "it is -1"}
	case "lost":
		return &tidegate.Error{Code: tidegate.CodeInternalServerError, Err: errFull, MaybeStored: true}
	case "refused":
		return &tidegate.Error{Code: tidegate.CodeMessageBodyTooLarge}
	}
	return nil
}

func (f *flightFake) send(msgs []*tidegate.Message) []transport.SendResult {
	return held.Flight[*tidegate.Message]{
		Closed: func() bool { return f.closed },
		Begin: func(m *tidegate.Message, alone bool) (*tidegate.Message, bool, *tidegate.Error) {
			if alone != (len(f.flight) == 0) {
				panic(fmt.Sprintf("Begin of %s: alone is %v with %v in flight", m.ID, alone, f.flight))
			}
			if f.room > 0 && len(f.flight) == f.room {
				f.trace = append(f.trace, "?"+m.ID)
				return nil, false, nil
			}
			f.trace = append(f.trace, "+"+m.ID)
			if e := string(m.Body); e == "unsent" || e == "invalid" {
				return nil, false, fate(e)
			}
			f.flight = append(f.flight, m.ID)
			return m, true, nil
		},
		Wait: func(m *tidegate.Message) *tidegate.Error {
			f.trace = append(f.trace, "-"+m.ID)
			f.flight = slices.DeleteFunc(f.flight, func(id string) bool { return id == m.ID })
			return fate(string(m.Body))
		},
	}.Send("mq:1", msgs)
}

// messagesOf returns messages of a list of "ID" or "ID fate". The letters of the ID are the group.
func messagesOf(list string) (msgs []*tidegate.Message) {
	for item := range strings.SplitSeq(list, ", ") {
		id, body, _ := strings.Cut(item, " ")
		msgs = append(msgs, &tidegate.Message{Topic: "orders", ID: id, MessageGroup: strings.TrimRight(id, "0123456789"), Body: []byte(body)})
	}
	return msgs
}

func TestFlight(t *testing.T) {
	for name, c := range map[string]struct {
		room        int
		list, trace string
		unsent      string // the messages that fail because of an earlier one
	}{
		"no message group":      {list: "1, 2, 3", trace: "+1 +2 +3 -1 -2 -3"},
		"message groups":        {list: "a1, b1, a2, 7, a3, b2", trace: "+a1 +b1 +7 -a1 -b1 -7 +a2 +b2 -a2 -b2 +a3 -a3"},
		"failures alone":        {list: "1 lost, 2 unsent, 3 refused, 4 invalid, 5", trace: "+1 +2 +3 +4 +5 -1 -3 -5"},
		"transient":             {list: "a1, a2 lost, a3, a4, b1", trace: "+a1 +b1 -a1 -b1 +a2 -a2", unsent: "a3 a4"},
		"transient before":      {list: "a1 unsent, a2, 1, a3", trace: "+a1 +1 -1", unsent: "a2 a3"},
		"permanent":             {list: "a1 refused, a2, a3 invalid, a4", trace: "+a1 -a1 +a2 -a2 +a3 +a4 -a4"},
		"room for two":          {room: 2, list: "1, 2, 3 lost, 4, 5", trace: "+1 +2 ?3 ?4 ?5 -1 -2 +3 +4 ?5 -3 -4 +5 -5"},
		"room for one, a group": {room: 1, list: "1, a1, a2", trace: "+1 ?a1 -1 +a1 -a1 +a2 -a2"},
	} {
		system := &flightFake{room: c.room}
		msgs := messagesOf(c.list)
		results := system.send(msgs)
		assert.Equal(t, name+": trace", strings.Join(system.trace, " "), c.trace)
		var unsent []string
		for i, m := range msgs {
			got, ok := errors.AsType[*tidegate.Error](results[i].Err)
			switch want := fate(string(m.Body)); {
			case ok && strings.Contains(got.Message, "an earlier message of its message group failed"):
				unsent = append(unsent, m.ID)
			case want == nil:
				assert.NoError(t, results[i].Err, "%s: message %s", name, m.ID)
				assert.Equal(t, name+": receipt of "+m.ID, results[i].Receipt, tidegate.Receipt{MessageID: m.ID, Topic: "orders", Queue: -1, Offset: -1, Endpoint: "mq:1"})
			default:
				want.Op, want.Endpoint = "SendMessage", "mq:1"
				if want.Subject == "" {
					want.Subject = "orders"
				}
				assert.That(t, ok && *got == *want, "%s: message %s: %v, want %v", name, m.ID, results[i].Err, want)
			}
		}
		assert.Equal(t, name+": not sent", strings.Join(unsent, " "), c.unsent)
	}
}

// The error of a message that was not sent is a transient one of its own. Its cause is the earlier
// failure, and it was no more connected than that.
func TestFlightUnsent(t *testing.T) {
	results := (&flightFake{}).send(messagesOf("a1 unsent, a2, b1 lost, b2"))
	for i, want := range map[int]struct {
		cause        error
		notConnected bool
	}{1: {tidegate.ErrUnavailable, true}, 3: {errFull, false}} {
		e, ok := errors.AsType[*tidegate.Error](results[i].Err)
		assert.That(t, ok && tidegate.Classify(e) == tidegate.ClassTransient && errors.Is(e, want.cause) && e.NotConnected == want.notConnected && !e.MaybeStored &&
			e.Op == "SendMessage" && e.Subject == "orders" && e.Endpoint == "mq:1", "message %d: %+v, want one not sent because of %v", i, e, want.cause)
	}
}

// Every failure of a closed transport is ErrClosed, but not a success.
func TestFlightClosed(t *testing.T) {
	results := (&flightFake{closed: true}).send(messagesOf("1 unsent, 2 invalid, 3 lost, 4 refused, a1 unsent, a2, 5"))
	for i, r := range results {
		assert.That(t, errors.Is(r.Err, tidegate.ErrClosed) == (i < 6) && (r.Err == nil) == (i == 6), "message %d: %v", i, r.Err)
	}
}

// The rules hold for random messages, fates and room.
func TestFlightModel(t *testing.T) {
	model.Run(t, 500, func(t *testing.T, r *rand.Rand) {
		c := &flightFake{room: r.IntN(4)}
		var msgs []*tidegate.Message
		begins := map[string]bool{}   // by ID: whether the message may begin
		stopped := map[string]bool{}  // groups with a transient failure
		before := map[string]string{} // by ID: the message before it in its group that begins
		last := map[string]string{}
		for i := range 1 + r.IntN(12) {
			m := &tidegate.Message{Topic: "orders", ID: fmt.Sprint("m", i), Body: []byte([]string{"", "", "", "", "unsent", "invalid", "lost", "refused"}[r.IntN(8)])}
			switch k := r.IntN(4); k {
			case 0:
			case 1:
				m.LiteTopic = "lite"
			default:
				m.MessageGroup = fmt.Sprint("group", k)
			}
			msgs = append(msgs, m)
			key := m.MessageGroup + m.LiteTopic
			begins[m.ID] = key == "" || !stopped[key]
			if key != "" && begins[m.ID] {
				before[m.ID], last[key] = last[key], m.ID
				stopped[key] = string(m.Body) == "unsent" || string(m.Body) == "lost"
			}
		}
		results := c.send(msgs)
		trace := strings.Join(c.trace, " ")
		begun, ended := map[string]bool{}, map[string]bool{}
		waits := false
		for _, step := range c.trace {
			id := step[1:]
			body := string(msgs[slices.IndexFunc(msgs, func(m *tidegate.Message) bool { return m.ID == id })].Body)
			switch step[0] {
			case '+':
				assert.That(t, begins[id] && !begun[id], "%s begins; room %d, %s", id, c.room, trace)
				assert.That(t, before[id] == "" || ended[before[id]], "%s begins before the end of %s: %s", id, before[id], trace)
				begun[id], ended[id] = true, body == "unsent" || body == "invalid"
			case '-':
				assert.That(t, begun[id] && !ended[id], "%s is waited for: %s", id, trace)
				ended[id] = true
				for i, m := range msgs {
					assert.That(t, waits || begun[m.ID] || c.room > 0 || m.MessageGroup+m.LiteTopic != "", "message %d is not in flight before the first wait: %s", i, trace)
				}
				waits = true
			}
		}
		for i, m := range msgs {
			assert.That(t, begun[m.ID] == begins[m.ID] && ended[m.ID] == begins[m.ID], "%s: begun %v, ended %v, want %v: %s", m.ID, begun[m.ID], ended[m.ID], begins[m.ID], trace)
			assert.That(t, (results[i].Err == nil) == (begins[m.ID] && len(m.Body) == 0), "%s: %v", m.ID, results[i].Err)
		}
	})
}

// A call of one message allocates its results and nothing else.
func TestFlightAllocations(t *testing.T) {
	msgs := messagesOf("1")
	ctx := t.Context()
	n := testing.AllocsPerRun(100, func() {
		held.Flight[[8]int]{
			Closed: func() bool { return ctx.Err() != nil },
			Begin:  func(*tidegate.Message, bool) ([8]int, bool, *tidegate.Error) { return [8]int{}, ctx.Err() == nil, nil },
			Wait:   func([8]int) *tidegate.Error { _ = ctx.Err(); return nil },
		}.Send("mq:1", msgs)
	})
	assert.Equal(t, "allocations", n, 1)
}
