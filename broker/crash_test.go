package broker_test

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

var (
	crashEvery = flag.Bool("crash.every", false, "crash a recorded run at every index of its file system operations, not at a sample")
	crashSeed  = flag.Uint64("crash.seed", 0, "record the run with this seed; 0 for another one each time")
	crashSteps = flag.Int("crash.steps", 150, "how many operations the recorded run has")
	crashIndex = flag.Int("crash.index", -1, "crash the recorded run at this index only")
)

// crashSample is about how many moments of a run are looked at if not every one is, as .ci/run does
// without the race detector.
const crashSample = 6

// A recorded run of all operations that change stored data loses its power at each of its writes,
// syncs, renames and so on, with none or a part of the unsynced data. The power fails again while
// the data is opened. Acknowledged results hold. RocketMQ: consumption retry: "You can ensure the
// correct message status when an exception, such as power failure, occurs"
func TestPowerLossAtEveryIndex(t *testing.T) {
	t.Parallel()
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-crash.seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	stride, operations := 1, 0
	var crashes []*crash
	record := func() {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{t: t, rnd: rand.New(rand.NewPCG(seed, 2))}
			fs := newCrashFS(vfs.NewCrashableMem())
			first := rnd.IntN(stride)
			fs.before = func(i int) {
				operations = i + 1
				if stride > 1 && i%stride != first || *crashIndex >= 0 && i != *crashIndex {
					return
				}
				facts := r.sofar()
				for _, percent := range []int{0, 1 + rnd.IntN(100)} {
					crashes = append(crashes, &crash{fmt.Sprintf("index %d with %d%%", i, percent), fs.clone(percent, seed+uint64(i)), time.Now(), facts})
				}
			}
			r.fs = fs
			r.run(*crashSteps)
		})
	}
	if !*crashEvery && *crashIndex < 0 {
		stride = 1 << 30
		record() // only counts
		stride, crashes = max(1, operations/soak(crashSample)), nil
	}
	record()
	t.Logf("%d operations, %d crashes", operations, len(crashes))
	for i, c := range crashes {
		again := c.crashWhileOpening(t, rnd)
		c.check(t)
		if again != nil {
			again.check(t)
		}
		if crashes[i] = nil; t.Failed() {
			t.Fatalf("run it again with -run TestPowerLossAtEveryIndex -crash.seed %d -crash.every", seed)
		}
	}
}

// A crash has the data after a power failure, its time, and the promises before it.
type crash struct {
	what  string
	fs    *vfs.MemFS
	at    time.Time
	facts []fact
}

// crashWhileOpening returns the content after a second power failure, at a random moment of opening
// the content of the first.
func (c *crash) crashWhileOpening(t *testing.T, rnd *rand.Rand) (again *crash) {
	at, percent, seed := rnd.IntN(100), rnd.IntN(101), rnd.Uint64()
	synctest.Test(t, func(*testing.T) {
		time.Sleep(time.Until(c.at))
		fs := newCrashFS(c.fs.CrashClone(vfs.CrashCloneCfg{}))
		fs.before = func(i int) {
			if i == at {
				again = &crash{fmt.Sprintf("%s, then index %d of opening with %d%%", c.what, i, percent), fs.clone(percent, seed), c.at, c.facts}
			}
		}
		if b, err := broker.Open(crashOptions(fs)); err == nil { // or else check reports it
			_ = b.Close()
		}
	})
	return again
}

// A sentMessage has the promises of a recorded run about one message.
type sentMessage struct {
	topic, fifo   string
	batch         int
	order         int
	until         time.Time
	answered      bool
	maybeRecalled bool
	recalled      bool
	receipt       *tidegate.Receipt // of the last one of its batch
	sent          time.Time
}

// A groupPromise has the promises to a group about one message.
type groupPromise struct {
	attempt           int // of the last delivery whose response came, and counts
	acked, maybeAcked bool
	dead, maybeDead   bool
	until             time.Time // not to be delivered before
}

