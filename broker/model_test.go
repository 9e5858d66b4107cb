package broker_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/transport"
)

// The model has the state of each message for each group, as plainly as possible. It chooses
// nothing. It checks that the engine's choices are allowed, and that the engine delivers all
// messages that it may deliver.
type modelMessage struct {
	id, tag, group string
	queue          int
	offset         int64
	sent           time.Time
}

type modelLease struct {
	state    consume.State
	attempt  int
	since    time.Time // of the delivery
	due      time.Time
	handle   string
	push     bool
	replaced string // the handle before the last change
}

type modelGroup struct {
	name   string
	config settings.Group
	filter string
	leases map[string]*modelLease // by message ID; none: never delivered
}

type model struct {
	t        *testing.T
	rnd      *rand.Rand
	b        *broker.Broker
	fs       vfs.FS
	fifo     bool
	lite     bool // the message groups are lite topics
	messages []*modelMessage
	groups   []*modelGroup
	dead     map[string]int // group + ID of dead letters
	stale    []*tidegate.Delivery
	log      []string
}

// modelMaxInvisible is the model's maximum of the time from a delivery to its end.
const modelMaxInvisible = 12 * time.Second

// settle lets time have its effect on the model.
func (g *modelGroup) settle(now time.Time, dead map[string]int) {
	for id, l := range g.leases {
		for (l.state == consume.Inflight || l.state == consume.WaitingRetry) && !l.due.After(now) {
			switch {
			case l.attempt >= g.config.MaxAttempts && g.parks():
				l.state = consume.Parked
			case l.attempt >= g.config.MaxAttempts:
				l.state = consume.DeadLetter
				dead[g.name+id]++
			case l.state == consume.Inflight && l.push:
				l.state, l.due = consume.WaitingRetry, l.due.Add(g.config.Interval(l.attempt))
			default:
				l.state = consume.Ready
			}
		}
	}
}

// parks reports whether the group parks a message group instead of making a dead letter.
func (g *modelGroup) parks() bool { return g.config.OnExhausted == settings.OnExhaustedPark }

// ready returns the messages that the group may be given now.
func (m *model) ready(g *modelGroup) map[string]*modelMessage {
	out := map[string]*modelMessage{}
	blocked := map[string]bool{}
	for _, msg := range m.messages { // in the order of their offsets
		if g.filter != "" && g.filter != msg.tag {
			continue
		}
		l := g.leases[msg.id]
		done := l != nil && (l.state == consume.Commit || l.state == consume.DeadLetter)
		if !done && !(g.config.FIFO && blocked[msg.group]) && (l == nil || l.state == consume.Ready) {
			out[msg.id] = msg
		}
		if !done && msg.group != "" {
			blocked[msg.group] = true
		}
	}
	return out
}

func (m *model) send() {
	n := 1 + m.rnd.IntN(3)
	var msgs []*tidegate.Message
	for range n {
		msg := &tidegate.Message{ID: tidegate.NewMessageID(), Topic: "t", Tag: string('a' + rune(m.rnd.IntN(2))), Body: make([]byte, 1+m.rnd.IntN(600))}
		if m.fifo {
			m.order(msg, fmt.Sprint("mg", m.rnd.IntN(3)))
		}
		msgs = append(msgs, msg)
	}
	var again *modelMessage // sent a second time, within the duplicate window
	if len(m.messages) > 0 && m.rnd.IntN(3) == 0 {
		if old := m.messages[m.rnd.IntN(len(m.messages))]; time.Since(old.sent) < 2*time.Minute {
			again = old
			msg := &tidegate.Message{ID: old.id, Topic: "t", Body: []byte("again")}
			m.order(msg, old.group)
			msgs = append(msgs, msg)
		}
	}
	for i, r := range m.b.Send(m.t.Context(), msgs) {
		if r.Err != nil {
			m.failf("send: %v", r.Err)
		}
		if i == n {
			if r.Receipt.Queue != again.queue || r.Receipt.Offset != again.offset {
				m.failf("%s was sent again and went to %d/%d, not %d/%d", again.id[26:], r.Receipt.Queue, r.Receipt.Offset, again.queue, again.offset)
			}
			continue
		}
		m.messages = append(m.messages, &modelMessage{msgs[i].ID, msgs[i].Tag, msgs[i].MessageGroup + msgs[i].LiteTopic, r.Receipt.Queue, r.Receipt.Offset, time.Now()})
		m.note("sent %s group %q to %d/%d", msgs[i].ID[26:], msgs[i].MessageGroup+msgs[i].LiteTopic, r.Receipt.Queue, r.Receipt.Offset)
	}
}

