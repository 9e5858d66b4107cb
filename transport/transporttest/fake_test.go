package transporttest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/transporttest"
)

// The first request of a send fails, and the producer sends the message again.
func ExampleFake() {
	fake := &transporttest.Fake{
		OnSend: func(_ context.Context, n int, _ transport.Lane, _ []*tidegate.Message) []error {
			if n == 1 {
				return []error{tidegate.ErrUnavailable}
			}
			return nil
		},
	}
	p, err := producer.New(fake, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	r, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("42")})
	fmt.Println(r.Attempts, err)
	for _, c := range fake.Calls("Send") {
		fmt.Println(c.Topic, string(c.Messages[0].Body))
	}
	// Output:
	// 2 <nil>
	// orders 42
	// orders 42
}

// The Fake responds to each message of a request in its place, and records copies of the messages.
func TestFakeSends(t *testing.T) {
	fake := &transporttest.Fake{
		OnSend: func(context.Context, int, transport.Lane, []*tidegate.Message) []error {
			return []error{nil, tidegate.ErrThrottled}
		},
	}
	msgs := []*tidegate.Message{{ID: "a", Topic: "orders"}, {ID: "b", Topic: "orders"}, {ID: "c", Topic: "orders"}}
	results := fake.Send(t.Context(), msgs)
	msgs[0].ID = "changed"
	if len(results) != 3 || results[0].Err != nil || results[1].Err != tidegate.ErrThrottled || results[2].Err != nil {
		t.Fatalf("results %+v", results)
	}
	if first, third := results[0].Receipt, results[2].Receipt; first.MessageID != "a" || first.Offset != 0 || third.MessageID != "c" || third.Offset != 1 {
		t.Errorf("receipts %+v and %+v", first, third)
	}
	calls := fake.Calls("Send")
	if len(calls) != 1 || len(calls[0].Messages) != 3 || calls[0].Messages[0].ID != "a" || calls[0].Topic != "orders" {
		t.Errorf("calls %+v", calls)
	}
	if calls := fake.Calls("SendHalf"); len(calls) != 0 {
		t.Errorf("calls of SendHalf: %+v", calls)
	}
}
