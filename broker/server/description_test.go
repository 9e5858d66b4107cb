package server

import (
	"fmt"
	"testing"

	"google.golang.org/grpc"

	"github.com/tidegate/tidegate/internal/rmqpb"
)

// Every RPC of the public contract is described.
func TestDescriptionIsComplete(t *testing.T) {
	of := func(d *grpc.ServiceDesc) map[string]grpc.StreamDesc {
		out := map[string]grpc.StreamDesc{}
		for _, m := range d.Methods {
			out[m.MethodName] = grpc.StreamDesc{}
		}
		for _, s := range d.Streams {
			s.Handler = nil
			out[s.StreamName] = s
		}
		return out
	}
	ours, want := of(&description), of(&rmqpb.MessagingService_ServiceDesc)
	if fmt.Sprint(ours) != fmt.Sprint(want) {
		t.Errorf("the RPCs are\n%v, want\n%v", ours, want)
	}
}
