package consumer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tidegate/tidegate/consumer"
	"github.com/tidegate/tidegate/consumer/internal/verdict"
)

func TestNegativeDelaysMeanNone(t *testing.T) {
	if e, ok := errors.AsType[*verdict.Snooze](consumer.Snooze(-time.Second)); !ok || e.Delay != 0 {
		t.Errorf("Snooze: %+v", e)
	}
	if e, ok := errors.AsType[*verdict.RetryIn](consumer.RetryIn(-time.Second, nil)); !ok || e.Delay != 0 {
		t.Errorf("RetryIn: %+v", e)
	}
}
