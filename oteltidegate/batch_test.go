package oteltidegate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/internal/assert"
)

// Metrics and spans of a batch consumer are those of its messages. The handler finds the span of a
// message in its context.
func TestBatchesCountAsMessages(t *testing.T) {
	run(t, func(e *env) {
		const n = 4
		for i := range n {
			assert.Must(t, assert.Err(e.p.Send(e.Context(), &tidegate.Message{ID: fmt.Sprint("m", i), Topic: "orders", Body: []byte("x")})))
		}
		batches, spans := 0, map[apitrace.SpanID]bool{}
		c := assert.Value(consumer.NewBatch(e.broker.Client(), consumer.Subscription{Group: "billing", Topic: "orders"},
			func(ctx context.Context, ds []*tidegate.Delivery) error {
				batches++
				for i := range ds {
					spans[apitrace.SpanContextFromContext(consumer.BatchContext(ctx, i)).SpanID()] = true
				}
				return nil
			}, e.i.PushOptions(consumer.PushOptions{Concurrency: 1, Batch: consumer.BatchOptions{MaxMessages: n}})))(t)
		e.consumeBy(c)
		assert.That(t, batches == 1 && len(spans) == n, "%d batches with %d spans, want one batch of %d messages", batches, len(spans), n)
		got := e.series()
		for series, value := range map[string]string{
			"messaging.client.consumed.messages messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq": "4",
			"messaging.process.duration messaging.consumer.group.name=billing messaging.destination.name=orders messaging.operation.name=process messaging.system=rocketmq":         "4 values",
			"tidegate.consumer.deliveries messaging.consumer.group.name=billing messaging.destination.name=orders tidegate.disposition=acked":                                       "4",
		} {
			assert.That(t, strings.HasPrefix(got[series], value) && got[series] != "", "%s is %q, want %s", series, got[series], value)
		}
	})
}
