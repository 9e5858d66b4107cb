package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker"
	"github.com/tidegate/tidegate/broker/internal/engine"
	"github.com/tidegate/tidegate/broker/settings"
)

// Open rejects each duration of the options above the maximum, and names its field.
func TestDurationsOfOptionsAreBounded(t *testing.T) {
	t.Parallel()
	const tooLong = settings.MaxDuration + 1
	for name, o := range map[string]broker.Options{
		"MinInvisibleDuration":       {MinInvisibleDuration: tooLong, MaxInvisibleDuration: tooLong},
		"MaxInvisibleDuration":       {MaxInvisibleDuration: tooLong},
		"MaxBacklog.age":             {MaxBacklog: settings.Limit{Age: settings.Duration(tooLong)}},
		"Pressure.max_write_stall":   {Pressure: settings.Pressure{MaxWriteStall: settings.Duration(tooLong)}},
		"Transaction.timeout":        {Transaction: settings.Transaction{Timeout: settings.Duration(tooLong)}},
		"Transaction.check_interval": {Transaction: settings.Transaction{CheckInterval: settings.Duration(tooLong)}},
	} {
		if _, err := broker.Open(o); err == nil || !strings.Contains(err.Error(), name+" is ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (broker.Options{MinInvisibleDuration: 1, MaxInvisibleDuration: settings.MaxDuration}).Validate(); err != nil {
		t.Error(err)
	}
}

// A window that begins before 1970 is valid: the IDs of waiting, half and delivered messages are
// remembered after a restart.
func TestLongestDuplicateWindow(t *testing.T) {
	t.Parallel()
	for _, kind := range []settings.TopicType{settings.TopicDelay, settings.TopicTransaction, settings.TopicNormal} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, broker.Options{Dir: "data"}.On(fs))
				putTopic(t, b, "t", settings.Topic{Type: kind, DuplicateWindow: settings.Duration(settings.MaxDuration), Retention: settings.Retention{Time: -1}})
				first := ""
				for range 3 {
					m := &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")}
					if kind == settings.TopicDelay {
						m.DeliverAt = time.Now().Add(time.Hour)
					}
					r := serve(b).Append(t.Context(), []engine.Incoming{{Message: m, Half: kind == settings.TopicTransaction}})[0]
					if r.Err != nil {
						t.Fatal(r.Err)
					}
					if receipt := fmt.Sprint(r.Receipt); first == "" {
						first = receipt
					} else if receipt != first {
						t.Errorf("sent again: %s, first %s", receipt, first)
					}
					b = reopen(t, b, fs)
				}
				if info, err := b.Topic("t"); err != nil || info.StoredMessages+info.DelayedMessages+info.HalfMessages != 1 {
					t.Errorf("%+v, %v", info, err)
				}
				elapse(2 * time.Hour)
			})
		})
	}
}