// order gives a message its message group, or its lite topic.
func (m *model) order(msg *tidegate.Message, name string) {
	if m.lite {
		msg.LiteTopic = name
	} else {
		msg.MessageGroup = name
	}
}

// subscribe makes a consumer of lite topics subscribe to some of them, and removes the messages of the
// others from those that it may get.
func (m *model) subscribe(r *transport.ReceiveRequest, want map[string]*modelMessage) {
	r.LiteConsumer = fmt.Sprint("consumer", m.rnd.IntN(2))
	set := transport.LiteSync{LiteConsumer: transport.LiteConsumer{Group: r.Group, Topic: r.Topic, ID: r.LiteConsumer}}
	for i := range 3 {
		if m.rnd.IntN(4) > 0 {
			set.Topics = append(set.Topics, fmt.Sprint("mg", i))
		}
	}
	if err := m.b.SyncLite(m.t.Context(), set); err != nil {
		m.failf("subscribing to %v: %v", set.Topics, err)
	}
	maps.DeleteFunc(want, func(_ string, msg *modelMessage) bool { return !slices.Contains(set.Topics, msg.group) })
	m.note("%s of group %s has %v", r.LiteConsumer, r.Group, set.Topics)
}

func (m *model) receive() {
	g := m.groups[m.rnd.IntN(len(m.groups))]
	n := 1 + m.rnd.IntN(6)
	inv := time.Duration(1+m.rnd.IntN(12)) * time.Second
	push := m.rnd.IntN(2) == 0
	want := m.ready(g)
	r := transport.ReceiveRequest{
		Group: g.name, Topic: "t", Queue: transport.AnyQueue, Max: n, InvisibleDuration: inv, Push: push,
		Filter: tidegate.Filter{Expression: g.filter}, AttemptID: tidegate.NewMessageID(),
	}
	if m.lite {
		m.subscribe(&r, want)
	}
	ds, err := m.b.Receive(m.t.Context(), r)
	if err != nil {
		m.failf("receive: %v", err)
	}
	if g.config.FIFO && len(ds) > 0 && m.rnd.IntN(3) == 0 {
		again, err := m.b.Receive(m.t.Context(), r)
		if err != nil || !slices.EqualFunc(ds, again, func(x, y *tidegate.Delivery) bool {
			return x.ID == y.ID && x.Handle != y.Handle && x.Attempt == y.Attempt
		}) {
			m.failf("the same attempt again: %v, %v; want %v", again, err, ds)
		}
		serve(m.b).Return(m.t.Context(), ds) // those of the lost response
		ds = again
	}
	for _, d := range ds {
		if want[d.ID] == nil {
			m.failf("group %s was given %s, which it may not have now: %+v", g.name, d.ID[26:], g.leases[d.ID])
		}
		delete(want, d.ID)
		l := g.leases[d.ID]
		if l == nil {
			l = &modelLease{}
			g.leases[d.ID] = l
		}
		*l = modelLease{consume.Inflight, l.attempt + 1, time.Now(), time.Now().Add(inv), d.Handle, push, ""}
		if d.Attempt != l.attempt {
			m.failf("%s has attempt %d, want %d", d.ID[26:], d.Attempt, l.attempt)
		}
		m.stale = append(m.stale, d)
		m.note("group %s got %s attempt %d for %v push %v", g.name, d.ID[26:], d.Attempt, inv, push)
	}
	if len(ds) < n && len(want) > 0 && !m.fifo {
		m.failf("group %s got %d of at most %d, but %d more were ready", g.name, len(ds), n, len(want))
	}
	if len(ds) == 0 && len(want) > 0 {
		m.failf("group %s got nothing, but %d were ready", g.name, len(want))
	}
}

