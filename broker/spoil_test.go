package broker_test

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/handle"
	"github.com/tidegate/tidegate/broker/internal/serving"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/broker/status"
	"github.com/tidegate/tidegate/transport"
)

// spoil makes a record of the messages database unreadable, as damage within its value does.
func spoil(t *testing.T, b *broker.Broker, key []byte) {
	t.Helper()
	if err := b.Parts().Store.Messages.Add(func(w *store.Batch) {
		if err := (*pebble.Batch)(w).Set(key, []byte{0xee}, nil); err != nil {
			t.Error(err)
		}
	}, nil).Wait(); err != nil {
		t.Fatal(err)
	}
}

// messageKey is the key of a message: see the store's keys.
func messageKey(p store.Place) []byte {
	k := binary.BigEndian.AppendUint32([]byte{'m'}, p.Topic)
	k = binary.BigEndian.AppendUint16(k, p.Queue)
	return binary.BigEndian.AppendUint64(k, uint64(p.Offset))
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
		tp, err := b.Parts().Catalog.Topic("t")
		if err != nil {
			t.Fatal(err)
		}
		for damaged := range int64(n) {
			key := messageKey(store.Place{Topic: tp.ID(), Offset: damaged})
			whole, ok, err := b.Parts().Store.Get(store.Place{Topic: tp.ID(), Offset: damaged})
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			spoil(t, b, key)
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
			if err := b.Parts().Store.Messages.Add(func(w *store.Batch) { w.PutMessage(store.Place{Topic: tp.ID(), Offset: damaged}, &whole) }, nil).Wait(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// One half or delayed message that is damaged neither keeps the broker from
// opening nor has others forgotten; sent again it is stored again, and the half message is
// removed when its producer would be asked.
func TestOpeningPassesDamagedHalfAndDelayedMessages(t *testing.T) {
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
				r := serve(b).Append(t.Context(), []serving.Incoming{{Message: m, Half: kind == settings.TopicTransaction}})[0]
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
				if id, err := handle.ParseTransaction(receipts["damaged"].TransactionID); err == nil && id.Number == number {
					spoil(t, b, []byte(k))
				} else if d, err := handle.ParseRecall(receipts["damaged"].RecallHandle); err == nil && d.Number == number {
					spoil(t, b, []byte(k))
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
