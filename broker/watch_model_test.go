package broker_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// Random sends and settlements, receives that leave watches, and waiting receives that compete with
// them. A watch is woken if a message is ready that its receive could take, and at most once. The
// broker forgets a watch after its end.
func TestWatchesModel(t *testing.T) {
	t.Parallel()
	runSequences(t, "model", *modelSeed, soak(150), func(t *testing.T, seed uint64) {
		m := &watchesModel{waitingModel: waitingModel{
			t: t, b: open(t, broker.Options{}), rnd: rand.New(rand.NewPCG(seed, 1)),
			queueOf: map[string]int{}, readyAt: map[string]time.Time{}, waiting: map[*waitingReceive]bool{},
			sent: map[string]int{},
		}}
		putTopic(t, m.b, "t", settings.Topic{Queues: 2})
		putGroup(t, m.b, "g", settings.Group{MaxAttempts: -1})
		m.rewinds = m.rnd.IntN(2) == 0
		for range 80 {
			for range 1 + m.rnd.IntN(4) {
				switch m.rnd.IntN(3) {
				case 0:
					m.watch()
				case 1:
					m.end()
				default:
					m.step()
				}
			}
			synctest.Wait()
			if m.rnd.IntN(8) == 0 {
				m.bringBack()
				synctest.Wait()
			}
			m.check()
			m.checkWatches()
		}
		<-time.After(time.Minute)
		synctest.Wait()
		m.checkWatches()
		for len(m.watches) > 0 {
			m.end()
		}
		runtime.GC()
		for _, w := range m.ended {
			if w.Value() != nil {
				t.Fatal("the engine keeps a watch after its end")
			}
		}
	})
}

type watchesModel struct {
	waitingModel
	wg      sync.WaitGroup
	rewinds bool // the group is rewound; otherwise dead letters are redriven
	watches []*modelWatch
	ended   []weak.Pointer[engine.Watch]
}

type modelWatch struct {
	*watching
	queue int
	over  bool // guarded by waitingModel.mu: its receive has returned
}

// watch begins a receive that leaves a watch.
func (m *watchesModel) watch() {
	w := &modelWatch{watching: newWatching(), queue: m.rnd.IntN(3) - 1}
	p := engine.Request{
		ReceiveRequest: transport.ReceiveRequest{Group: "g", Topic: "t", Queue: w.queue, Max: 1 + m.rnd.IntN(4), InvisibleDuration: 10 * time.Hour},
		Watch:          w.Watch,
	}
	m.wg.Go(func() {
		ds, err := serve(m.b).Poll(m.t.Context(), p)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil {
			m.t.Error(err)
		}
		switch left := w.Left(); {
		case len(ds) < p.Max && !left && (len(ds) == 0 || m.rewinds): // a receive of several sources brings the messages of one
			m.t.Errorf("a receive of %d messages took %d, and left no watch", p.Max, len(ds))
		case len(ds) == p.Max && left && !m.rewinds && !w.Over():
			// Messages that were read can be outdated by a rewind. A woken watch counts as left.
			m.t.Errorf("a receive of %d messages took them, and left a watch", p.Max)
		}
		m.held = append(m.held, ds...)
		for _, d := range ds {
			delete(m.readyAt, d.ID)
		}
		w.over = true
	})
	m.watches = append(m.watches, w)
}

// bringBack rewinds the group, or redrives a dead letter to the group alone, which adds a retry
// topic. Nothing else runs.
func (m *watchesModel) bringBack() {
	m.mu.Lock() // held over the changes, so that receives are noted after them
	defer m.mu.Unlock()
	if m.rewinds {
		if _, err := m.b.Rewind(m.t.Context(), "g", "t", status.Position{Earliest: true}); err != nil {
			m.t.Error(err)
		}
		m.held = nil
		for id, queue := range m.sent {
			m.queueOf[id], m.readyAt[id] = queue, time.Now()
		}
		return
	}
	if len(m.held) == 0 {
		return
	}
	d := m.held[0]
	m.held = m.held[1:]
	if _, err := m.b.Settle(m.t.Context(), d, transport.Verdict{Kind: transport.DeadLetter}); err != nil {
		m.t.Error(err)
	}
	if done, err := m.b.RedriveDeadLetters(m.t.Context(), "g", status.DeadLetterSelection{ToGroupOnly: true}); err != nil || done.Redriven != 1 {
		m.t.Errorf("redrive: %+v, %v", done, err)
	}
	m.queueOf[d.ID], m.readyAt[d.ID] = anyQueue, time.Now()
}

// anyQueue is the queue of a message in a retry topic: each receive can take it.
const anyQueue = -1

// end ends a watch whose receive has returned.
func (m *watchesModel) end() {
	if len(m.watches) == 0 {
		return
	}
	m.wg.Wait()
	i := m.rnd.IntN(len(m.watches))
	w := m.watches[i]
	m.watches[i] = m.watches[len(m.watches)-1]
	m.watches[len(m.watches)-1] = nil
	m.watches = m.watches[:len(m.watches)-1]
	w.End()
	m.ended = append(m.ended, weak.Make(w.Watch))
}

// checkWatches compares the watches with the ready messages. Nothing runs meanwhile.
func (m *watchesModel) checkWatches() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.watches {
		switch woken := w.ready.Load(); {
		case woken > 1:
			m.t.Fatalf("a watch was woken %d times", woken)
		case woken == 1 || !w.over || !w.Left():
			continue
		}
		for id, at := range m.readyAt {
			if !at.After(time.Now()) && (w.queue < 0 || m.queueOf[id] == anyQueue || w.queue == m.queueOf[id]) {
				m.t.Fatalf("a watch of queue %d was not woken, although a message of queue %d is ready since %v", w.queue, m.queueOf[id], time.Since(at))
			}
		}
	}
}
