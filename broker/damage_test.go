package broker_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/internal/assert"
	"github.com/tidegate/tidegate/transport"
)

var (
	damageSeed  = flag.Uint64("damage.seed", 0, "damage a data directory with this seed; 0 for another one each time")
	damageFiles = flag.Int("damage.files", 20, "how many times a file is damaged")
)

// A damagedRun is a data directory with the promises about its content.
type damagedRun struct {
	fs    *vfs.MemFS
	ids   []string
	acked map[string]bool
	files []string
	what  string
}

// record fills a data directory with tables, files of values and logs. The directory is closed in
// order, or else the process ends.
func record(t *testing.T, rnd *rand.Rand, closed bool) *damagedRun {
	r := &damagedRun{fs: vfs.NewCrashableMem(), acked: map[string]bool{}}
	o := crashOptions(r.fs)
	b := assert.Value(broker.Open(o))(t)
	putTopic(t, b, "t", settings.Topic{Queues: 2})
	putGroup(t, b, "g", settings.Group{MaxAttempts: -1})
	for range 8 {
		for range 20 {
			id := fmt.Sprintf("m%04d", len(r.ids))
			mustSend(t, b, &tidegate.Message{ID: id, Topic: "t", Body: []byte(strings.Repeat(id, 1+rnd.IntN(300)))})
			r.ids = append(r.ids, id)
		}
		for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 16, InvisibleDuration: 3 * time.Millisecond}) {
			if rnd.IntN(2) == 0 && !r.acked[d.ID] {
				// It may be too late: the invisible duration is short, so that no receive has to
				// wait for it.
				r.acked[d.ID] = b.Ack(t.Context(), []*tidegate.Delivery{d})[0] == nil
			}
		}
	}
	if !closed {
		r.fs = r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rnd})
	}
	assert.Must(t, b.Close())
	for _, dir := range []string{"data", "data/messages", "data/groups"} {
		names := assert.Value(r.fs.List(dir))(t)
		for _, name := range names {
			if info, err := r.fs.Stat(dir + "/" + name); err != nil || info.IsDir() || info.Size() == 0 {
				continue
			}
			// After a crash a damaged end of a log looks like an end that was never written.
			if !closed && strings.HasSuffix(name, ".log") {
				continue
			}
			r.files = append(r.files, dir+"/"+name)
		}
	}
	return r
}

// damage returns a copy of the directory with one file changed.
func (r *damagedRun) damage(t *testing.T, rnd *rand.Rand) *vfs.MemFS {
	fs := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rnd})
	name := r.files[rnd.IntN(len(r.files))]
	data := assert.Value(fs.UnsafeGetFileDataBuffer(name))(t)
	at := rnd.IntN(len(data))
	switch how := rnd.IntN(4); how {
	default:
		r.what = fmt.Sprintf("%s, bit of byte %d of %d", name, at, len(data))
		data[at] ^= 1 << rnd.IntN(8)
	case 2:
		n := min(len(data)-at, 512)
		r.what = fmt.Sprintf("%s, %d bytes zero from %d of %d", name, n, at, len(data))
		clear(data[at : at+n])
	case 3:
		r.what = fmt.Sprintf("%s, cut from %d to %d", name, len(data), at)
		short := append([]byte(nil), data[:at]...)
		f := assert.Value(fs.Create(name, vfs.WriteCategoryUnspecified))(t)
		assert.Must(t, assert.Err(f.Write(short)))
		f.Close()
	}
	return fs
}

// Any single place of any file is damaged. Either Open names the directory and the fault, or all
// messages are there except those that are reported as corrupt, and the acknowledgements of a group
// hold as far as they were confirmed.
func TestDamageIsCountedAndLosesNothingElse(t *testing.T) {
	t.Parallel()
	seed := *damageSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	refused, lost, whole := 0, 0, 0
	for _, closed := range []bool{true, false} {
		r := record(t, rnd, closed)
		for range *damageFiles / 2 {
			fs := r.damage(t, rnd)
			b, err := broker.Open(crashOptions(fs))
			if err != nil {
				refused++
				assert.That(t, strings.Contains(err.Error(), "data directory") && strings.Contains(err.Error(), "data"),
					"%s: the error does not name the place: %v", r.what, err)
				continue
			}
			damaged := r.verify(t, b)
			if damaged > 0 {
				lost++
			} else {
				whole++
			}
			_ = b.Close()
			assert.MustThat(t, !t.Failed(), "run it again with -damage.seed %d", seed)
		}
	}
	t.Logf("refused to open %d times, reported lost messages %d times, lost nothing %d times", refused, lost, whole)
}