// answer settles some delivery, current or not, and expects the response of the model.
func (m *model) answer() {
	if len(m.stale) == 0 {
		return
	}
	d := m.stale[m.rnd.IntN(len(m.stale))]
	g := m.groups[slices.IndexFunc(m.groups, func(g *modelGroup) bool { return g.name == d.ConsumerGroup })]
	l, now := g.leases[d.ID], time.Now()
	valid := l.state == consume.Inflight && l.handle == d.Handle && l.due.After(now)
	last := l.attempt >= g.config.MaxAttempts
	want, end := *l, consume.DeadLetter
	if g.parks() {
		end = consume.Parked
	}
	dur := time.Duration(m.rnd.IntN(10)) * time.Second
	var err error
	op := m.rnd.IntN(6)
	switch op {
	case 0:
		err = m.b.Ack(m.t.Context(), []*tidegate.Delivery{d})[0]
		want.state = consume.Commit
	case 1:
		_, err = m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.Retry, Delay: dur})
		if want.state, want.due = consume.WaitingRetry, now.Add(dur); last {
			want.state = end
		}
	case 2:
		repeat := m.rnd.IntN(2) == 0 // perhaps the response to another one was lost
		if repeat {
			valid = valid || dur > 0 && l.state == consume.Inflight && l.replaced == d.Handle && l.due.After(now)
		}
		tooLong := valid && dur > 0 && now.Add(dur).After(l.since.Add(modelMaxInvisible))
		want.due, want.replaced = now.Add(dur), d.Handle
		want.handle, err = m.b.Extend(m.t.Context(), d, dur, repeat)
		if tooLong {
			m.note("a change of %s by %v, %v after its delivery: %v", d.ID[26:], dur, now.Sub(l.since), err)
			if codeOf(err) != protocol.CodeIllegalInvisibleTime {
				m.failf("%s was held longer than %v: %v", d.ID[26:], modelMaxInvisible, err)
			}
			return
		}
		if err == nil {
			c := *d
			c.Handle = want.handle
			m.stale = append(m.stale, &c)
			if l.replaced == d.Handle && want.handle != l.handle {
				m.failf("a change that is repeated made another handle")
			}
		}
		switch { // 0 gives it back
		case dur > 0:
		case l.push:
			want.state, want.attempt = consume.Ready, l.attempt-1
		case last:
			want.state = end
		default:
			want.state = consume.Ready
		}
	case 3:
		serve(m.b).Return(m.t.Context(), []*tidegate.Delivery{d})
		if want.state, want.attempt, want.handle = consume.Ready, l.attempt-1, ""; !valid {
			err = tidegate.ErrInvalidHandle // it has no response
		}
	case 5:
		_, err = m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.Snooze, Delay: dur})
		want.state, want.due, want.attempt, want.handle = consume.WaitingRetry, now.Add(dur), l.attempt-1, ""
	case 4: // may come late, and again
		_, err = m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "model"})
		done := l.state == consume.Commit || l.state == consume.DeadLetter
		if valid = done || l.handle == d.Handle; !done {
			want.state = consume.DeadLetter
			if last {
				want.state = end
			}
		}
	}
	m.note("answer %d to %s attempt %d: valid %v, %v", op, d.ID[26:], d.Attempt, valid, err)
	if valid != (err == nil) || err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
		m.failf("operation %d on %s attempt %d: %v; valid is %v", op, d.ID[26:], d.Attempt, err, valid)
	}
	if !valid {
		return
	}
	if want.state == consume.DeadLetter && l.state != consume.DeadLetter {
		m.dead[g.name+d.ID]++
	}
	*l = want
}