// An expectation follows from the facts up to some moment.
type expectation struct {
	messages map[string]*sentMessage
	order    []string
	groups   map[string]*groupPromise // by group and message ID
	unsure   map[string]bool          // groups that are being deleted
	x        map[int]string           // the known state of the topic x, by generation: "deleted", "maybe", ""
	gen      int
	settings map[string]map[int]bool // the attempts that a group may be set to
	topics   map[string]bool         // true: it must be there
}

func expect(facts []fact) *expectation {
	e := &expectation{
		messages: map[string]*sentMessage{}, groups: map[string]*groupPromise{}, unsure: map[string]bool{}, x: map[int]string{},
		settings: map[string]map[int]bool{}, topics: map[string]bool{},
	}
	for n, f := range facts {
		var p *groupPromise
		if f.group != "" && len(f.ids) > 0 {
			p = e.promise(f.group, f.ids[0])
			p.until = time.Time{} // each operation that begins may change it
		}
		switch f.kind {
		case "put topic":
			e.topics[f.topic] = f.answer || e.topics[f.topic]
		case "put group":
			if f.answer || e.settings[f.group] == nil {
				e.settings[f.group] = map[int]bool{}
			}
			e.settings[f.group][f.max] = f.answer
		case "send":
			for i, id := range f.ids {
				m := e.messages[id]
				if m == nil {
					m = &sentMessage{topic: f.topic, fifo: f.fifo, batch: n, order: len(e.order), until: f.until}
					e.messages[id] = m
					e.order = append(e.order, id)
				}
				m.answered = f.answer
				if f.answer && i == len(f.ids)-1 {
					m.receipt, m.sent = &f.receipt, f.at
				}
			}
		case "recall":
			e.messages[f.ids[0]].maybeRecalled = true
			e.messages[f.ids[0]].recalled = f.answer
		case "receive":
			if f.answer {
				p.attempt = f.attempt
			}
		case "ack":
			p.maybeAcked, p.acked = true, p.acked || f.answer
		case "retry", "change":
			if f.answer {
				p.until = f.until
			}
			p.maybeDead = p.maybeDead || f.kind == "retry"
		case "snooze":
			if p.attempt = min(p.attempt, f.attempt-1); f.answer {
				p.until = f.until
			}
		case "release":
			p.attempt = min(p.attempt, f.attempt-1)
		case "dead letter":
			p.maybeDead, p.dead = true, p.dead || f.answer
		case "delete topic":
			e.topics["x"] = false
			if e.x[e.gen] = "maybe"; f.answer {
				e.x[e.gen] = "deleted"
				e.gen++
			}
		case "delete group":
			e.unsure[f.group] = !f.answer
			e.settings[f.group] = nil
			for k := range e.groups {
				if f.answer && strings.HasPrefix(k, f.group+" ") {
					delete(e.groups, k)
				}
			}
		}
	}
	return e
}

func (e *expectation) promise(group, id string) *groupPromise {
	k := group + " " + id
	if e.groups[k] == nil {
		e.groups[k] = &groupPromise{}
	}
	return e.groups[k]
}

// presence reports whether the message must be in its topic, and whether it may.
func (e *expectation) presence(id string) (must, may bool) {
	m := e.messages[id]
	must, may = m.answered && !m.maybeRecalled, !m.recalled
	if m.topic == "x" {
		var gen int
		fmt.Sscanf(id[strings.Index(id, ".")+1:], "%d", &gen)
		must, may = must && e.x[gen] == "", e.x[gen] != "deleted"
	}
	return must, may
}

// check opens the data that the crash left, at the time of the crash, and compares it with the
// promises.
func (c *crash) check(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(c.at))
		b, err := broker.Open(crashOptions(c.fs))
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			return
		}
		v := &verifier{T: t, b: b, e: expect(c.facts), what: c.what, seen: map[string]int{}, last: map[string]int{}}
		v.settings()
		v.duplicates()
		synctest.Wait()
		v.drain(true)
		for range 2 {
			time.Sleep(61 * time.Second)
			synctest.Wait()
			v.drain(false)
		}
		v.contents()
		v.balance()
		for _, group := range []string{"g", "h", "o", "q"} {
			checkClasses(t, b, group, "")
		}
		if err := b.Close(); err != nil {
			v.Errorf("closing: %v", err)
		}
	})
}

