package producer

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
)

// The receipt of a half message has the number of its attempts.
func TestReceiptOfAHalfMessageCountsAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &txFake{half: func(_ context.Context, n int) error {
			if n <= 2 {
				return &tidegate.Error{Err: tidegate.ErrUnavailable, NotConnected: true}
			}
			return nil
		}}
		p := newProducer(t, f, Options{Checker: committed})
		tx, err := p.Begin(t.Context(), message())
		if err != nil || tx.Receipt().Attempts != 3 {
			t.Fatalf("%+v, %v; want a receipt after 3 attempts", tx, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
