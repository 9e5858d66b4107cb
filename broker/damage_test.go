package broker_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
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
	b, err := broker.Open(o)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"data", "data/messages", "data/groups"} {
		names, err := r.fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
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
	data, err := fs.UnsafeGetFileDataBuffer(name)
	if err != nil {
		t.Fatal(err)
	}
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
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(short); err != nil {
			t.Fatal(err)
		}
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
				if !strings.Contains(err.Error(), "data directory") || !strings.Contains(err.Error(), "data") {
					t.Errorf("%s: the error does not name the place: %v", r.what, err)
				}
				continue
			}
			damaged := r.verify(t, b)
			if damaged > 0 {
				lost++
			} else {
				whole++
			}
			_ = b.Close()
			if t.Failed() {
				t.Fatalf("run it again with -damage.seed %d", seed)
			}
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
				if acked[d.ID] {
					t.Errorf("%s: %s was acknowledged and is redelivered", r.what, d.ID)
				}
				if seen[group+d.ID] {
					t.Errorf("%s: %s comes twice to %s", r.what, d.ID, group)
				}
				seen[group+d.ID] = true
				if string(d.Body) != strings.Repeat(d.ID, len(d.Body)/len(d.ID)) {
					t.Errorf("%s: %s has another body", r.what, d.ID)
				}
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
	if missing != damaged {
		t.Errorf("%s: %d messages are missing, %d were reported", r.what, missing, damaged)
	}
	return damaged
}

// cutLog takes a part of the end of a closed broker's message log.
func cutLog(t *testing.T, fs *vfs.MemFS, left float64) {
	t.Helper()
	names, err := fs.List("data/messages")
	if err != nil {
		t.Fatal(err)
	}
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
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data[:int(float64(size)*left)]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
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
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				return r.Receipt
			}
			for i := range before {
				sendOne(fmt.Sprint("old", i))
			}
			var old []*tidegate.Delivery
			if fifo { // one after another, up to one that fails and parks the others
				for range before * 9 / 10 {
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t"})
					if err := b.Ack(t.Context(), ds)[0]; err != nil {
						t.Fatal(err)
					}
				}
				old = receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Push: true})
				if _, err := b.Settle(t.Context(), old[0], transport.Verdict{Kind: transport.Retry}); err != nil {
					t.Fatal(err)
				}
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
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			cutLog(t, fs, 0.6)
			if b, err := broker.Open(options); err == nil {
				b.Close()
				t.Fatal("a truncated log was opened")
			}
			options.AcceptDataLoss = true
			b = open(t, options)
			info, err := b.Topic("t")
			left := info.StoredMessages
			if err != nil || left < before/4 || left > before*3/4 {
				t.Fatalf("%d messages are left of %d, %v", left, before, err)
			}
			for i, err := range b.Ack(t.Context(), old) {
				wantCode(t, fmt.Sprint("handle ", i, " of a lost message"), err, tidegate.CodeInvalidReceiptHandle)
			}
			for i := range after {
				if r := sendOne(fmt.Sprint("new", i)); r.Offset < before {
					t.Fatalf("message %d was given offset %d a second time", i, r.Offset)
				}
			}
			for restart := range 2 {
				want := after - restart
				for i := range want {
					ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: 10 * time.Second, Wait: time.Second})
					if len(ds) != 1 || ds[0].Attempt != 1+restart || fifo && ds[0].ID != fmt.Sprint("new", i) {
						t.Fatalf("start %d, %d of %d: %+v", restart, i, want, ds)
					}
					if fifo || i == 0 && restart == 0 {
						if err := b.Ack(t.Context(), ds)[0]; err != nil {
							t.Fatal(err)
						}
					}
				}
				if info, err := b.Topic("t"); err != nil || info.StoredMessages != left+after {
					t.Errorf("start %d: %d messages, want %d; %v", restart, info.StoredMessages, left+after, err)
				}
				if fifo {
					break
				}
				<-time.After(time.Minute)
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
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
			if n != left+after {
				t.Errorf("another group receives %d, want %d", n, left+after)
			}
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
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := open(t, broker.Options{})
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
			fs := vfs.NewCrashableMem()
			b := open(t, broker.Options{Dir: "data"}.On(fs))
			putTopic(t, b, "t", settings.Topic{Type: kind})
			sendOne := func(id string) tidegate.Receipt {
				m := &tidegate.Message{ID: id, Topic: "t", Body: []byte(id)}
				if kind == settings.TopicDelay {
					m.DeliverAt = time.Now().Add(time.Hour)
				}
				r := serve(b).Append(t.Context(), []engine.Incoming{{Message: m, Half: kind == settings.TopicTransaction}})[0]
				if r.Err != nil {
					t.Fatal(r.Err)
				}
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
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b = open(t, broker.Options{Dir: "data"}.On(fs))
			for id, r := range receipts {
				if again := sendOne(id); (again == r) != (id != "damaged") {
					t.Errorf("%s: %s sent again: %+v, first %+v", kind, id, again, r)
				}
			}
			if kind == settings.TopicTransaction {
				for id, r := range receipts {
					if id != "damaged" {
						if err := endTransaction(t, b, r, transport.Commit); err != nil {
							t.Errorf("%s: %v", id, err)
						}
					}
				}
				if err := endTransaction(t, b, sendOne("damaged"), transport.Rollback); err != nil {
					t.Error(err)
				}
				if info, err := b.Topic("t"); err != nil || info.HalfMessages != 1 {
					t.Errorf("%d half messages, want the damaged one; %v", info.HalfMessages, err)
				}
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
