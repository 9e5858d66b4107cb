package producer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/internal/model"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// A watchModel plays a topic, the callers of SendAsync and their ctxs. All goroutines take turns:
// wherever one holds no lock, events of others happen.
type watchModel struct {
	watchSet[*letter]
	t       *testing.T
	r       *rand.Rand
	locked  bool
	ctxs    []*fakeCtx
	letters []*letter // without a result
	later   []func()  // steps of goroutines that are under way
	nested  int
	settles bool // no further messages come
	events  int
}

// A letter is a message.
type letter struct {
	member member[*letter]
	ctx    *fakeCtx
	epoch  int // of ctx, when it joined
	over   bool
}

// A fakeCtx runs its functions as later steps.
type fakeCtx struct {
	context.Context

	done      chan struct{}
	ended     bool
	functions map[int]func()
	set       int // functions so far
	epoch     int // ends of watches so far
	watched   int // messages in the watch that began in this epoch
}

func (c *fakeCtx) Done() <-chan struct{} { return c.done }

// A ctx with messages has one function, and another ctx has none. The end of a ctx ends all of its
// messages.
func TestWatchModel(t *testing.T) { model.Run(t, 250, runWatchModel) }

func runWatchModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := &watchModel{t: t, r: r}
	m.watchSet = newSet(m, m.leave)
	m.after = m.afterFunc
	for range 3 {
		m.ctxs = append(m.ctxs, m.newCtx())
	}
	for n := 0; n < 3000 && !t.Failed(); n++ {
		m.step()
		if m.r.IntN(20) == 0 {
			m.settle()
		}
	}
	for _, c := range m.ctxs {
		m.endCtx(c)
	}
	m.settle()
	assert.That(t, len(m.letters) == 0 && m.watchSet.Len() <= 0,
		"%d messages and %d watches are left after the end of all ctxs", len(m.letters), m.watchSet.Len())
}

func (m *watchModel) newCtx() *fakeCtx {
	return &fakeCtx{Context: m.t.Context(), done: make(chan struct{}), functions: map[int]func(){}}
}

// Lock and Unlock are those of the topic.
func (m *watchModel) Lock() {
	assert.That(m.t, !m.locked, "the lock is acquired twice")
	m.locked = true
}

func (m *watchModel) Unlock() { m.locked = false }

// step makes one random event happen.
func (m *watchModel) step() {
	m.events++
	switch n := m.r.IntN(100); {
	case n < 35:
		m.join(m.ctxs[m.r.IntN(len(m.ctxs))])
	case n < 65 && len(m.letters) > 0:
		m.result(m.letters[m.r.IntN(len(m.letters))])
	case n < 68:
		i := m.r.IntN(len(m.ctxs))
		m.endCtx(m.ctxs[i])
		if m.r.IntN(2) == 0 { // otherwise further messages come with the ended one
			for m.ctxs[i].watched+len(m.ctxs[i].functions) > 0 {
				m.goOn()
			}
			m.ctxs[i] = m.newCtx()
		}
	default:
		m.goOn()
	}
}

// elsewhere lets others act while a goroutine holds no lock.
func (m *watchModel) elsewhere() {
	assert.That(m.t, !m.locked, "a function of the user is called with the lock")
	if m.nested > 1 {
		return
	}
	m.nested++
	for range m.r.IntN(3) {
		m.events++
		if m.r.IntN(3) > 0 && len(m.letters) > 0 {
			m.result(m.letters[m.r.IntN(len(m.letters))])
		} else if !m.settles {
			m.join(m.ctxs[m.r.IntN(len(m.ctxs))])
		}
	}
	if m.r.IntN(8) == 0 {
		m.endCtx(m.ctxs[m.r.IntN(len(m.ctxs))])
	}
	if m.r.IntN(2) == 0 {
		m.goOn()
	}
	m.nested--
}

// goOn takes the next step of a goroutine that is under way.
func (m *watchModel) goOn() {
	if len(m.later) == 0 {
		return
	}
	i := m.r.IntN(len(m.later))
	step := m.later[i]
	m.later = append(m.later[:i], m.later[i+1:]...)
	step()
}

// join is a SendAsync.
func (m *watchModel) join(c *fakeCtx) {
	x := &letter{ctx: c, epoch: c.epoch}
	m.letters = append(m.letters, x)
	m.Lock()
	begun := m.watchSet.Join(c, x, &x.member)
	m.Unlock()
	assert.That(m.t, (begun != nil) == (c.watched == 0),
		"a watch begins: %v, and its ctx watches %d messages", begun != nil, c.watched)
	c.watched++
	if begun != nil {
		m.later = append(m.later, begun.Start)
	}
}