// A verifier queries the data that a broker kept.
type verifier struct {
	*testing.T
	b    *broker.Broker
	e    *expectation
	what string
	seen map[string]int // deliveries by group and message ID
	last map[string]int // the order of the last delivery by group and message group
}

func (v *verifier) Errorf(format string, args ...any) {
	v.Helper()
	v.T.Errorf("%s: "+format, append([]any{v.what}, args...)...)
}

func (v *verifier) settings() {
	for name, must := range v.e.topics {
		if _, err := v.b.Topic(name); must && err != nil {
			v.Errorf("topic %s: %v", name, err)
		}
	}
	for name, max := range v.e.settings {
		g, err := v.b.Group(name)
		for _, answered := range max {
			if answered && err != nil {
				v.Errorf("group %s: %v", name, err)
			}
		}
		if _, ok := max[g.MaxAttempts]; err == nil && len(max) > 0 && !ok {
			v.Errorf("group %s has %d attempts, want one of %v", name, g.MaxAttempts, max)
		}
	}
}

// duplicates repeats the last acknowledged sends: the broker must know them.
func (v *verifier) duplicates() {
	left := 3
	for i := len(v.e.order) - 1; i >= 0 && left > 0; i-- {
		id := v.e.order[i]
		m := v.e.messages[id]
		if must, _ := v.e.presence(id); !must || m.receipt == nil || time.Since(m.sent) >= 2*time.Minute || m.topic == "d" && !m.until.After(time.Now()) {
			continue
		}
		left--
		again := &tidegate.Message{ID: id, Topic: m.topic, MessageGroup: m.fifo, DeliverAt: m.until, Body: []byte("again")}
		if m.topic == "l" {
			again.MessageGroup, again.LiteTopic = "", m.fifo
		}
		r := send(v.T, v.b, again)[0]
		if r.Err != nil || r.Receipt.Queue != m.receipt.Queue || r.Receipt.Offset != m.receipt.Offset || r.Receipt.RecallHandle != m.receipt.RecallHandle {
			v.Errorf("%s sent again: %+v, %v; want %+v", id, r.Receipt, r.Err, *m.receipt)
		}
	}
}

// drain consumes all that the groups may have now.
func (v *verifier) drain(first bool) {
	now := time.Now()
	for _, gt := range [][2]string{{"g", "n"}, {"g", "d"}, {"g", "x"}, {"h", "n"}, {"h", "d"}, {"h", "x"}, {"o", "f"}, {"q", "l"}} {
		group, topic := gt[0], gt[1]
		if _, err := v.b.Topic(topic); err != nil {
			continue
		}
		if _, err := v.b.Group(group); err != nil {
			continue // it was created again, and nothing is promised about it
		}
		for {
			ds := receiveLite(v.T, v.b, transport.ReceiveRequest{Group: group, Topic: topic, Max: 32, InvisibleDuration: time.Hour})
			if len(ds) == 0 {
				break
			}
			for _, d := range ds {
				v.delivered(d, first, now)
			}
			for _, err := range v.b.Ack(v.Context(), ds) {
				if err != nil {
					v.Errorf("acknowledging: %v", err)
				}
			}
		}
	}
}

func (v *verifier) delivered(d *tidegate.Delivery, first bool, now time.Time) {
	k := d.ConsumerGroup + " " + d.ID
	v.seen[k]++
	m := v.e.messages[d.ID]
	if m == nil {
		v.Errorf("%s was never sent", d.ID)
		return
	}
	if m.until.After(time.Now()) {
		v.Errorf("%s is not due before %v", d.ID, m.until)
	}
	if fifo := d.ConsumerGroup + " " + m.fifo; m.fifo != "" {
		if m.order < v.last[fifo] {
			v.Errorf("%s comes after %s", d.ID, v.e.order[v.last[fifo]])
		}
		v.last[fifo] = m.order
	}
	p := v.e.groups[k]
	if p == nil || v.e.unsure[d.ConsumerGroup] {
		return
	}
	if d.Attempt < p.attempt || p.attempt > 1 && d.Attempt == p.attempt {
		v.Errorf("%s is delivered to %s with attempt %d, after the failure of attempt %d was confirmed", d.ID, d.ConsumerGroup, d.Attempt, p.attempt)
	}
	if p.acked {
		v.Errorf("%s was acknowledged by %s and is redelivered", d.ID, d.ConsumerGroup)
	}
	if first && p.until.After(now) {
		v.Errorf("%s comes %v too early", d.ID, p.until.Sub(now))
	}
}

