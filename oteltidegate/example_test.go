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
	"github.com/tidegate/tidegate/transport/transporttest"
)

func Example() {
	spans := tracetest.NewSpanRecorder() // an exporter, in a program
	i, err := oteltidegate.New(oteltidegate.Options{
		TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
	})
	if err != nil {
		log.Fatal(err)
	}
	// A program would use rocketmq.New instead.
	server := &transporttest.Fake{OnSend: func(_ context.Context, _ int, _ transport.Lane, msgs []*tidegate.Message) []error {
		fmt.Println("with a trace context:", msgs[0].TraceContext != "")
		return nil
	}}
	p, err := producer.New(server, i.ProducerOptions(producer.Options{}))
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