// redrive brings back the parked message groups of a group, or makes dead letters of their heads.
func (m *model) redrive() {
	g := m.groups[m.rnd.IntN(len(m.groups))]
	sel := status.ParkedSelection{DeadLetter: m.rnd.IntN(3) == 0}
	only := ""
	if page, err := m.b.Parked(g.name, status.ParkedQuery{State: "parked"}); err == nil && len(page.Groups) > 0 && m.rnd.IntN(2) == 0 {
		only = page.Groups[m.rnd.IntN(len(page.Groups))].MessageGroup
		sel.Topic, sel.MessageGroup = "t", only
	}
	want := int64(0)
	for _, msg := range m.messages {
		l := g.leases[msg.id]
		if l == nil || l.state != consume.Parked || only != "" && msg.group != only {
			continue
		}
		want++
		if *l = (modelLease{state: consume.Ready}); sel.DeadLetter {
			l.state = consume.DeadLetter
			m.dead[g.name+msg.id]++
		}
	}
	done, err := m.b.RedriveParked(m.t.Context(), g.name, sel)
	m.note("redrive of group %s, %+v: %+v, %v", g.name, sel, done, err)
	if done.MessageGroups != want || err != nil && !errors.Is(err, tidegate.ErrNotFound) {
		m.failf("%d message groups of group %s are parked, redriven %+v, %v", want, g.name, done, err)
	}
}

// deleteGroup deletes a group, which a later receive creates again; its dead letters stay.
func (m *model) deleteGroup() {
	g := m.groups[m.rnd.IntN(len(m.groups))]
	if err := m.b.DeleteGroup(m.t.Context(), g.name); err != nil {
		m.failf("deleting: %v", err)
	}
	putGroup(m.t, m.b, g.name, g.config)
	g.leases = map[string]*modelLease{}
	m.stale = slices.DeleteFunc(m.stale, func(d *tidegate.Delivery) bool { return d.ConsumerGroup == g.name })
	m.note("deleted group %s", g.name)
}

// check compares the counters, and every dead letter.
func (m *model) check() {
	for _, g := range m.groups {
		backlog := int64(0)
		for _, msg := range m.messages {
			l := g.leases[msg.id]
			if l == nil || l.state != consume.Commit && l.state != consume.DeadLetter {
				backlog++
			}
		}
		info, err := m.b.Group(g.name)
		if err != nil || len(info.Topics) == 0 {
			continue // has not received yet
		}
		s := info.Topics[0]
		if g.filter == "" && s.Backlog.Messages != backlog {
			m.failf("group %s has backlog %d, want %d", g.name, s.Backlog.Messages, backlog)
		}
		if got := s.Ready + s.Inflight + s.WaitingRetry + s.Parked + s.Blocked; got != s.Backlog.Messages {
			m.failf("group %s: ready %d + in flight %d + waiting %d is not its backlog %d", g.name, s.Ready, s.Inflight, s.WaitingRetry, s.Backlog.Messages)
		}
		if _, err := m.b.Topic("%DLQ%" + g.name); err != nil {
			continue
		}
		got := 0
		for _, d := range receiveAll(m.t, m.b, "%DLQ%"+g.name) {
			if m.dead[g.name+d.ID] == 0 {
				m.failf("%s is a dead letter of %s, but should not be", d.ID, g.name)
			}
			got++
		}
		want := 0
		for k, n := range m.dead {
			if k[:len(g.name)] == g.name {
				want += n
			}
		}
		if got != want {
			m.failf("group %s has %d dead letters, want %d", g.name, got, want)
		}
	}
}

var (
	modelSeed      = flag.Uint64("model.seed", 0, "run one sequence of the model test, the one with this seed")
	modelSequences = flag.Int("model.sequences", 6, "how many sequences the model test runs")
)

func TestModel(t *testing.T) {
	runSequences(t, "model", *modelSeed, *modelSequences, runModel)
}

