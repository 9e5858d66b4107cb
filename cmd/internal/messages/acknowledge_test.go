package messages

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tidegate/tidegate"
)

// printed returns n messages with the IDs from first on.
func printed(first, n int) []*tidegate.Delivery {
	ds := make([]*tidegate.Delivery, n)
	for i := range ds {
		ds[i] = &tidegate.Delivery{Message: tidegate.Message{ID: fmt.Sprint(first + i)}}
	}
	return ds
}

func ids(ds []*tidegate.Delivery) (all []string) {
	for _, d := range ds {
		all = append(all, d.ID)
	}
	return all
}

// Messages that are printed during an acknowledgement are acknowledged together, in their order.
// The end waits for the last one.
func TestAcknowledgeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls [][]string
		answer := make(chan struct{})
		a := acknowledge(func(ds []*tidegate.Delivery) []error {
			calls = append(calls, ids(ds))
			<-answer
			return make([]error, len(ds))
		}, func() { t.Error("a failure") })
		a.printed <- printed(0, 2)
		synctest.Wait()
		for i := range 3 {
			a.printed <- printed(2+i, 1)
		}
		close(answer)
		if rest, err := a.end(); len(rest) > 0 || err != nil {
			t.Errorf("%d messages are left, %v", len(rest), err)
		}
		if got := fmt.Sprint(calls); got != "[[0 1] [2 3 4]]" {
			t.Errorf("the acknowledgements are %s", got)
		}
	})
}

// No acknowledgement follows a failure. The messages that were printed before the command knew of
// it are left, and the error names the first message that failed and counts the others.
func TestAcknowledgeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		failures, calls := 0, 0
		a := acknowledge(func(ds []*tidegate.Delivery) []error {
			calls++
			return []error{nil, away, away}
		}, func() { failures++ })
		a.printed <- printed(0, 3)
		synctest.Wait()
		a.printed <- printed(3, 2)
		rest, err := a.end()
		if !errors.Is(err, away) || !strings.Contains(err.Error(), "message 1 was printed") || !strings.Contains(err.Error(), "1 more") {
			t.Errorf("the error is %v", err)
		}
		if !slices.Equal(ids(rest), []string{"3", "4"}) || failures != 1 || calls != 1 {
			t.Errorf("%q are left after %d failures and %d acknowledgements", ids(rest), failures, calls)
		}
	})
}
