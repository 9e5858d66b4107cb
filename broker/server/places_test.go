package server_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/internal/rawclient"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// rawConn connects a client that reads window bytes of each response, and no more.
func rawConn(t *testing.T, lis *bufconn.Listener, window uint32) *rawclient.Conn {
	t.Helper()
	c, err := lis.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	raw, err := rawclient.New(c, window)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// request sends a request and leaves the response alone.
func request(t *testing.T, c *rawclient.Conn, rpc string, m proto.Message) {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.Open("/"+rmqpb.MessagingService_ServiceDesc.ServiceName+"/"+rpc, "x-mq-client-id", "raw")
	if err == nil {
		err = c.Write(id, rawclient.Message(len(data), data), true)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A response takes its memory until the client has read it, although its handler has returned, and
// until the connection ends at the latest.
func TestUnreadResponsesTakeMemory(t *testing.T) {
	const requests = 20
	for name, c := range map[string]struct {
		rpc    string
		m      proto.Message
		bodies int64 // of each response, at least
	}{
		"a route":           {"QueryRoute", &rmqpb.QueryRouteRequest{Topic: res("normal")}, 1 << 10},
		"a refusal":         {"AckMessage", &rmqpb.AckMessageRequest{Group: res("g"), Topic: res("none")}, 0},
		"an unsupported":    {"PullMessage", &rmqpb.PullMessageRequest{}, 0},
		"a message, 40 KiB": {"ReceiveMessage", receiveRequest("normal", func(r *rmqpb.ReceiveMessageRequest) { r.BatchSize = 1 }), 40 << 10},
	} {
		for _, read := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				e := start(t, server.Options{})
				for i := range requests {
					e.send(msg("normal", fmt.Sprint(i), body(make([]byte, 40<<10))))
				}
				window := uint32(0)
				if read {
					window = 1 << 16
				}
				raw := rawConn(t, e.lis, window)
				for i := range requests {
					if i > 0 && read && c.bodies > 1<<10 {
						break // the window of the connection is for one
					}
					request(t, raw, c.rpc, c.m)
				}
				time.Sleep(time.Minute) // every handler has returned
				synctest.Wait()
				places, bodies := e.s.Parts().Places.Held(), e.s.Parts().Bodies.Held()
				if read {
					if places != 0 || bodies != 0 {
						t.Errorf("%s, read: %d and %d bytes are held", name, places, bodies)
					}
					return
				}
				if places != requests*server.PlaceSize || bodies < requests*c.bodies {
					t.Errorf("%s, unread: %d bytes of places and %d of bodies are held, want %d and %d or more", name, places, bodies, requests*server.PlaceSize, requests*c.bodies)
				}
				raw.Close()
				synctest.Wait()
				if places, bodies := e.s.Parts().Places.Held(), e.s.Parts().Bodies.Held(); places != 0 || bodies != 0 {
					t.Errorf("%s, connection closed: %d and %d bytes are held", name, places, bodies)
				}
			})
		}
	}
}

// Connections that take all places for requests do not keep out a client that takes one: the
// connection that has the most of them ends.
func TestPlacesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MaxParkedBytes: 2 * server.MostParked})
		for range 12 {
			raw := rawConn(t, e.lis, 0)
			for range server.LeastPlaces / 4 {
				request(t, raw, "QueryRoute", &rmqpb.QueryRouteRequest{Topic: res("normal")})
			}
			synctest.Wait()
			if held := e.s.Parts().Places.Held(); held > server.LeastPlaces*server.PlaceSize {
				t.Fatalf("%d bytes are held, more than %d", held, server.LeastPlaces*server.PlaceSize)
			}
		}
		if e.s.Parts().Places.Closed() == 0 {
			t.Error("no connection was ended: the test shows nothing")
		}
		queried(e.ctx(), e, e.MessagingServiceClient)
	})
}

// One connection gets half of the places at most, by gRPC's own limit.
func TestStreamsOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, server.Options{MaxParkedBytes: 2 * server.MostParked})
		raw := rawConn(t, e.lis, 0)
		for range server.LeastPlaces {
			request(t, raw, "QueryRoute", &rmqpb.QueryRouteRequest{Topic: res("normal")})
		}
		synctest.Wait()
		if n := raw.Streams(); n != server.LeastPlaces/2 {
			t.Errorf("%d streams are open, want %d", n, server.LeastPlaces/2)
		}
	})
}
