package producer

import (
	"context"
	"testing"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/transport"
)

// unnamed is a transport whose half messages have no transaction ID.
type unnamed struct{ *txFake }

func (u unnamed) SendHalf(ctx context.Context, m *tidegate.Message) transport.SendResult {
	r := u.txFake.SendHalf(ctx, m)
	r.Receipt.TransactionID = ""
	return r
}

// Begin fails if the response has no transaction ID, because no request could end the
// transaction. The server may have stored the message.
func TestHalfMessageWithoutATransactionID(t *testing.T) {
	f := unnamed{&txFake{}}
	p := newProducer(t, f, Options{Checker: committed})
	tx, err := p.Begin(t.Context(), message())
	if e := sendError(t, err); tx != nil || e.Reason != StopPermanent || !e.MaybeStored || len(f.halfMessages) != 1 {
		t.Errorf("%+v, %v after %d half messages; want a permanent failure of one that may be stored", tx, e, len(f.halfMessages))
	}
}