// runSequences runs n random sequences, each in a bubble of its own, on all cores, or the one of a
// seed that is not 0. It logs the seed of a failed one.
func runSequences(t *testing.T, flags string, seed uint64, n int, run func(*testing.T, uint64)) {
	if seed != 0 {
		n = 1
	}
	workers := min(runtime.GOMAXPROCS(0), n)
	for w := range workers {
		t.Run(fmt.Sprint("worker", w), func(t *testing.T) {
			t.Parallel()
			seed := seed
			if seed == 0 {
				seed = rand.Uint64()
			}
			defer func() {
				if t.Failed() {
					t.Logf("run it again with -%s.seed %d", flags, seed)
				}
			}()
			for i := w; i < n; i += workers {
				synctest.Test(t, func(t *testing.T) { run(t, seed) })
				if t.Failed() {
					return
				}
				seed = rand.Uint64()
			}
		})
	}
}

func (m *model) note(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

func (m *model) failf(format string, args ...any) {
	m.t.Helper()
	for _, l := range m.log[max(0, len(m.log)-40):] {
		m.t.Log(l)
	}
	m.t.Fatalf(format, args...)
}

func (m *model) open() {
	b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1, MaxInvisibleDuration: modelMaxInvisible}.On(m.fs).MemTable(256 << 10))
	if err != nil {
		m.failf("opening: %v", err)
	}
	m.b = b
}

func runModel(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := &model{t: t, rnd: rnd, fs: vfs.NewMem(), dead: map[string]int{}}
	m.open()
	defer func() { m.b.Close() }()
	topic := settings.Topic{Type: []settings.TopicType{settings.TopicNormal, settings.TopicFIFO, settings.TopicLite}[rnd.IntN(3)], Queues: 1 + rnd.IntN(3)}
	m.fifo, m.lite = topic.Type != settings.TopicNormal, topic.Type == settings.TopicLite
	if m.lite {
		topic.Queues = 0
	}
	putTopic(t, m.b, "t", topic)
	for i := range 1 + rnd.IntN(2) {
		g := &modelGroup{name: fmt.Sprint("g", i), leases: map[string]*modelLease{}}
		g.config = settings.Group{FIFO: m.fifo && rnd.IntN(3) > 0, MaxAttempts: 1 + rnd.IntN(4), FIFORetryInterval: settings.Duration(2 * time.Second)}.WithDefaults()
		if g.config.FIFO && rnd.IntN(2) == 0 {
			g.config.OnExhausted = settings.OnExhaustedPark
		}
		if m.lite {
			g.config.FIFO, g.config.Lite.Topic = true, "t"
		} else if rnd.IntN(3) == 0 {
			g.filter = "a"
		}
		putGroup(t, m.b, g.name, g.config)
		m.groups = append(m.groups, g)
	}
	for range 60 + rnd.IntN(60) {
		switch n := rnd.IntN(21); {
		case n == 20:
			m.redrive()
		case n < 4:
			m.send()
		case n < 10:
			m.receive()
		case n < 16:
			m.answer()
		case n < 19:
			time.Sleep(time.Duration(rnd.IntN(15000)) * time.Millisecond)
			synctest.Wait()
		case rnd.IntN(4) == 0:
			m.deleteGroup()
		default:
			if err := m.b.Close(); err != nil {
				m.failf("closing: %v", err)
			}
			m.open()
			m.note("reopened")
			synctest.Wait()
		}
		synctest.Wait() // a retry that is due at once needs its timer
		for _, g := range m.groups {
			g.settle(time.Now(), m.dead)
		}
	}
	time.Sleep(time.Millisecond)
	synctest.Wait()
	for _, g := range m.groups {
		g.settle(time.Now(), m.dead)
	}
	m.check()
}

var soakFactor = flag.Int("soak", 0, "how many times all their rounds the random tests run; 0 for a fifth of them")

// soak returns the number of rounds of a random test: n times the flag, or a fifth of n without it.
// The step "random tests" of .ci/run has all rounds.
func soak(n int) int {
	if *soakFactor > 0 {
		return n * *soakFactor
	}
	return max(1, n/5)
}
