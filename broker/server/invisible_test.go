package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// The engine bounds the invisible duration, over gRPC and over HTTP: neither has a limit or a
// default of its own that the engine does not accept.
func TestInvisibleBoundsAreTheEngines(t *testing.T) {
	for name, c := range map[string]struct {
		least, most, preset time.Duration
	}{
		"longer than RocketMQ's": {0, 24 * time.Hour, 30 * time.Second},
		"shorter than ours":      {0, 20 * time.Second, 20 * time.Second},
		"longer than ours":       {time.Minute, 0, time.Minute},
		"as it is":               {0, 0, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := startWebWith(t, broker.Options{MinInvisibleDuration: c.least, MaxInvisibleDuration: c.most}, server.Options{})
				_, most := x.b.Engine().InvisibleBounds()
				x.send(msg("normal", "a"), msg("normal", "b"))

				ds := x.take("normal", `{}`, 1)
				if got := time.Duration(ds[0].InvisibleFor); got != c.preset {
					t.Errorf("nothing was asked for, and the message is invisible for %v, want %v", got, c.preset)
				}
				change := func(d time.Duration) string {
					return `{"handle":"` + ds[0].Handle + `","invisible_duration":"` + d.String() + `"}`
				}
				x.failed("/v1/groups/g/change-invisible-duration", change(most+1), 400, 40011, most.String())
				x.ok("/v1/groups/g/change-invisible-duration", change(most), nil)

				m := x.one(x.ctx(), receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.InvisibleDuration = durationpb.New(most) }))
				request := &rmqpb.ChangeInvisibleDurationRequest{
					Group: res("g"), Topic: res("normal"), MessageId: m.GetSystemProperties().GetMessageId(),
					ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(),
				}
				for d, want := range map[time.Duration]tidegate.Code{
					-1: tidegate.CodeIllegalInvisibleTime, most + 1: tidegate.CodeIllegalInvisibleTime, most: protocol.CodeOK,
				} {
					request.InvisibleDuration = durationpb.New(d)
					r, err := x.ChangeInvisibleDuration(x.ctx(), request)
					if err != nil {
						t.Fatal(err)
					}
					if want == protocol.CodeOK {
						refused(t, r.GetStatus(), want)
					} else {
						refused(t, r.GetStatus(), want, most.String())
					}
				}
			})
		})
	}
}