// result ends a message.
func (m *watchModel) result(x *letter) {
	if x.over {
		return
	}
	x.over = true
	for i, other := range m.letters {
		if other == x {
			m.letters = append(m.letters[:i], m.letters[i+1:]...)
			break
		}
	}
	if x.epoch == x.ctx.epoch {
		x.ctx.watched--
	}
	m.Lock()
	stop := x.member.Leave()
	m.Unlock()
	if stop != nil {
		m.later = append(m.later, func() { stop() })
	}
}

// leave ends the messages of a watch.
func (m *watchModel) leave(letters []*letter) {
	for i, x := range letters {
		if i == 0 {
			x.ctx.epoch, x.ctx.watched = x.ctx.epoch+1, 0
		}
		if !x.ctx.ended || x.epoch != letters[0].epoch {
			m.t.Errorf("a message leaves, and its ctx has ended: %v", x.ctx.ended)
		}
	}
	for _, x := range letters {
		m.elsewhere()
		m.result(x)
	}
}

func (m *watchModel) endCtx(c *fakeCtx) {
	if c.ended {
		return
	}
	c.ended = true
	close(c.done)
	for n, f := range c.functions {
		delete(c.functions, n)
		m.later = append(m.later, f)
	}
}

// afterFunc is context.AfterFunc.
func (m *watchModel) afterFunc(ctx context.Context, f func()) (stop func() bool) {
	c, ok := ctx.(*fakeCtx)
	assert.MustThat(m.t, ok, "another ctx")
	m.elsewhere()
	n := c.set
	c.set++
	if c.ended {
		m.later = append(m.later, f)
	} else {
		c.functions[n] = f
	}
	m.elsewhere()
	return func() bool {
		m.elsewhere()
		_, ok := c.functions[n]
		delete(c.functions, n)
		return ok
	}
}

// settle lets all goroutines come to rest, and checks the state.
func (m *watchModel) settle() {
	m.settles = true
	for n := 10 * (len(m.letters) + len(m.later)); len(m.later) > 0; n-- {
		if m.goOn(); n < 0 {
			m.t.Fatal("the goroutines never rest")
		}
	}
	m.settles = false
	watched := 0
	for _, c := range m.ctxs {
		want := 0
		if c.watched > 0 {
			watched++
			want = 1
		}
		assert.That(m.t, !c.ended || c.watched <= 0, "%d messages wait for a ctx that has ended", c.watched)
		assert.That(m.t, len(c.functions) == want,
			"a ctx with %d messages has %d functions, want %d", c.watched, len(c.functions), want)
	}
	assert.Equal(m.t, "watches for ctxs with messages", m.watchSet.Len(), watched)
	for _, x := range m.letters {
		assert.That(m.t, !x.ctx.ended, "a message has outlived its ctx")
	}
}

// A spoolModel plays the topics, the disk and the goroutines of a producer with a spool.
type spoolModel struct {
	p        *Producer
	t        *testing.T
	r        *rand.Rand
	added    []*item          // to the spool, and not written yet, in their order
	writing  []*item          // of the write under way
	groups   map[string]int   // messages of them, and of those whose result is not stored
	results  map[*item]result // of the writes whose results are not stored
	ready    []func()         // goroutines that are starting
	number   int
	adds     int
	writes   int
	finished int
}

type result struct{ err error }

// Each message for the spool is written once, in order, and has the result of its write. A message
// that waits has a goroutine, and no write is without messages. A later message of a message group
// follows the earlier ones until they are written.
func TestSpoolWriterModel(t *testing.T) { model.Run(t, 60, runSpoolModel) }

func runSpoolModel(t *testing.T, r *rand.Rand) {
	t.Helper()
	m := &spoolModel{t: t, r: r, groups: map[string]int{}, results: map[*item]result{}}
	var err error
	if m.p, err = New(&transporttest.Fake{}, Options{Spool: m}); err != nil {
		t.Fatal(err)
	}
	m.p.spooler.start = func(run func()) {
		m.p.ledger.Running.Add(1)
		m.ready = append(m.ready, run)
	}
	for n := 0; n < 3000 && !t.Failed(); n++ {
		m.step()
	}
	for len(m.ready) > 0 && !t.Failed() {
		m.run()
	}
	m.check()
	if m.finished != m.adds || m.writes > m.adds || len(m.p.topics["orders"].spooling) > 0 {
		t.Errorf("%d of %d messages have a result, after %d writes; the topic waits for writes of %v", m.finished, m.adds, m.writes, m.p.topics["orders"].spooling)
	}
	if !t.Failed() {
		_ = m.p.Close()
	}
}