// contents reads every topic whole: no confirmed message is missing, no message is stored twice,
// and no batch is stored in part.
func (v *verifier) contents() {
	there := map[string]int{}
	for _, topic := range []string{"n", "f", "d", "x", "l"} {
		if _, err := v.b.Topic(topic); err != nil {
			continue
		}
		for _, d := range receiveAll(v.T, v.b, topic) {
			there[d.ID]++
			if string(d.Body) != strings.Repeat(d.ID, len(d.Body)/len(d.ID)) || d.Topic != topic {
				v.Errorf("%s in %s has another body: %.20q", d.ID, d.Topic, d.Body)
			}
		}
	}
	batches := map[int]bool{}
	for _, id := range v.e.order {
		n, m := there[id], v.e.messages[id]
		must, may := v.e.presence(id)
		if n > 1 || n == 0 && must || n > 0 && !may {
			v.Errorf("%s is stored %d times; confirmed %v, recalled %v", id, n, m.answered, m.recalled)
		}
		if before, ok := batches[m.batch]; ok && before != (n > 0) {
			v.Errorf("half of the batch of %s is stored", id)
		}
		batches[m.batch] = n > 0
	}
}

// balance checks that every group has every message once: delivered before, deliverable now, or as
// a dead letter.
func (v *verifier) balance() {
	own := map[string]string{"o": "f", "q": "l"} // the topics of one group each
	others := slices.Collect(maps.Values(own))
	for _, group := range []string{"g", "h", "o", "q"} {
		if _, err := v.b.Group(group); err != nil || v.e.unsure[group] {
			continue
		}
		dead := map[string]int{}
		if _, err := v.b.Topic(tidegate.DeadLetterTopic(group)); err == nil {
			for _, d := range receiveAll(v.T, v.b, tidegate.DeadLetterTopic(group)) {
				dead[d.ID]++
			}
		}
		for _, id := range v.e.order {
			must, _ := v.e.presence(id)
			if topic := v.e.messages[id].topic; !must || own[group] != "" && own[group] != topic || own[group] == "" && slices.Contains(others, topic) {
				continue
			}
			p := v.e.promise(group, id)
			n, times := v.seen[group+" "+id], dead[id]
			switch {
			case n > 1 || times > 1 || n+times > 1:
				v.Errorf("%s came to %s %d times, and is a dead letter %d times", id, group, n, times)
			case p.acked && n+times > 0:
				v.Errorf("%s was acknowledged by %s, and came %d times, and is a dead letter %d times", id, group, n, times)
			case p.dead && times == 0:
				v.Errorf("%s is no dead letter of %s", id, group)
			case n+times == 0 && !p.maybeAcked:
				v.Errorf("%s never came to %s: %+v", id, group, *p)
			}
		}
	}
}

// A fact is the begin of an operation, or its response, in a recorded run.
type fact struct {
	kind    string
	answer  bool // or else it was begun
	group   string
	topic   string
	ids     []string
	attempt int
	at      time.Time // of a response
	until   time.Time // a message may not come before
	fifo    string    // the message group
	receipt tidegate.Receipt
	max     int // attempts
}

// A recorder runs a broker on a file system that will crash, and records its promises.
type recorder struct {
	t   *testing.T
	rnd *rand.Rand
	fs  vfs.FS
	b   *broker.Broker
	n   int
	gen int // of the topic x
	ds  []*tidegate.Delivery

	mu    sync.Mutex
	facts []fact // guarded by mu
}

// sofar returns the promises so far.
func (r *recorder) sofar() []fact {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clip(r.facts)
}

