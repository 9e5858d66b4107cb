package producer_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"go.uber.org/mock/gomock"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/internal/protocol"
	"github.com/tidegate/tidegate/mocks"
	"github.com/tidegate/tidegate/producer"
	"github.com/tidegate/tidegate/transport"
)

// Every code of the protocol, with the number of attempts, of at most three, that a send makes if
// each response has the code.
//
// Hopeless errors are not retried.
//
// RocketMQ: sending retry and throttling: "The broker returns an error code"
// RocketMQ: sending retry and throttling: "Logic error: an error caused by incorrect running logic"
// RocketMQ: sending retry and throttling: "Throttling: throttling triggered by excessive traffic"
func TestAttemptsByCode(t *testing.T) {
	attempts := map[tidegate.Code]int{
		0:                                3, // no response
		tidegate.CodeRequestTimeout:      3,
		tidegate.CodeTooManyRequests:     3,
		protocol.CodeInternalError:       3,
		tidegate.CodeInternalServerError: 3, protocol.CodeHANotAvailable: 3,
		protocol.CodeProxyTimeout: 3, protocol.CodeMasterPersistenceTimeout: 3, protocol.CodeSlavePersistenceTimeout: 3,
		protocol.CodeFailedToConsumeMessage: 3, protocol.CodeMultipleResults: 3,
		tidegate.CodeNotImplemented: 1, protocol.CodeUnsupported: 1, protocol.CodeVersionUnsupported: 1,
		protocol.CodeVerifyFIFOMessageUnsupported: 1,
	}
	for c := tidegate.CodeBadRequest; c < 50000; c++ {
		if _, ok := attempts[c]; !ok && c.String()[0] >= 'A' { // it has a name
			attempts[c] = 1
		}
	}
	if len(attempts) < 45 {
		t.Fatalf("only %d codes", len(attempts))
	}
	for code, want := range attempts {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mocks.NewMockTransport(gomock.NewController(t))
				answer := &tidegate.Error{Op: "SendMessage", Subject: "orders", Code: code}
				m.EXPECT().Send(gomock.Any(), gomock.Len(1)).Return([]transport.SendResult{{Err: answer}}).Times(want)
				m.EXPECT().ProducerSettings(gomock.Any(), "orders").Return(transport.ProducerSettings{}, nil).MaxTimes(1)
				p, err := producer.New(m, producer.Options{})
				if err != nil {
					t.Fatal(err)
				}
				_, err = p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("b")})
				e, ok := errors.AsType[*producer.SendError](err)
				if !ok || e.Attempts != want || !errors.Is(err, answer) {
					t.Errorf("got %+v, want %d attempts", err, want)
				}
			})
		})
	}
}

// A transport that breaks the contract is an error like another, not a panic.
func TestTransportWithoutResults(t *testing.T) {
	m := mocks.NewMockTransport(gomock.NewController(t))
	m.EXPECT().Send(gomock.Any(), gomock.Any()).Return(nil).Times(2)
	m.EXPECT().ProducerSettings(gomock.Any(), "orders").Return(transport.ProducerSettings{MaxAttempts: 2}, nil)
	p, err := producer.New(m, producer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Effective(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	_, err = p.Send(t.Context(), &tidegate.Message{Topic: "orders", Body: []byte("b")})
	e, ok := errors.AsType[*producer.SendError](err)
	if !ok || !e.MaybeStored || e.Attempts != 2 {
		t.Errorf("got %v", err)
	}
}
