package deadletter_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/consumer/deadletter"
	"github.com/tidegate/tidegate/transport"
)

// exampleBroker serves a broker with three dead letters, in place of one at 127.0.0.1:8082.
func exampleBroker(ctx context.Context) (address string, stop func()) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	b, err := broker.Open(broker.Options{Memory: broker.NewMemory()})
	must(err)
	_, err = b.PutTopic(ctx, "orders", settings.Topic{})
	must(err)
	for i, reason := range []string{"customer 7 not found", "customer 9 not found", "database is down"} {
		must(b.Send(ctx, []*tidegate.Message{{ID: fmt.Sprint("order-", i), Topic: "orders", Body: []byte("3 apples")}})[0].Err)
		ds, err := b.Receive(ctx, transport.ReceiveRequest{Group: "billing", Topic: "orders", Queue: transport.AnyQueue, Max: 1, InvisibleDuration: time.Minute})
		must(err)
		_, err = b.Settle(ctx, ds[0], transport.Verdict{Kind: transport.DeadLetter, Reason: reason})
		must(err)
	}
	s, err := server.New(b, server.Options{Advertise: "127.0.0.1:8081"})
	must(err)
	web := httptest.NewServer(s.Handler())
	return web.URL, func() {
		web.Close()
		s.Close()
		b.Close()
	}
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	address, stop := exampleBroker(ctx)
	defer stop()
	dir, err := os.MkdirTemp("", "deadletter-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	client, err := admin.New(address, admin.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	src := deadletter.Broker{Client: client, Group: "billing"}

	classes, err := deadletter.Summarize(ctx, src, deadletter.Filter{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range classes {
		fmt.Println(c.Count, c.Reason)
	}

	report, err := deadletter.Redrive(ctx, src, deadletter.Options{
		Filter:  deadletter.Filter{Fingerprint: classes[0].Fingerprint},
		Journal: filepath.Join(dir, "billing.jsonl"),
		Actor:   "anna",
	})
	fmt.Println("sent back:", report.Redriven, "error:", err)
	// Output:
	// 2 customer 9 not found
	// 1 database is down
	// sent back: 2 error: <nil>
}
