package broker_test

import (
	"flag"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

var (
	combinedSeed      = flag.Uint64("combined.seed", 0, "run one sequence of the combined test, the one with this seed")
	combinedSequences = flag.Int("combined.sequences", 1, "how many sequences the combined test runs")
)

// Random operations of all kinds run at the same time on the same topics and groups, with restarts
// and power failures. Acknowledged results hold, no message is lost unless it was removed, and all
// counters match the content.
func TestCombined(t *testing.T) {
	t.Parallel()
	runSequences(t, "combined", *combinedSeed, *combinedSequences, runCombined)
}

func runCombined(t *testing.T, seed uint64) {
	c := &combined{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), fs: vfs.NewCrashableMem(), step: 1, messages: map[string]*combinedMessage{},
		copies: map[copyOf]*combinedCopy{}, done: map[string]bool{}, dead: map[string]bool{}, places: map[string]store.Place{},
		order: map[string]int64{}, began: map[[2]uint32]int{}, purged: map[uint32]int{}, lossy: map[string]bool{},
	}
	c.open()
	defer func() { c.b.Close() }()
	for name, config := range combinedTopics {
		putTopic(t, c.b, name, config)
	}
	for name := range combinedFilters {
		putGroup(t, c.b, name, combinedGroup(c.rnd, name))
	}
	tame := c.rnd.IntN(2) == 0 // nothing is removed without a trace
	for range 60 {
		c.step++
		switch n := c.rnd.IntN(24); {
		case n == 0:
			c.restart(false)
		case n == 1:
			c.restart(true)
		case n < 6:
			time.Sleep(time.Duration(c.rnd.IntN(60_000)) * time.Millisecond)
		case n == 6:
			time.Sleep(time.Duration(c.rnd.IntN(10)) * time.Minute)
		default:
			var wg sync.WaitGroup
			for range 1 + c.rnd.IntN(3) {
				rnd := rand.New(rand.NewPCG(c.rnd.Uint64(), 0))
				wg.Go(func() { c.do(rnd, tame) })
			}
			wg.Wait()
		}
		c.audit()
		if t.Failed() {
			return
		}
	}
	c.runDry()
}

func (c *combined) open() {
	b, err := broker.Open(broker.Options{Dir: "data", MinInvisibleDuration: 1}.On(c.fs).MemTable(128 << 10))
	if err != nil {
		c.t.Fatal(err)
	}
	c.b = b
	c.boot++
}

// restart closes the broker and opens it again, in some runs on the content after a power failure.
func (c *combined) restart(powerLoss bool) {
	synctest.Wait()
	fs := c.fs
	if powerLoss {
		fs = c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.rnd.IntN(3) * 50, RNG: c.rnd})
		c.lost = c.step
		c.order = map[string]int64{} // first deliveries may have been taken back
		for _, copied := range c.copies {
			if copied.attempt == 1 {
				copied.attempt = 0
			}
		}
	}
	if err := c.b.Close(); err != nil {
		c.t.Error(err)
	}
	c.fs = fs
	c.open()
}

func combinedGroup(rnd *rand.Rand, name string) settings.Group {
	c := settings.Group{
		FIFO: name == "o", MaxAttempts: 1 + rnd.IntN(4), Retry: []time.Duration{time.Second, 10 * time.Second},
		FIFORetryInterval: settings.Duration(3 * time.Second), NegativeAck: settings.NegativeAck{MaxRedeliveries: rnd.IntN(3)},
	}
	if name == "r" {
		c.RetryTopic = settings.RetryTopic{Enabled: true, MaxRetries: 1 + rnd.IntN(3), Levels: []time.Duration{time.Second, 20 * time.Second}}
	}
	return c
}

