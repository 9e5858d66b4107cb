package rocketmq

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/transport"
	"github.com/tidegate/tidegate/transport/rocketmq/internal/conn"
)

// The capabilities of a server may change while Send divides its messages. Each message group stays
// in one part.
func TestGroupsStayTogetherWhileCapabilitiesChange(t *testing.T) {
	ep, link := &conn.Server{Key: testAddr}, &conn.Connection{}
	ep.Link.Store(new(conn.Link))
	ep.Link.Load().Saw(link)
	s := &sending{t: &topic{}, r: &conn.Route{ByGroup: []conn.Queue{{Server: ep}}, Interleaved: []conn.Queue{{Server: ep}}}}
	for i := range 200 {
		s.msgs = append(s.msgs, inGroup(fmt.Sprint(i), fmt.Sprint("g", i%3)), message(fmt.Sprint("n", i)))
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			link.Features.Store(&conn.Features{Capabilities: transport.Capabilities{Batch: true}})
			link.Features.Store(&conn.Features{})
		}
	}()
	defer func() { <-done }()
	defer stop.Store(true)
	for range 2000 {
		at := map[string]int{} // the part of a group
		for i, p := range s.split() {
			for _, m := range p.indexes {
				group := s.msgs[m].MessageGroup
				if before, ok := at[group]; ok && before != i && group != "" {
					t.Fatalf("group %q is in two parts", group)
				}
				at[group] = i
			}
		}
	}
}

// A server that asks every session for a new connection gets one.
func TestReconnectOnceForAllSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		s := newServer(t, n, testAddr)
		asked := time.Now().Add(time.Minute)
		s.telemetry = func(st rmqpb.MessagingService_TelemetryServer) error {
			if left := time.Until(asked); left > 0 {
				time.AfterFunc(left, func() {
					st.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{
						ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{}}})
				})
			}
			return s.answerSettings(st)
		}
		var dials atomic.Int64
		c := newClient(t, n, func(o *Options) {
			o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
				dials.Add(1)
				return n.dial(ctx, addr)
			}
		})
		const groups = 5
		for i := range groups {
			if _, err := c.ConsumerSettings(t.Context(), fmt.Sprint("g", i), "t"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
		if got := dials.Load(); got != 2 {
			t.Errorf("%d connections, want the first and the one that was asked for", got)
		}
		if got := len(s.of("Telemetry")); got != 2*groups {
			t.Errorf("%d streams, want %d: each opened once more", got, 2*groups)
		}
	})
}
