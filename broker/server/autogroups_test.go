package server_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/server"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
)

// A client that invents names of groups creates a bounded number of groups and series, over gRPC
// and over HTTP. The error has the remedy.
func TestInventedGroupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: most}, server.Options{MinLongPolling: 1})
		invent := func(from, to int) (last string) {
			for i := from; i < to; i++ {
				w := httptest.NewRecorder()
				r := httptest.NewRequest("POST", fmt.Sprintf("/v1/groups/web%d/topics/normal/receive", i), strings.NewReader(`{}`))
				r.Header.Set("Content-Type", "application/json")
				e.s.Handler().ServeHTTP(w, r)
				last = fmt.Sprint(w.Code, w.Body)
				q, err := e.QueryAssignment(e.ctx(), &rmqpb.QueryAssignmentRequest{
					Topic: res("normal"), Group: res(fmt.Sprint("grpc", i)),
					Endpoints: &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "127.0.0.1", Port: 1}}},
				})
				if err != nil || q.GetStatus().GetCode() != rmqpb.Code_OK { // it creates no group, so no limit applies
					t.Fatalf("QueryAssignment: %v, %v", q, err)
				}
			}
			return last
		}
		invent(0, most)
		before, _ := scraped(t, e.s)
		last := invent(most, most+20)
		after, _ := scraped(t, e.s)
		if n := len(e.b.Groups()); n != most {
			t.Errorf("%d groups, want %d", n, most)
		}
		for name := range after {
			if _, ok := before[name]; !ok && strings.Contains(name, "group=") {
				t.Errorf("the series %s is new", name)
			}
		}
		if !strings.HasPrefix(last, "404") || !strings.Contains(last, "PUT /v1/groups/web") || !strings.Contains(last, "max_auto_groups") {
			t.Errorf("the error of a rejected receive is %s", last)
		}
	})
}

// Consumers that only send their settings create no groups, so invented names leave places for
// groups that are received from. They get the settings that their group would have.
func TestTelemetryMakesNoGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: 1}, server.Options{})
		for i := range 10 {
			in := consumer(rmqpb.ClientType_PUSH_CONSUMER)
			in.GetSubscription().Group = res(fmt.Sprint("invented", i))
			e.telemetry(as(t.Context(), fmt.Sprint("client", i)), in)
		}
		if gs := e.b.Groups(); len(gs) > 0 {
			t.Errorf("there are the groups %+v", gs)
		}
		_, before := e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
		e.receive(e.ctx(), receiveRequest("normal"))
		if gs := e.b.Groups(); len(gs) != 1 || gs[0].Name != "g" {
			t.Errorf("after a receive there are the groups %+v, want g", gs)
		}
		if _, after := e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER)); !proto.Equal(before, after) {
			t.Errorf("the settings were %v before the first receive, and %v after it", before, after)
		}
	})
}

// Telemetry too reports that there is no such group: with gRPC's Unavailable clients would repeat
// it without end. The stream ends, and opens once the group is created.
func TestTelemetryOfOneGroupTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := startWith(t, broker.Options{MinInvisibleDuration: 1, MaxAutoGroups: 1}, server.Options{})
		if _, err := e.b.Engine().EnsureGroup(t.Context(), "first"); err != nil {
			t.Fatal(err)
		}
		st, err := e.Telemetry(e.ctx())
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(command(consumer(rmqpb.ClientType_PUSH_CONSUMER))); err != nil {
			t.Fatal(err)
		}
		cmd, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		refused(t, cmd.GetStatus(), tidegate.CodeConsumerGroupNotFound, "max_auto_groups", "PUT /v1/groups/g")
		ended(t, st, codes.NotFound, cmd.GetStatus())
		if _, err := e.b.PutGroup(t.Context(), "g", settings.Group{}); err != nil {
			t.Fatal(err)
		}
		e.telemetry(e.ctx(), consumer(rmqpb.ClientType_PUSH_CONSUMER))
	})
}