// tell records the begin of an operation, calls do, and records the response.
func (r *recorder) tell(f fact, do func(*fact) error) {
	r.note(f)
	f.answer = true
	if err := do(&f); err != nil {
		r.t.Errorf("%s of %v: %v", f.kind, f.ids, err)
		return
	}
	r.note(f)
}

func (r *recorder) note(f fact) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.at = time.Now()
	r.facts = append(r.facts, f)
}

func (r *recorder) open() {
	b := assert.Value(broker.Open(crashOptions(r.fs)))(r.t)
	r.b = b
}

// crashOptions are of a broker whose log is rotated and flushed often.
func crashOptions(fs vfs.FS) broker.Options {
	return broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(fs).MemTable(64 << 10)
}

// run makes steps random operations, in time, with a restart now and then.
func (r *recorder) run(steps int) {
	r.open()
	r.putTopic("n", settings.Topic{Queues: 2})
	r.putTopic("f", settings.Topic{Type: settings.TopicFIFO, Queues: 2})
	r.putTopic("d", settings.Topic{Type: settings.TopicDelay, Queues: 1})
	r.putTopic("x", settings.Topic{Queues: 1})
	r.putTopic("l", settings.Topic{Type: settings.TopicLite})
	r.putGroup("g", settings.Group{MaxAttempts: 3})
	r.putGroup("h", settings.Group{MaxAttempts: -1})
	r.putGroup("o", settings.Group{MaxAttempts: 3, FIFO: true})
	r.putGroup("q", settings.Group{MaxAttempts: 3, FIFO: true, Lite: settings.LiteGroup{Topic: "l"}})
	for range steps {
		switch n := r.rnd.IntN(40); {
		case n < 10:
			r.send()
		case n < 20:
			r.receive()
		case n < 33:
			r.settle()
		case n < 36:
			<-time.After(time.Duration(r.rnd.IntN(20)) * time.Second)
		case n == 36:
			r.putGroup("g", settings.Group{MaxAttempts: 2 + r.rnd.IntN(3)})
		case n == 37:
			r.deleteTopic()
		case n == 38:
			r.deleteGroup()
		default:
			assert.NoError(r.t, r.b.Close())
			r.open()
		}
	}
	assert.NoError(r.t, r.b.Close())
}

func (r *recorder) putTopic(name string, c settings.Topic) {
	r.tell(fact{kind: "put topic", topic: name}, func(*fact) error {
		_, err := r.b.PutTopic(r.t.Context(), name, c)
		return err
	})
}

func (r *recorder) putGroup(name string, c settings.Group) {
	c.Retry = []time.Duration{5 * time.Second, 10 * time.Second}
	c.FIFORetryInterval = settings.Duration(3 * time.Second)
	r.tell(fact{kind: "put group", group: name, max: c.MaxAttempts}, func(*fact) error {
		_, err := r.b.PutGroup(r.t.Context(), name, c)
		return err
	})
}

func (r *recorder) send() {
	topic := string("nnfdxl"[r.rnd.IntN(6)])
	f := fact{kind: "send", topic: topic}
	var msgs []*tidegate.Message
	for range 1 + r.rnd.IntN(4) {
		r.n++
		m := &tidegate.Message{ID: fmt.Sprintf("%s%04d", topic, r.n), Topic: topic}
		if topic == "x" {
			m.ID += fmt.Sprint(".", r.gen)
		}
		m.Body = []byte(strings.Repeat(m.ID, 1+r.rnd.IntN(300)))
		switch topic {
		case "f":
			f.fifo = fmt.Sprint("mg", r.rnd.IntN(2))
			m.MessageGroup = f.fifo
		case "l":
			f.fifo = fmt.Sprint("lite", r.rnd.IntN(2))
			m.LiteTopic = f.fifo
		case "d":
			f.until = time.Now().Add(time.Duration(1+r.rnd.IntN(40)) * time.Second)
			m.DeliverAt = f.until
		}
		msgs, f.ids = append(msgs, m), append(f.ids, m.ID)
		if topic == "f" || topic == "d" || topic == "l" {
			break // one message group, one time, one lite topic
		}
	}
	r.tell(f, func(f *fact) error {
		results := r.b.Send(r.t.Context(), msgs)
		for _, res := range results {
			if res.Err != nil {
				return res.Err
			}
		}
		f.receipt = results[len(results)-1].Receipt
		return nil
	})
	if f.receipt.RecallHandle != "" && r.rnd.IntN(3) == 0 {
		r.tell(fact{kind: "recall", ids: f.ids}, func(*fact) error {
			_, err := r.b.Recall(r.t.Context(), topic, f.receipt.RecallHandle)
			return err
		})
	}
}

