package admin_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tidegate/tidegate/internal/assert"

	"github.com/tidegate/tidegate/broker/admin"
	"github.com/tidegate/tidegate/broker/status"
)

// A loop over pages ends with an error if the server repeats a cursor.
func TestRepeatedCursorEndsTheLoop(t *testing.T) {
	requests := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests > 100 {
			t.Error("the loop does not end")
			http.Error(w, "", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"dead_letters":[{"message_id":"1"}],"next":"5"}`)
	}))
	defer web.Close()
	c, err := admin.New(web.URL, admin.Options{})
	assert.Must(t, err)
	n := 0
	for _, err = range c.AllDeadLetters(t.Context(), "g", status.DeadLetterQuery{}) {
		if err != nil {
			break
		}
		n++
	}
	assert.That(t, err != nil && n == 2 && requests == 2, "%d letters of %d requests, then %v; want 2 and an error", n, requests, err)
}
