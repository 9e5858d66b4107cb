package mocks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/mock/gomock"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/mocks"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// A Shop is the code under test: it announces orders.
type Shop struct{ Producer *producer.Producer }

// Errors of an order.
var (
	errTryLater = errors.New("the order is not announced; try again later")
	errRejected = errors.New("the order is invalid")
)

func (s *Shop) Announce(ctx context.Context, order string) error {
	_, err := s.Producer.Send(ctx, &tidegate.Message{Topic: "orders", Body: []byte(order)})
	if e, ok := errors.AsType[*producer.SendError](err); ok {
		if e.Fault() == producer.MessageFault {
			return errRejected
		}
		return errTryLater
	}
	return err
}

// An order to a server that fails is sent three times; an order that the server rejects is sent
// once. The transport has no network, so the test takes no time.
func TestShop(t *testing.T) {
	for name, tt := range map[string]struct {
		code  tidegate.Code // of each response
		sends int
		want  error
	}{
		"accepted":             {0, 1, nil},
		"the server fails":     {tidegate.CodeInternalServerError, 3, errTryLater},
		"the order is invalid": {protocol.CodeIllegalMessageTag, 1, errRejected},
	} {
		t.Run(name, func(t *testing.T) {
			m := mocks.NewMockTransport(gomock.NewController(t))
			var response transport.SendResult
			if tt.code != 0 {
				response.Err = &tidegate.Error{Op: "SendMessage", Subject: "orders", Code: tt.code}
			}
			m.EXPECT().Send(gomock.Any(), gomock.Len(1)).Return([]transport.SendResult{response}).Times(tt.sends)
			m.EXPECT().ProducerSettings(gomock.Any(), "orders").AnyTimes() // requested after a failure
			p, err := producer.New(m, producer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			shop := Shop{p}
			if err := shop.Announce(t.Context(), "3 apples"); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

// A test has t instead of reporter, as TestShop in this file.
func Example() {
	ctrl := gomock.NewController(reporter{})
	m := mocks.NewMockTransport(ctrl)
	m.EXPECT().Send(gomock.Any(), gomock.Len(1)).Return([]transport.SendResult{{Receipt: tidegate.Receipt{Offset: 7}}})
	p, err := producer.New(m, producer.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	receipt, err := p.Send(context.Background(), &tidegate.Message{Topic: "orders", Body: []byte("3 apples")})
	fmt.Println(receipt.Offset, err)
	ctrl.Finish() // reports expected calls that did not come
	// Output: 7 <nil>
}

type reporter struct{}

func (reporter) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (reporter) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