func (r *damagedRun) verify(t *testing.T, b *broker.Broker) (damaged int64) {
	if _, err := b.Topic("t"); err != nil {
		t.Errorf("%s: %v", r.what, err)
		return 0
	}
	seen := map[string]bool{}
	drain := func(group string, acked map[string]bool) {
		for range 100 {
			ds, err := b.Receive(t.Context(), transport.ReceiveRequest{Group: group, Topic: "t", Queue: -1, Max: 32, InvisibleDuration: time.Hour, Wait: 5 * time.Millisecond})
			if err != nil {
				t.Errorf("%s: receiving: %v", r.what, err)
				return
			}
			for _, d := range ds {
				assert.That(t, !acked[d.ID], "%s: %s was acknowledged and is redelivered", r.what, d.ID)
				assert.That(t, !seen[group+d.ID], "%s: %s comes twice to %s", r.what, d.ID, group)
				seen[group+d.ID] = true
				assert.That(t, string(d.Body) == strings.Repeat(d.ID, len(d.Body)/len(d.ID)), "%s: %s has another body", r.what, d.ID)
			}
			if len(ds) == 0 {
				return
			}
		}
		t.Errorf("%s: it does not end", r.what)
	}
	drain("g", r.acked)
	drain("fresh", nil)
	damaged = serve(b).Stats().Damaged
	missing := int64(0)
	for _, id := range r.ids {
		if !seen["g"+id] && !r.acked[id] {
			missing++
		}
		if !seen["fresh"+id] {
			missing++
		}
	}
	assert.That(t, missing == damaged, "%s: %d messages are missing, %d were reported", r.what, missing, damaged)
	return damaged
}

// cutLog takes a part of the end of a closed broker's message log.
func cutLog(t *testing.T, fs *vfs.MemFS, left float64) {
	t.Helper()
	names := assert.Value(fs.List("data/messages"))(t)
	name, size := "", 0
	var data []byte
	for _, n := range names {
		if !strings.HasSuffix(n, ".log") {
			continue
		}
		if d, err := fs.UnsafeGetFileDataBuffer("data/messages/" + n); err != nil {
			t.Fatal(err)
		} else if len(d) > size {
			name, size, data = "data/messages/"+n, len(d), append([]byte(nil), d...)
		}
	}
	f := assert.Value(fs.Create(name, vfs.WriteCategoryUnspecified))(t)
	assert.Must(t, assert.Err(f.Write(data[:int(float64(size)*left)])))
	assert.Must(t, f.Close())
}

