package broker

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

var (
	modelSeed      = flag.Uint64("model.seed", 0, "run one sequence of the model test, the one with this seed")
	modelSequences = flag.Int("model.sequences", 300, "how many sequences the model test runs")
)

// The model: what each group should see of each message, as plainly as can be
// said. It chooses nothing; it checks that what the engine chose was allowed,
// and that the engine did not keep back what it had to give.
type modelMessage struct {
	id, tag, group string
	queue          int
	offset         int64
}

type modelLease struct {
	state   State
	attempt int
	due     time.Time
	handle  string
	push    bool
}

type modelGroup struct {
	name   string
	config GroupConfig
	filter string
	leases map[string]*modelLease // by message ID; none: never delivered
}

type model struct {
	t        *testing.T
	rnd      *rand.Rand
	b        *Broker
	fs       vfs.FS
	fifo     bool
	messages []*modelMessage
	groups   []*modelGroup
	dead     map[string]int // group + ID of dead letters
	stale    []*tidegate.Delivery
	log      []string
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
	b, err := Open(Options{Dir: "data", MinInvisibleDuration: 1, fs: m.fs})
	if err != nil {
		m.failf("opening: %v", err)
	}
	m.b = b
}

// settle lets time have its effect on the model.
func (g *modelGroup) settle(now time.Time, dead map[string]int) {
	for id, l := range g.leases {
		for (l.state == StateInflight || l.state == StateWaitingRetry) && !l.due.After(now) {
			switch {
			case g.config.exhausted(l.attempt):
				l.state = StateDeadLetter
				dead[g.name+id]++
			case l.state == StateInflight && l.push:
				l.state, l.due = StateWaitingRetry, l.due.Add(g.config.interval(l.attempt))
			default:
				l.state = StateReady
			}
		}
	}
}

// ready returns the messages that the group may be given now.
func (m *model) ready(g *modelGroup) map[string]*modelMessage {
	out := map[string]*modelMessage{}
	blocked := map[string]bool{}
	for _, msg := range m.messages { // in the order of their offsets
		if g.filter != "" && g.filter != msg.tag {
			continue
		}
		l := g.leases[msg.id]
		done := l != nil && (l.state == StateCommit || l.state == StateDeadLetter)
		if !done && !(g.config.FIFO && blocked[msg.group]) && (l == nil || l.state == StateReady) {
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
			msg.MessageGroup = fmt.Sprint("mg", m.rnd.IntN(3))
		}
		msgs = append(msgs, msg)
	}
	for i, r := range m.b.Send(m.t.Context(), msgs) {
		if r.Err != nil {
			m.failf("send: %v", r.Err)
		}
		m.messages = append(m.messages, &modelMessage{msgs[i].ID, msgs[i].Tag, msgs[i].MessageGroup, r.Receipt.Queue, r.Receipt.Offset})
		m.note("sent %s group %q to %d/%d", msgs[i].ID[26:], msgs[i].MessageGroup, r.Receipt.Queue, r.Receipt.Offset)
	}
}