func (r *recorder) receive() {
	group, topic := string("gh"[r.rnd.IntN(2)]), string("ndx"[r.rnd.IntN(3)])
	switch r.rnd.IntN(8) {
	case 0, 1:
		group, topic = "o", "f"
	case 2:
		group, topic = "q", "l"
	}
	f := fact{kind: "receive", group: group}
	r.note(f)
	ds := receiveLite(r.t, r.b, transport.ReceiveRequest{
		Group: group, Topic: topic, Max: 1 + r.rnd.IntN(6), Push: r.rnd.IntN(2) == 0,
		InvisibleDuration: time.Duration(1+r.rnd.IntN(30)) * time.Second,
	})
	for _, d := range ds {
		f.answer, f.ids, f.attempt = true, []string{d.ID}, d.Attempt
		r.note(f)
	}
	r.ds = append(r.ds, ds...)
}

// settle settles one delivery, or acknowledges all at the same time, each in its own request.
// Invalid ones get an error, which promises nothing.
func (r *recorder) settle() {
	if len(r.ds) == 0 {
		return
	}
	if r.rnd.IntN(8) == 0 {
		var wg sync.WaitGroup
		for _, d := range r.ds {
			wg.Go(func() { r.answer(d, 0, 0) })
		}
		wg.Wait()
		r.ds = nil
		return
	}
	i := r.rnd.IntN(len(r.ds))
	d := r.ds[i]
	r.ds = append(r.ds[:i], r.ds[i+1:]...)
	r.answer(d, r.rnd.IntN(7), time.Duration(r.rnd.IntN(20))*time.Second)
}

func (r *recorder) answer(d *tidegate.Delivery, how int, dur time.Duration) {
	ctx := r.t.Context()
	f := fact{group: d.ConsumerGroup, ids: []string{d.ID}, attempt: d.Attempt}
	var err error
	switch how {
	default:
		f.kind = "ack"
		r.note(f)
		err = r.b.Ack(ctx, []*tidegate.Delivery{d})[0]
	case 3:
		f.kind = "retry"
		r.note(f)
		f.until = time.Now().Add(dur)
		_, err = r.b.Settle(ctx, d, transport.Verdict{Kind: transport.Retry, Delay: dur})
	case 4:
		f.kind = "change"
		r.note(f)
		dur += time.Second
		f.until = time.Now().Add(dur)
		c := *d
		if c.Handle, err = r.b.Extend(ctx, d, dur, false); err == nil {
			r.ds = append(r.ds, &c)
		}
	case 6:
		f.kind = "snooze"
		r.note(f)
		f.until = time.Now().Add(dur)
		_, err = r.b.Settle(ctx, d, transport.Verdict{Kind: transport.Snooze, Delay: dur})
	case 5:
		if d.ConsumerGroup == "h" {
			f.kind = "release"
			r.note(f)
			serve(r.b).Return(ctx, []*tidegate.Delivery{d})
			break
		}
		f.kind = "dead letter"
		r.note(f)
		_, err = r.b.Settle(ctx, d, transport.Verdict{Kind: transport.DeadLetter, Reason: "crash"})
	}
	if err == nil {
		f.answer = true
		r.note(f)
	}
}

func (r *recorder) deleteTopic() {
	r.tell(fact{kind: "delete topic", topic: "x"}, func(*fact) error { return r.b.DeleteTopic(r.t.Context(), "x") })
	r.gen++
	r.putTopic("x", settings.Topic{Queues: 1})
}