// Damage has removed the end of the message log, and an operator continues without it. Groups that
// were further receive the later messages. No offset is used twice, and the leases of the lost
// messages are removed.
func TestLostEndOfAQueue(t *testing.T) {
	t.Parallel()
	for _, fifo := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			fs := vfs.NewMem()
			options := broker.Options{Dir: "data"}.On(fs)
			b := open(t, options)
			kind, messageGroup, config := settings.TopicNormal, "", settings.Group{}
			if fifo {
				kind, messageGroup, config = settings.TopicFIFO, "mg", settings.Group{FIFO: true, OnExhausted: settings.OnExhaustedPark, MaxAttempts: 1}
			}
			putTopic(t, b, "t", settings.Topic{Queues: 1, Type: kind})
			putGroup(t, b, "g", config)
			const before, after = 100, 40
			sendOne := func(id string) tidegate.Receipt {
				r := send(t, b, &tidegate.Message{ID: id, Topic: "t", MessageGroup: messageGroup, Body: []byte(id)})[0]
				assert.Must(t, r.Err)
				return r.Receipt
			}
			for i := range before {
				sendOne(fmt.Sprint("old", i))
			}
			var old []*tidegate.Delivery
			if fifo { // one after another, up to one that fails and parks the others
				for range before * 9 / 10 {
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
					assert.Must(t, b.Ack(t.Context(), ds)[0])
				}
				old = receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true})
				settle(t, b, old[0], transport.Verdict{Kind: transport.Retry})
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32})
			} else {
				for len(old) < before {
					old = append(old, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32, InvisibleDuration: time.Hour})...)
				}
				for i, err := range b.Ack(t.Context(), old[:before-3]) {
					if err != nil {
						t.Fatal(i, err)
					}
				}
				old = old[before-3:]
			}
			assert.Must(t, b.Close())
			cutLog(t, fs, 0.6)
			if b, err := broker.Open(options); err == nil {
				b.Close()
				t.Fatal("a truncated log was opened")
			}
			options.AcceptDataLoss = true
			b = open(t, options)
			info, err := b.Topic("t")
			left := info.StoredMessages
			assert.MustThat(t, err == nil && left >= before/4 && left <= before*3/4, "%d messages are left of %d, %v", left, before, err)
			for i, err := range b.Ack(t.Context(), old) {
				wantCode(t, fmt.Sprint("handle ", i, " of a lost message"), err, tidegate.CodeInvalidReceiptHandle)
			}
			for i := range after {
				r := sendOne(fmt.Sprint("new", i))
				assert.MustThat(t, r.Offset >= before, "message %d was given offset %d a second time", i, r.Offset)
			}
			for restart := range 2 {
				want := after - restart
				for i := range want {
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 10 * time.Second, Wait: time.Second})
					assert.MustThat(t, len(ds) == 1 && ds[0].Attempt == 1+restart && (!fifo || ds[0].ID == fmt.Sprint("new", i)),
						"start %d, %d of %d: %+v", restart, i, want, ds)
					if fifo || i == 0 && restart == 0 {
						assert.Must(t, b.Ack(t.Context(), ds)[0])
					}
				}
				if info, err := b.Topic("t"); err != nil || info.StoredMessages != left+after {
					t.Errorf("start %d: %d messages, want %d; %v", restart, info.StoredMessages, left+after, err)
				}
				if fifo {
					break
				}
				<-time.After(time.Minute)
				assert.Must(t, b.Close())
				b = open(t, options)
			}
			n := int64(0)
			for {
				ds := receive(t, b, transport.ReceiveRequest{Group: "other", Topic: "t", Max: 32, InvisibleDuration: time.Hour})
				if len(ds) == 0 {
					break
				}
				n += int64(len(ds))
				b.Ack(t.Context(), ds)
			}
			assert.Equal(t, "another group receives", n, left+after)
			if removed, err := b.PurgeTopic(t.Context(), "t"); err != nil || removed.Messages != left+after {
				t.Errorf("a purge removes %d messages, want %d; %v", removed.Messages, left+after, err)
			}
			if info, err := b.Topic("t"); err != nil || info.StoredMessages != 0 || info.StoredBytes != 0 || info.Backlog != (status.Backlog{}) {
				t.Errorf("after it there are %d messages, %d bytes, backlog %v; %v", info.StoredMessages, info.StoredBytes, info.Backlog, err)
			}
		})
	}
}

// A damaged message does not keep a group from being rewound to a time: its time is that of its
// neighbours.
func TestRewindToATimeBesideDamage(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		putGroup(t, b, "g", settings.Group{})
		start := time.Now()
		const n = 15
		for range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			<-time.After(time.Second)
		}
		for damaged := range int64(n) {
			repair := corruptMessage(t, b, "t", 0, damaged)
			for want := range int64(n + 1) {
				at := start.Add(time.Duration(want) * time.Second)
				done, err := b.Rewind(t.Context(), "g", "t", status.Position{Time: at})
				if err != nil {
					t.Fatalf("message %d is damaged, rewound to %v: %v", damaged, at.Sub(start), err)
				}
				if got := done[0].To; got != want && (want != damaged+1 || got != damaged) && (want != damaged || got != damaged+1) {
					t.Errorf("message %d is damaged: rewound to %d, want %d", damaged, got, want)
				}
			}
			repair()
		}
	})
}

