package oteltidegate_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/oteltidegate"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// accepting is a server that stores every message. A program would use rocketmq.New.
type accepting struct{ transport.Transport }

func (accepting) Send(_ context.Context, msgs []*tidegate.Message) []transport.SendResult {
	fmt.Println("with a trace context:", msgs[0].TraceContext != "")
	return make([]transport.SendResult, len(msgs))
}

func (accepting) ProducerSettings(context.Context, string) (transport.ProducerSettings, error) {
	return transport.ProducerSettings{}, nil
}

func (accepting) Capabilities(string) transport.Capabilities { return transport.Capabilities{} }

func Example() {
	spans := tracetest.NewSpanRecorder() // an exporter, in a program
	i, err := oteltidegate.New(oteltidegate.Options{
		TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
	})
	if err != nil {
		log.Fatal(err)
	}
	p, err := producer.New(accepting{}, i.ProducerOptions(producer.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	if _, err := i.Producer(p).Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("3 apples")}); err != nil {
		fmt.Println(err)
	}
	for _, s := range spans.Ended() {
		fmt.Println(s.Name())
	}
	// Output:
	// with a trace context: true
	// send orders
}