// do does one thing. In a tame run the end of each message is certain.
func (c *combined) do(rnd *rand.Rand, tame bool) {
	ctx := c.t.Context()
	topic, group := c.topic(rnd), c.group(rnd)
	switch n := rnd.IntN(64); {
	case n < 14:
		c.send(rnd)
	case n < 18:
		c.endTransaction(rnd)
	case n < 20:
		c.recall(rnd)
	case n < 36:
		c.receive(rnd, group, topic, 1+rnd.IntN(16))
	case n < 50:
		c.settle(rnd)
	case n < 53:
		c.putAddress(rnd, tame)
	case n == 53:
		_ = c.b.DeleteAddressSettings(ctx, combinedPatterns[rnd.IntN(len(combinedPatterns))])
	case n < 56:
		if _, err := c.b.PutGroup(ctx, group, combinedGroup(rnd, group)); err != nil && c.anew.Load() != int64(c.step) {
			c.t.Error(err)
		}
	case n < 59:
		c.putTopic(rnd, topic, tame)
	case n == 59:
		c.purge(topic)
	case n == 60 && !tame:
		_ = c.b.DeleteTopic(ctx, topic)
		_, _ = c.b.PutTopic(ctx, topic, combinedTopics[topic])
	case n == 61:
		// A receive beside it can make the group before it is put, without FIFO, which then cannot
		// change.
		c.anew.Store(int64(c.step))
		for tries := 1; ; tries++ {
			_ = c.b.DeleteGroup(ctx, group)
			if _, err := c.b.PutGroup(ctx, group, combinedGroup(rnd, group)); err == nil {
				break
			} else if tries == 10 {
				c.t.Error(err)
				break
			}
		}
	default:
		var others []string
		for _, t := range c.b.Topics() {
			if _, ours := combinedTopics[t.Name]; !ours && !strings.HasSuffix(t.Name, "-RETRY") {
				others = append(others, t.Name)
			}
		}
		if len(others) > 0 {
			c.receive(rnd, "w", others[rnd.IntN(len(others))], 32)
		}
	}
}

var combinedPatterns = []string{"#", "n", "f", "*", "DLQ.#"}

func (c *combined) putAddress(rnd *rand.Rand, tame bool) {
	match := combinedPatterns[rnd.IntN(len(combinedPatterns))]
	delay, attempts, dead, auto, expiry, expired := settings.Milliseconds(rnd.IntN(5000)), 1+rnd.IntN(3), "DLA", rnd.IntN(2) == 0, settings.Milliseconds(60_000), "EXP"
	s := settings.Address{RedeliveryDelay: &delay, MaxDeliveryAttempts: &attempts, DeadLetterAddress: &dead, AutoCreateDeadLetterResources: &auto}
	if rnd.IntN(3) == 0 {
		s = settings.Address{AutoDeleteQueues: &auto, PersistDeliveryCountBeforeDelivery: &auto}
	}
	if rnd.IntN(4) == 0 {
		s.ExpiryDelay, s.ExpiryAddress = &expiry, &expired
	}
	if !tame && rnd.IntN(3) == 0 {
		c.mu.Lock()
		for name := range combinedTopics {
			c.lossy[name] = true
		}
		c.mu.Unlock()
		s.DeadLetterAddress, s.ExpiryAddress = nil, nil
	}
	if match != "n" && match != "f" { // or the messages in EXP expire there
		s.ExpiryDelay, s.ExpiryAddress = nil, nil
	}
	if _, err := c.b.PutAddressSettings(c.t.Context(), match, s); err != nil {
		c.t.Error(err)
	}
}

func (c *combined) putTopic(rnd *rand.Rand, topic string, tame bool) {
	config := combinedTopics[topic]
	config.Retention = settings.Retention{Time: -1, Consumed: rnd.IntN(2) == 0}
	config.DuplicateWindow = settings.Duration([]time.Duration{0, 0, time.Second, time.Minute}[rnd.IntN(4)])
	if !tame && rnd.IntN(2) == 0 {
		c.mu.Lock()
		c.lossy[topic] = true
		c.mu.Unlock()
		config.Retention.Time = settings.Duration([]time.Duration{-1, time.Minute}[rnd.IntN(2)])
		config.Retention.Bytes = []int64{0, 3000}[rnd.IntN(2)]
	}
	config.MaxBacklog.Messages = int64(rnd.IntN(3) * 100)
	config.MaxBacklog.Age = settings.Duration(rnd.IntN(2)) * settings.Duration(time.Hour)
	if t, err := c.b.Topic(topic); err == nil && topic != "f" {
		config.Queues = min(t.Queues+rnd.IntN(2), 4)
	}
	if _, err := c.b.PutTopic(c.t.Context(), topic, config); err != nil && codeOf(err) != tidegate.CodeBadRequest { // queues may have grown meanwhile
		c.t.Error(err)
	}
}

func (c *combined) purge(topic string) {
	in := c.number(topic)
	c.mu.Lock()
	step := c.step
	c.mu.Unlock()
	if _, err := c.b.PurgeTopic(c.t.Context(), topic); err == nil && in == c.number(topic) {
		c.mu.Lock()
		c.purged[in] = max(c.purged[in], step)
		c.mu.Unlock()
	}
}