// A corrupt half message or delayed message does not keep the broker from opening, and no other
// message is forgotten. A repeated send is stored again. The corrupt half message is removed at the
// time of its check.
func TestOpeningSkipsCorruptPendingMessages(t *testing.T) {
	t.Parallel()
	for _, kind := range []settings.TopicType{settings.TopicTransaction, settings.TopicDelay} {
		synctest.Test(t, func(t *testing.T) {
			b, fs := openData(t)
			putTopic(t, b, "t", settings.Topic{Type: kind})
			sendOne := func(id string) tidegate.Receipt {
				m := &tidegate.Message{ID: id, Topic: "t", Body: []byte(id)}
				if kind == settings.TopicDelay {
					m.DeliverAt = time.Now().Add(time.Hour)
				}
				r := serve(b).Append(t.Context(), []engine.Incoming{{Message: m, Half: kind == settings.TopicTransaction}})[0]
				assert.Must(t, r.Err)
				return r.Receipt
			}
			receipts := map[string]tidegate.Receipt{}
			for _, id := range []string{"a", "damaged", "b"} {
				receipts[id] = sendOne(id)
			}
			for _, k := range records(t, fs.CrashClone(vfs.CrashCloneCfg{})) {
				if k[0] != 'h' && k[0] != 'y' {
					continue
				}
				number := binary.BigEndian.Uint64([]byte(k[len(k)-8:]))
				if id, err := consume.ParseTransactionID(receipts["damaged"].TransactionID); err == nil && id.Number == number {
					corruptRecord(t, b, []byte(k))
				} else if d, err := consume.ParseRecallHandle(receipts["damaged"].RecallHandle); err == nil && d.Number == number {
					corruptRecord(t, b, []byte(k))
				}
			}
			b = reopen(t, b, fs)
			for id, r := range receipts {
				again := sendOne(id)
				assert.That(t, (again == r) == (id != "damaged"), "%s: %s sent again: %+v, first %+v", kind, id, again, r)
			}
			if kind == settings.TopicTransaction {
				for id, r := range receipts {
					if id != "damaged" {
						assert.NoError(t, endTransaction(t, b, r, transport.Commit), "%s", id)
					}
				}
				assert.NoError(t, endTransaction(t, b, sendOne("damaged"), transport.Rollback))
				info, err := b.Topic("t")
				assert.That(t, err == nil && info.HalfMessages == 1, "%d half messages, want the damaged one; %v", info.HalfMessages, err)
				<-time.After(10 * time.Second)
				synctest.Wait()
				if info, err := b.Topic("t"); err != nil || info.HalfMessages != 0 || serve(b).Stats().Damaged != 1 {
					t.Errorf("%d half messages, %d damaged; %v", info.HalfMessages, serve(b).Stats().Damaged, err)
				}
				for _, k := range records(t, fs.CrashClone(vfs.CrashCloneCfg{})) {
					if c := k[0]; c == 'h' || c == 'i' || c == 'x' {
						t.Errorf("left is %q", k)
					}
				}
			}
		})
	}
}

// A delivery that a power failure undid cannot become a dead letter. Its message is delivered
// again, so the response must be an error.
func TestDeadLetterOfALostDelivery(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		d := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})[0]
		b = open(t, broker.Options{Dir: "data"}.On(fs.CrashClone(vfs.CrashCloneCfg{})))
		_, err := b.Settle(t.Context(), d, transport.Verdict{Kind: transport.DeadLetter, Reason: "poison"})
		assert.That(t, codeOf(err) == tidegate.CodeInvalidReceiptHandle, "the dead letter of a delivery that was lost: %v", err)
		ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		assert.That(t, len(ds) == 1 && ds[0].Attempt == 1, "then came %+v", ds)
	})
}

// A message that is in flight when retention passes it is kept, and also if the power fails at
// once: then it is redelivered.
func TestMessageInFlightSurvivesRetentionAndPowerLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b, fs := openData(t)
		putTopic(t, b, "t", settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: settings.Duration(time.Minute)}})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "m", Body: []byte("x")})
		topic := topicOf(t, b, "t")
		due, _ := topic.NextRound()
		time.Sleep(time.Until(due) - time.Millisecond)
		assert.MustEqual(t, "the message is not there", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})), 1)
		elapse(2 * time.Millisecond)
		assert.MustThat(t, stored(t, b, "t") == 1 && topic.Queues()[0].Low().Offset == 1,
			"the cursor did not pass the message, or the message was not kept")
		b = open(t, broker.Options{Dir: "data"}.On(fs.CrashClone(vfs.CrashCloneCfg{})))
		assert.Equal(t, "after the power failure", subscriptionOf(t, b, "g").Backlog.Messages, 1)
		elapse(time.Minute)
		assert.Equal(t, "the message is not redelivered", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})), 1)
	})
}

