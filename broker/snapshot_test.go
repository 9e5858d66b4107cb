package broker_test

import (
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/transport"
)

// A snapshot of a broker in use is a data directory: it has all messages that were sent before, and
// a broker on it repeats no acknowledged delivery. Without a directory there is no snapshot.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := open(t, broker.Options{Dir: dir + "/data"})
	putTopic(t, b, "t", settings.Topic{Queues: 1})
	putGroup(t, b, "g", settings.Group{})
	for i := range 20 {
		send(t, b, &tidegate.Message{ID: fmt.Sprint(i), Topic: "t", Body: []byte("x")})
	}
	ds := receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 5})
	for i, err := range b.Ack(t.Context(), ds) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	if err := b.Snapshot(t.Context(), dir+"/backup/1"); err != nil {
		t.Fatal(err)
	}
	send(t, b, &tidegate.Message{ID: "later", Topic: "t", Body: []byte("x")})

	restored := open(t, broker.Options{Dir: dir + "/backup/1"})
	want := map[string]bool{}
	for i := len(ds); i < 20; i++ {
		want[fmt.Sprint(i)] = true
	}
	for _, d := range receive(t, restored, transport.ReceiveRequest{Group: "g", Topic: "t", Max: 32}) {
		if !want[d.ID] {
			t.Errorf("%s is delivered from the snapshot", d.ID)
		}
		delete(want, d.ID)
	}
	if len(want) > 0 {
		t.Errorf("the snapshot lacks %v", want)
	}
	wantCode(t, "in memory", open(t, broker.Options{}).Snapshot(t.Context(), dir+"/backup/2"), tidegate.CodeBadRequest)
}
