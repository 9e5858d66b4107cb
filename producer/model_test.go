package producer

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/tidegate/tidegate/internal/model"
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
	if len(m.letters) > 0 || m.watchSet.Len() > 0 {
		t.Errorf("%d messages and %d watches are left after the end of all ctxs", len(m.letters), m.watchSet.Len())
	}
}

func (m *watchModel) newCtx() *fakeCtx {
	return &fakeCtx{Context: m.t.Context(), done: make(chan struct{}), functions: map[int]func(){}}
}

// Lock and Unlock are those of the topic.
func (m *watchModel) Lock() {
	if m.locked {
		m.t.Error("the lock is acquired twice")
	}
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
	if m.locked {
		m.t.Error("a function of the user is called with the lock")
	}
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
	if (begun != nil) != (c.watched == 0) {
		m.t.Errorf("a watch begins: %v, and its ctx watches %d messages", begun != nil, c.watched)
	}
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
	if !ok {
		m.t.Fatal("another ctx")
	}
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
		if c.ended && c.watched > 0 {
			m.t.Errorf("%d messages wait for a ctx that has ended", c.watched)
		}
		if len(c.functions) != want {
			m.t.Errorf("a ctx with %d messages has %d functions, want %d", c.watched, len(c.functions), want)
		}
	}
	if m.watchSet.Len() != watched {
		m.t.Errorf("%d watches for %d ctxs with messages", m.watchSet.Len(), watched)
	}
	for _, x := range m.letters {
		if x.ctx.ended {
			m.t.Error("a message has outlived its ctx")
		}
	}
}