func (m *model) receive() {
	g := m.groups[m.rnd.IntN(len(m.groups))]
	n := 1 + m.rnd.IntN(6)
	inv := time.Duration(1+m.rnd.IntN(20)) * time.Second
	push := m.rnd.IntN(2) == 0
	want := m.ready(g)
	ds, err := m.b.Receive(m.t.Context(), transport.ReceiveRequest{
		Group: g.name, Topic: "t", Queue: transport.AnyQueue, Max: n, InvisibleDuration: inv, Push: push, Filter: transport.Filter{Expression: g.filter},
	})
	if err != nil {
		m.failf("receive: %v", err)
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
		*l = modelLease{StateInflight, l.attempt + 1, time.Now().Add(inv), d.Handle, push}
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

// answer settles some delivery, current or not, and expects the same answer as the model.
func (m *model) answer() {
	if len(m.stale) == 0 {
		return
	}
	i := m.rnd.IntN(len(m.stale))
	d := m.stale[i]
	var g *modelGroup
	for _, x := range m.groups {
		if x.name == d.ConsumerGroup {
			g = x
		}
	}
	l := g.leases[d.ID]
	valid := l.state == StateInflight && l.handle == d.Handle && l.due.After(time.Now())
	var err error
	op := m.rnd.IntN(4)
	switch op {
	case 0:
		err = m.b.Ack(m.t.Context(), []*tidegate.Delivery{d})[0]
	case 1:
		err = m.b.Retry(m.t.Context(), d, time.Duration(m.rnd.IntN(10))*time.Second)
	case 2:
		var h string
		dur := time.Duration(1+m.rnd.IntN(10)) * time.Second
		if h, err = m.b.ChangeInvisibleDuration(m.t.Context(), d, dur); err == nil && valid {
			l.handle, l.due = h, time.Now().Add(dur)
			c := *d
			c.Handle = h
			m.stale = append(m.stale, &c)
		}
	case 3:
		m.b.Release(m.t.Context(), []*tidegate.Delivery{d})
		if valid {
			l.state, l.attempt, l.handle = StateReady, l.attempt-1, ""
		}
		m.note("released %s valid %v", d.ID[26:], valid)
		return
	}
	m.note("answer %d to %s attempt %d: valid %v, %v", op, d.ID[26:], d.Attempt, valid, err)
	if valid != (err == nil) || err != nil && !errors.Is(err, tidegate.ErrInvalidHandle) {
		m.failf("operation %d on %s attempt %d: %v; valid is %v", op, d.ID[26:], d.Attempt, err, valid)
	}
	if !valid {
		return
	}
	switch op {
	case 0:
		l.state = StateCommit
	case 1:
		if l.state = StateWaitingRetry; g.config.exhausted(l.attempt) {
			l.state = StateDeadLetter
			m.dead[g.name+d.ID]++
			return
		}
		l.due = m.due(g, d, l)
	}
}

// due asks the engine for the delay that answer drew, so that the model needs no second source of chance.
func (m *model) due(g *modelGroup, d *tidegate.Delivery, _ *modelLease) time.Time {
	s := m.b.subs.of(m.b.group(g.name).id)[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.cursors[d.Queue].leases[d.Offset]; l != nil {
		return l.Due
	}
	return time.Now()
}

// check compares the counters, and every dead letter.
func (m *model) check() {
	for _, g := range m.groups {
		backlog := int64(0)
		for _, msg := range m.messages {
			l := g.leases[msg.id]
			if l == nil || l.state != StateCommit && l.state != StateDeadLetter {
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
		if got := s.Ready + s.Inflight + s.WaitingRetry; got != s.Backlog.Messages {
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
		for k := range m.dead {
			if k[:len(g.name)] == g.name {
				want++
			}
		}
		if got != want {
			m.failf("group %s has %d dead letters, want %d", g.name, got, want)
		}
	}
}

// receiveAll reads a topic from its beginning, as a group of its own.
func receiveAll(t *testing.T, b *Broker, topic string) (out []*tidegate.Delivery) {
	reader := fmt.Sprintf("reader%d", rand.Uint64())
	defer func() { _ = b.DeleteGroup(t.Context(), reader) }()
	for {
		ds := receive(t, b, transport.ReceiveRequest{Group: reader, Topic: topic, Max: 32, InvisibleDuration: time.Hour})
		if len(ds) == 0 {
			return out
		}
		out = append(out, ds...)
	}
}

func TestModel(t *testing.T) {
	seeds := make([]uint64, 0, *modelSequences)
	for range *modelSequences {
		seeds = append(seeds, rand.Uint64())
	}
	if *modelSeed != 0 {
		seeds = []uint64{*modelSeed}
	}
	for _, seed := range seeds {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runModel(t, seed) })
		})
		if !ok {
			t.Fatalf("run it again with -run TestModel -model.seed %d", seed)
		}
	}
}

func runModel(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	m := &model{t: t, rnd: rnd, fs: vfs.NewMem(), fifo: rnd.IntN(2) == 0, dead: map[string]int{}}
	m.open()
	defer func() { m.b.Close() }()
	topicType := TopicNormal
	if m.fifo {
		topicType = TopicFIFO
	}
	putTopic(t, m.b, "t", TopicConfig{Type: topicType, Queues: 1 + rnd.IntN(3)})
	for i := range 1 + rnd.IntN(2) {
		g := &modelGroup{name: fmt.Sprint("g", i), leases: map[string]*modelLease{}}
		g.config = GroupConfig{FIFO: m.fifo && rnd.IntN(3) > 0, MaxAttempts: 1 + rnd.IntN(4), FIFORetryInterval: Duration(2 * time.Second)}.withDefaults()
		if rnd.IntN(3) == 0 {
			g.filter = "a"
		}
		putGroup(t, m.b, g.name, g.config)
		m.groups = append(m.groups, g)
	}
	for range 60 + rnd.IntN(60) {
		switch n := rnd.IntN(20); {
		case n < 4:
			m.send()
		case n < 10:
			m.receive()
		case n < 16:
			m.answer()
		case n < 19:
			time.Sleep(time.Duration(rnd.IntN(15000)) * time.Millisecond)
			synctest.Wait()
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
