package verdict

import (
	"errors"
	"testing"

	"github.com/tidegate/tidegate/transport"
)

// A valid handle shows that no earlier attempt has settled the delivery: if the next attempt fails,
// the delivery is unsettled, not possibly settled.
func TestFoundHandleShowsThatNothingIsSettled(t *testing.T) {
	s := State{Decision: Decision{Act: Ack}}
	s.After(lost, true, false)
	s.After(invalid, true, true)
	s.Found(nil)
	s.After(refused, true, false)
	if end, _, err := s.Conclude(transport.RetryResult{}, s.Last); end != Unsettled || !errors.Is(err, refused) || errors.Is(err, ErrPerhaps) {
		t.Errorf("end %d, %v; want unsettled with the error of the last attempt", end, err)
	}
}
