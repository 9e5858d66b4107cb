package broker

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/store"
)

// spoil makes a record of the messages database unreadable, as damage within its value does.
func spoil(t *testing.T, b *Broker, key []byte) {
	t.Helper()
	if err := b.store.Messages.Add(func(w *store.Batch) {
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

// A damaged message does not keep a group from being rewound to a time: its time is its neighbours'.
func TestRewindToATimeBesideDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{})
		putTopic(t, b, "t", TopicConfig{Queues: 1})
		putGroup(t, b, "g", GroupConfig{})
		start := time.Now()
		const n = 15
		for range n {
			mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
			<-time.After(time.Second)
		}
		tp, err := b.topic("t")
		if err != nil {
			t.Fatal(err)
		}
		for damaged := range int64(n) {
			key := messageKey(store.Place{Topic: tp.id, Offset: damaged})
			whole, ok, err := b.store.Get(store.Place{Topic: tp.id, Offset: damaged})
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			spoil(t, b, key)
			for want := range int64(n + 1) {
				at := start.Add(time.Duration(want) * time.Second)
				done, err := b.Rewind(t.Context(), "g", "t", Position{Time: at})
				if err != nil {
					t.Fatalf("message %d is damaged, rewound to %v: %v", damaged, at.Sub(start), err)
				}
				if got := done[0].To; got != want && (want != damaged+1 || got != damaged) && (want != damaged || got != damaged+1) {
					t.Errorf("message %d is damaged: rewound to %d, want %d", damaged, got, want)
				}
			}
			if err := b.store.Messages.Add(func(w *store.Batch) { w.PutMessage(store.Place{Topic: tp.id, Offset: damaged}, &whole) }, nil).Wait(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