// Unreadable messages are removed like others, in every place, and leave nothing in the counters.
func TestDamagedMessagesAreRemoved(t *testing.T) {
	t.Parallel()
	for _, offsets := range [][]int64{{0}, {5}, {9}, {0, 1, 2}, {4, 5}, {8, 9}, {0, 9}} {
		for _, how := range []string{"time", "bytes", "consumed", "purge"} {
			subtest(t, fmt.Sprint(how, offsets), func(t *testing.T) {
				b := open(t, broker.Options{})
				c := settings.Topic{Queues: 1, DuplicateWindow: -1, Retention: settings.Retention{Time: -1}}
				putTopic(t, b, "t", c)
				receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
				for range 10 {
					mustSend(t, b, &tidegate.Message{Topic: "t", Body: make([]byte, 100)})
					elapse(time.Millisecond)
				}
				for _, o := range offsets {
					corruptMessage(t, b, "t", 0, o)
				}
				switch how {
				case "time":
					c.Retention.Time = settings.Duration(time.Minute)
				case "bytes":
					c.Retention.Bytes = 1
				case "consumed":
					c.Retention.Consumed = true
					ackDeliveriesNow(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
					ackDeliveriesNow(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
				case "purge":
					assert.NoError(t, assert.Err(b.PurgeTopic(t.Context(), "t")))
				}
				putTopic(t, b, "t", c)
				elapse(5 * time.Minute)
				assert.Equal(t, "messages are left", stored(t, b, "t"), 0)
				mustSend(t, b, &tidegate.Message{Topic: "t", ID: "next", Body: make([]byte, 100)})
				if how != "bytes" {
					ackDeliveriesNow(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
				}
				elapse(5 * time.Minute)
				assert.Equal(t, "the group is left with", subscriptionOf(t, b, "g").Backlog, (status.Backlog{}))
			})
		}
	}
}

// A delayed message and a half message that cannot be read keep no others waiting.
func TestDamageHoldsUpNoDelayedOrHalfMessages(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "d", settings.Topic{Type: settings.TopicDelay})
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicTransaction})
		for i := range 3 {
			mustSend(t, b, &tidegate.Message{Topic: "d", Body: []byte("x"), DeliverAt: time.Now().Add(time.Duration(i+1) * time.Second)})
		}
		corruptDelayed(t, b, "d", 1)
		elapse(time.Minute)
		if n := stored(t, b, "d"); n != 2 || serve(b).Stats().Damaged != 1 {
			t.Errorf("%d delayed messages came, %d were reported as damaged; want 2 and 1", n, serve(b).Stats().Damaged)
		}

		heard := 0
		defer onCheck(b, func(engine.TransactionCheck) bool { heard++; return true })()
		first, _ := consume.ParseTransactionID(sendHalf(t, b, "a").TransactionID)
		elapse(time.Millisecond)
		sendHalf(t, b, "b")
		corruptRecord(t, b, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32([]byte{'h'}, first.Topic), first.Number))
		elapse(10 * time.Second) // the first check is after 6 s
		assert.Equal(t, "checks were received", heard, 1)
	})
}

// An automatic dead-letter queue that a group retries through stays while messages wait for their
// retry.
func TestAutomaticQueueThatIsARetryTopicStays(t *testing.T) {
	inMemory(t, func(t *testing.T, b *broker.Broker) {
		putTopic(t, b, "t", settings.Topic{})
		dead, auto, one := "DLA", true, 1
		putAddress(t, b, "t", settings.Address{DeadLetterAddress: &dead, AutoCreateDeadLetterResources: &auto, MaxDeliveryAttempts: &one})
		putGroup(t, b, "g", settings.Group{RetryTopic: settings.RetryTopic{Enabled: true, Topic: "DLQ.t"}})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("first")})
		settle(t, b, receive(t, b, transport.ReceiveRequest{Group: "w", Topic: "t"})[0], transport.Verdict{Kind: transport.DeadLetter, Reason: "makes DLQ.t"})
		b.Ack(t.Context(), receive(t, b, transport.ReceiveRequest{Group: "w", Topic: "DLQ.t"}))
		mustSend(t, b, &tidegate.Message{Topic: "t", ID: "later", Body: []byte("later")})
		for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) {
			_, err := serve(b).ReconsumeLater(t.Context(), d, transport.Verdict{Kind: transport.RetryTopic, Delay: 5 * time.Minute})
			assert.MustThat(t, err == nil, "%+v", err)
		}
		for _, d := range receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8}) { // the dead letter, from the retry topic
			b.Ack(t.Context(), []*tidegate.Delivery{d})
		}
		elapse(6 * time.Minute)
		assert.Equal(t, "of 2 messages came back", len(receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 8})), 2)
	})
}