// step makes one random event happen.
func (m *spoolModel) step() {
	switch n := m.r.IntN(1000); {
	case n == 0:
		for range m.r.IntN(3 * maxSpooled) {
			m.add()
		}
	case n < 700:
		m.add()
	case len(m.ready) > 0:
		m.run()
	}
	m.check()
}

// add lets a message move to the spool.
func (m *spoolModel) add() {
	m.number++
	msg := &tidegate.Message{ID: fmt.Sprint(m.number), Topic: "orders", MessageGroup: []string{"", "a", "b", "c"}[m.r.IntN(4)]}
	it := newItem(m.t.Context(), msg)
	it.topic, it.wake = m.p.use("orders"), make(chan struct{})
	if !m.p.ledger.Admit(it, &it.entry, 1) {
		m.t.Error("the producer is closed")
		return
	}
	it.topic.mu.Lock()
	defer it.topic.mu.Unlock()
	if it.topic.diverts(it) != (m.groups[msg.MessageGroup] > 0) {
		m.t.Errorf("a message of a group with %d messages on their way to the spool follows them: %v", m.groups[msg.MessageGroup], it.topic.diverts(it))
	}
	if msg.MessageGroup != "" {
		m.groups[msg.MessageGroup]++
	}
	m.adds++
	m.added = append(m.added, it)
	it.topic.spool(it, it.fail(StopThrottled, nil))
}

// run runs a goroutine of the producer until it ends.
func (m *spoolModel) run() {
	run := m.ready[0]
	m.ready = m.ready[1:]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer m.p.ledger.Running.Done()
		defer m.store()
		run()
	}()
	<-ended
}

// PutBatch implements Spool. Other events happen meanwhile.
func (m *spoolModel) PutBatch(_ context.Context, msgs []*tidegate.Message) []error {
	m.store()
	if m.writes++; len(msgs) == 0 || len(msgs) > maxSpooled || len(msgs) < min(len(m.added), maxSpooled) {
		m.t.Errorf("a write of %d messages, and %d wait", len(msgs), len(m.added))
	}
	assert.That(m.t, len(m.ready) == 0, "a write has begun, and another goroutine is starting")
	m.writing = m.added[:len(msgs):len(msgs)]
	m.added = m.added[len(msgs):]
	errs := make([]error, len(msgs))
	wrong, goexit := m.r.IntN(20) == 0, m.r.IntN(20) == 0
	for i, it := range m.writing {
		if msgs[i] != it.Message {
			m.t.Errorf("message %s is written in the place of %s", msgs[i].ID, it.Message.ID)
		}
		if m.r.IntN(4) == 0 {
			errs[i] = errDisk
		}
		m.results[it] = result{errs[i]}
		if wrong || goexit {
			m.results[it] = result{errOther}
		}
	}
	for range m.r.IntN(4) {
		m.add()
		m.check()
	}
	switch {
	case goexit:
		runtime.Goexit()
	case wrong:
		return errs[1:]
	}
	return errs
}

var errDisk, errOther = errors.New("the disk is full"), errors.New("another error")

// store checks the results of the last write, which the producer has stored meanwhile.
func (m *spoolModel) store() {
	for _, it := range m.writing {
		want := m.results[it].err
		switch {
		case want == nil && (it.state != spooled || it.err != nil || !it.receipt.Spooled),
			want != nil && (it.state != failed || it.err == nil),
			errors.Is(want, errDisk) != (it.err != nil && errors.Is(it.err, errDisk)):
			m.t.Errorf("the result of a message is in state %d with %v, want %v", it.state, it.err, want)
		}
		select {
		case <-it.wake:
		default:
			m.t.Error("a message has its result, and its caller still waits")
		}
		m.finished++
		if m.groups[it.Message.MessageGroup]--; m.groups[it.Message.MessageGroup] <= 0 {
			delete(m.groups, it.Message.MessageGroup)
		}
		delete(m.results, it)
	}
	m.writing = nil
}