func (r *recorder) deleteGroup() {
	r.tell(fact{kind: "delete group", group: "h"}, func(*fact) error { return r.b.DeleteGroup(r.t.Context(), "h") })
	r.putGroup("h", settings.Group{MaxAttempts: -1})
}

// A crashFS numbers everything that changes a file system, and calls before
// with the number, one call after another, before it happens.
type crashFS struct {
	vfs.FS
	files  *vfs.MemFS
	before func(index int)

	mu    sync.Mutex
	count int // guarded by mu
}

func newCrashFS(files *vfs.MemFS) *crashFS {
	fs := &crashFS{files: files}
	fs.FS = hooked(files, fs.change)
	return fs
}

func (fs *crashFS) change(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		fs.before(fs.count)
		fs.count++
	}
	return nil
}

// Lock and ReuseForWrite read-lock the MemFS twice, so that a clone in between would wait for ever.
func (fs *crashFS) Lock(name string) (io.Closer, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.files.Lock(name)
}

// ReuseForWrite also wraps the file: errorfs does not.
func (fs *crashFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.before(fs.count)
	fs.count++
	f, err := fs.files.ReuseForWrite(old, name, c)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(f, errorfs.InjectorFunc(fs.change)), nil
}

// clone returns the content after a power failure, with percent of the unsynced data.
func (fs *crashFS) clone(percent int, seed uint64) *vfs.MemFS {
	return fs.files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 1))})
}

// A powerCut is a power failure at a random operation of the file system, once the broker has
// given a number of responses: a failure with nothing to lose would show nothing.
type powerCut struct {
	fs     *crashFS
	rnd    *rand.Rand
	failed chan struct{} // closed when the power fails

	mu         sync.Mutex
	responses  int        // guarded by mu: how many come before the failure
	operations int        // guarded by mu: how many follow the last of them
	left       *vfs.MemFS // guarded by mu: the content after the failure; nil before it
}

// newPowerCut returns a powerCut of a file system that comes after 1 to responses responses.
func newPowerCut(fs *vfs.MemFS, rnd *rand.Rand, responses int) *powerCut {
	p := &powerCut{rnd: rnd, failed: make(chan struct{}), responses: 1 + rnd.IntN(responses), operations: rnd.IntN(12)}
	p.fs = newCrashFS(fs)
	p.fs.before = p.before
	return p
}

func (p *powerCut) before(int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left != nil || p.responses > 0 {
		return
	}
	if p.operations--; p.operations < 0 {
		p.cut()
	}
}

// cut lets the power fail. The caller holds p.mu, and nothing is written meanwhile.
func (p *powerCut) cut() {
	p.left = p.fs.clone(p.rnd.IntN(101), p.rnd.Uint64())
	close(p.failed)
}

// responded calls record for a response that came before the power failure, and not for a later
// one.
func (p *powerCut) responded(record func()) {
	p.unlessFailed(func() {
		record()
		p.responses--
	})
}

// unlessFailed calls record while the power has not failed, as before a request.
func (p *powerCut) unlessFailed(record func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left == nil {
		record()
	}
}

// over returns the content after the power failure. The power fails now if it has not failed
// before.
func (p *powerCut) over(t *testing.T) *vfs.MemFS {
	t.Helper()
	p.fs.mu.Lock()
	defer p.fs.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.MustThat(t, p.responses <= 0, "the load ended, and %d responses were to come before the power failure", p.responses)
	if p.left == nil {
		p.cut()
	}
	return p.left
}

// losePower runs a load on a broker whose power fails after 1 to responses responses, and returns a
// broker on the content that is left. The load ends after its last operation, or when p.failed is
// closed.
func losePower(t *testing.T, rnd *rand.Rand, responses int, load func(b *broker.Broker, p *powerCut)) *broker.Broker {
	t.Helper()
	p := newPowerCut(vfs.NewCrashableMem(), rnd, responses)
	b := open(t, broker.Options{Dir: "data"}.On(p.fs))
	load(b, p)
	assert.Must(t, b.Close())
	return open(t, broker.Options{Dir: "data"}.On(p.over(t)))
}