// A read that fails once, behind delayed messages that are moved, delays the other messages by a
// second at most.
func TestReadErrorAmongDelayedMessages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var left, failed atomic.Int64
		fs := hooked(vfs.NewMem(), func(op errorfs.Op) error {
			if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") && left.Add(-1) >= 0 {
				failed.Add(1)
				return syscall.EIO
			}
			return nil
		})
		b := open(t, broker.Options{Dir: "data"}.On(fs))
		putTopic(t, b, "t", settings.Topic{Type: settings.TopicDelay, DuplicateWindow: -1})
		const n = 250 // in several blocks of a table, and one look
		at := time.Now().Add(time.Hour)
		for i := range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: fmt.Appendf(nil, "%0120d", i), DeliverAt: at.Add(time.Duration(i))})
		}
		b = reopen(t, b, fs) // which reads the first block
		left.Store(1)
		<-time.After(time.Hour + 2*time.Second)
		synctest.Wait()
		assert.MustEqual(t, "reads failed", failed.Load(), 1)
		assert.Equal(t, "messages arrived", len(receiveAll(t, b, "t")), n)
	})
}

// A group that reaches the end of a queue over removed messages is done with all of them: none is
// left in its backlog that would reject sends.
func TestHoleUpToTheEndIsNoBacklog(t *testing.T) {
	t.Parallel()
	holes := map[string]func(t *testing.T, b *broker.Broker){
		"purged": func(t *testing.T, b *broker.Broker) {
			done, err := b.PurgeDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "dead"})
			assert.MustThat(t, err == nil && done.Purged == 3, "%+v, %v", done, err)
		},
		"sent back": func(t *testing.T, b *broker.Broker) {
			done, err := b.RedriveDeadLetters(t.Context(), "g", status.DeadLetterSelection{In: "dead"})
			assert.MustThat(t, err == nil && done.Redriven == 3, "%+v, %v", done, err)
		},
	}
	for name, take := range holes {
		for from := range int64(2) {
			subtest(t, fmt.Sprint(name, " ", from), func(t *testing.T) {
				b, fs := openData(t)
				putTopic(t, b, "t", settings.Topic{Queues: 1})
				putTopic(t, b, "dead", settings.Topic{Queues: 1, MaxBacklog: settings.Limit{Bytes: 30}, DuplicateWindow: -1})
				putGroup(t, b, "g", settings.Group{})
				putAddress(t, b, "t", settings.Address{DeadLetterAddress: new("dead")})
				for i := range 3 {
					kill(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("0123456789")})
				}
				putGroup(t, b, "reader", settings.Group{})
				assert.Must(t, assert.Err(b.Rewind(t.Context(), "reader", "dead", status.Position{Offsets: map[int]int64{0: from}})))
				take(t, b)
				expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "dead"}), "")
				for range 2 {
					assert.Equal(t, "the backlog is", subscriptionOf(t, b, "reader").Backlog, (status.Backlog{}))
					mustSend(t, b, &tidegate.Message{Topic: "dead", Body: make([]byte, 25)})
					ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "reader", Topic: "dead", Max: 32}))
					b = reopen(t, b, fs)
				}
			})
		}
	}
}

// The same over corrupt messages.
func TestDamageUpToTheEndIsNoBacklog(t *testing.T) {
	onDisk(t, func(t *testing.T, b *broker.Broker, fs *vfs.MemFS) {
		putTopic(t, b, "t", settings.Topic{Queues: 1})
		sendN(t, b, "t", 3, 10)
		b = reopen(t, b, fs) // the latest messages are in memory too
		for offset := int64(1); offset < 3; offset++ {
			corruptMessage(t, b, "t", 0, offset)
		}
		ackDeliveries(t, b, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}))
		expectMessages(t, receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"}), "")
		if got := subscriptionOf(t, b, "g").Backlog; got != (status.Backlog{}) || serve(b).Stats().Damaged == 0 {
			t.Errorf("the backlog is %+v; %d messages were found damaged", got, serve(b).Stats().Damaged)
		}
	})
}
