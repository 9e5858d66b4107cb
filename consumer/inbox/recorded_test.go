package inbox_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	"github.com/tidegate/tidegate"
)

// If all messages of a batch are recorded already, next is not called.
func TestBatchOfRecordedMessages(t *testing.T) {
	s := newSQL(t, openDB(t, filepath.Join(t.TempDir(), "test.db")))
	var calls []int // messages of each call
	h := s.BatchHandler(func(_ context.Context, _ *sql.Tx, ds []*tidegate.Delivery) error {
		calls = append(calls, len(ds))
		return nil
	})
	batch := []*tidegate.Delivery{in("orders", "1"), in("orders", "2")}
	for range 3 {
		if err := h(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	if len(calls) != 1 || calls[0] != 2 {
		t.Errorf("calls with %v messages, want one with 2", calls)
	}
}