// check checks that a message which waits has a goroutine.
func (m *spoolModel) check() {
	assert.That(m.t, (len(m.writing) != 0 || len(m.added) == 0 || len(m.ready) != 0) && len(m.ready) <= 1,
		"%d messages wait for a write, and %d goroutines are starting", len(m.added), len(m.ready))
}

// Holds implements Spool.
func (m *spoolModel) Holds(string, string) bool { return false }

// Drain implements Spool.
func (m *spoolModel) Drain(ctx context.Context, _ func(context.Context, []*tidegate.Message) []error) error {
	<-ctx.Done()
	return nil
}

// Copies are equal to the messages, and stay so when these change.
func TestCopiesStay(t *testing.T) {
	for range 200 {
		var messages []*tidegate.Message
		var want []tidegate.Message
		for i := range rand.IntN(20) {
			body := strings.Repeat(fmt.Sprint(i), rand.IntN(3000))
			of := func() tidegate.Message {
				m := tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte(body)}
				if i%3 == 0 {
					m.Keys, m.Properties = []string{"k"}, map[string]string{"p": "v"}
				}
				return m
			}
			m := of()
			messages, want = append(messages, &m), append(want, of())
		}
		s := copied(messages)
		for i, m := range messages {
			if i%3 == 0 {
				m.Keys[0], m.Properties["p"] = "new", "new"
			}
			clear(m.Body)
			m.ID, m.Topic, m.Body = "new", "new", nil
		}
		assert.MustEqual(t, "copies messages", len(s.Messages), len(want))
		for i, m := range s.Messages {
			if !reflect.DeepEqual(*m, want[i]) {
				t.Errorf("copy %d is %+v, want %+v", i, *m, want[i])
			}
			assert.That(t, cap(m.Body) == len(m.Body), "appending to body %d would change the next one", i)
		}
		s.Free()
	}
}

// The memory of large requests is not used again, and that of others holds no message.
func TestFreeForgets(t *testing.T) {
	for _, tt := range []struct{ messages, size int }{{1, 10}, {maxMessages, 10}, {maxMessages + 1, 1}, {1, maxBytes + 1}} {
		var messages []*tidegate.Message
		for range tt.messages {
			messages = append(messages, &tidegate.Message{ID: "i", Keys: []string{"k"}, Body: make([]byte, tt.size)})
		}
		s := copied(messages)
		structs, pointers := s.structs, s.Messages
		s.Free()
		for i := range structs {
			assert.MustThat(t, structs[i].ID == "" && structs[i].Keys == nil && structs[i].Body == nil && pointers[i] == nil,
				"%d messages of %d bytes: number %d is still there", tt.messages, tt.size, i)
		}
		if again := copyPool.Get().(*copySet); cap(again.bodies) > maxBytes || cap(again.structs) > maxMessages {
			t.Errorf("the memory of %d messages of %d bytes is used again", tt.messages, tt.size)
		}
	}
}

// Each reason has words of its own, and it is decided whether a message that ends for it moves to
// the spool: it does if a later send may succeed.
func TestEveryReasonIsDecided(t *testing.T) {
	spools := map[StopReason]bool{
		NotStopped:      false, // the message has not ended
		StopInvalid:     false,
		StopPermanent:   false,
		StopExhausted:   true,
		StopThrottled:   true,
		StopPushedBack:  true,
		StopDeadline:    true,
		StopLimiter:     true,
		StopContext:     true, // while its ctx has not been cancelled
		StopClosed:      true,
		StopFull:        false, // the producer never had it
		StopBudget:      true,
		StopHalfMessage: false,
		StopSpool:       true, // the group moves there
	}
	words := map[string]bool{"unknown": true}
	of := &topic{p: &Producer{spooler: &spooler{}}}
	for r := NotStopped; r.String() != "unknown" || r <= StopSpool; r++ {
		assert.That(t, !words[r.String()], "reason %d has no words of its own: %q", r, r)
		words[r.String()] = true
		want, decided := spools[r]
		assert.That(t, decided, "%q: the table does not decide whether the message moves to the spool", r)
		it := newItem(t.Context(), &tidegate.Message{Topic: "orders"})
		it.topic = of
		got := of.spools(it, &SendError{Reason: r})
		assert.That(t, got == want, "%q: moves to the spool: %v, want %v", r, got, want)
	}
}

func copied(messages []*tidegate.Message) *copySet {
	s := copyPool.Get().(*copySet)
	s.add(messages)
	return s
}
