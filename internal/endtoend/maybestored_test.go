package endtoend

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/brokertest"
	"github.com/tidegate/tidegate/broker/settings"
	"github.com/tidegate/tidegate/internal/rmqpb"
	"github.com/tidegate/tidegate/producer"
)

// A server that responds to a send with an internal error may have stored the message. The error of
// the send reports this, for a code of the response and for a code of the message's own result. It
// does not report it for a code that excludes it. The retries carry the same message ID, so the
// broker stores the message once.
func TestInternalErrorsMayBeStored(t *testing.T) {
	for _, tt := range []struct {
		code     rmqpb.Code
		stored   bool // by the server with that response
		attempts int
		maybe    bool
	}{
		{rmqpb.Code_INTERNAL_ERROR, true, 3, true},
		{rmqpb.Code_INTERNAL_SERVER_ERROR, true, 3, true},
		{rmqpb.Code_INTERNAL_SERVER_ERROR, false, 3, true},
		{rmqpb.Code_HA_NOT_AVAILABLE, false, 3, true},
		{rmqpb.Code_PROXY_TIMEOUT, true, 3, true},
		{rmqpb.Code_MASTER_PERSISTENCE_TIMEOUT, true, 3, true},
		{rmqpb.Code_SLAVE_PERSISTENCE_TIMEOUT, true, 3, true},
		{rmqpb.Code_NOT_IMPLEMENTED, false, 1, false},
		{rmqpb.Code_TOO_MANY_REQUESTS, false, 3, false},
		{rmqpb.Code_TOPIC_NOT_FOUND, false, 1, false},
	} {
		forms := []bool{false} // of the response
		if tt.code == rmqpb.Code_INTERNAL_SERVER_ERROR || tt.code == rmqpb.Code_NOT_IMPLEMENTED {
			forms = append(forms, true) // of the message's result
		}
		for _, result := range forms {
			t.Run(fmt.Sprintf("%v, stored %v, as a result %v", tt.code, tt.stored, result), func(t *testing.T) {
				brokertest.Run(t, func(t *testing.T, b *brokertest.Broker) {
					b.CreateTopic("orders", settings.Topic{})
					refusal := &rmqpb.SendMessageResponse{Status: &rmqpb.Status{Code: tt.code, Message: "by the test"}}
					if result {
						refusal.Entries = []*rmqpb.SendResultEntry{{Status: refusal.Status}}
						refusal.Status = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS}
					}
					frame, err := proto.Marshal(refusal)
					if err != nil {
						t.Fatal(err)
					}
					r := new(rogue)
					if tt.stored {
						r.response = func(method string, answer []byte) ([][]byte, error) {
							if strings.HasSuffix(method, "/SendMessage") {
								answer = frame
							}
							return [][]byte{answer}, nil
						}
					} else {
						r.request = func(method string, req []byte) (changed, answer []byte) {
							if strings.HasSuffix(method, "/SendMessage") {
								return nil, frame
							}
							return req, nil
						}
					}
					p, err := producer.New(r.client(t, b), producer.Options{})
					if err != nil {
						t.Fatal(err)
					}
					defer p.Close()
					_, err = p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("x")})
					e, ok := errors.AsType[*producer.SendError](err)
					if !ok || e.MaybeStored != tt.maybe || e.Attempts != tt.attempts || strings.Contains(err.Error(), "may have been stored") != tt.maybe {
						t.Errorf("%v: %+v; want %d attempts and MaybeStored %v", err, e, tt.attempts, tt.maybe)
					}
					want := int64(0)
					if tt.stored {
						want = 1
					}
					if info, err := b.Topic("orders"); err != nil || info.StoredMessages != want {
						t.Errorf("the broker has %d messages, %v; want %d", info.StoredMessages, err, want)
					}
				})
			})
		}
	}
}
