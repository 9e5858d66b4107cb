package broker

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/backoff"
)

// setDurations calls try with each duration among the settings of v set to d, and then to what it
// was.
func setDurations(v reflect.Value, name string, d time.Duration, try func(name string)) {
	switch before := reflect.ValueOf(v.Interface()); v.Interface().(type) {
	case Duration, time.Duration:
		v.SetInt(int64(d))
		try(name)
		v.Set(before)
	case Milliseconds:
		v.SetInt(int64(d/time.Millisecond) + 1)
		try(name)
		v.Set(before)
	case backoff.Steps:
		v.Set(reflect.ValueOf(backoff.Steps{time.Second, d}))
		try(name)
		v.Set(before)
	default:
		switch v.Kind() {
		case reflect.Pointer:
			if v.Type().Elem().Kind() == reflect.Int64 {
				v.Set(reflect.New(v.Type().Elem()))
				setDurations(v.Elem(), name, d, try)
				v.Set(before)
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
					if tag == "" {
						tag = f.Name
					}
					setDurations(v.Field(i), tag, d, try)
				}
			}
		}
	}
}

// No duration of any setting is so long that a time that far ahead cannot be stored.
func TestDurationsOfSettingsAreBounded(t *testing.T) {
	t.Parallel()
	type settings interface{ Validate() error }
	tried := 0
	for _, c := range []settings{&TopicConfig{}, &GroupConfig{}, &AddressSettings{}, &Options{MinInvisibleDuration: 1, MaxInvisibleDuration: maxDuration}} {
		v := reflect.ValueOf(c).Elem()
		for _, d := range []time.Duration{math.MaxInt64 - time.Second, maxDuration + 1} {
			setDurations(v, "", d, func(name string) {
				tried++
				if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%T with %s set to %v: %v", c, name, d, err)
				}
			})
		}
	}
	if tried < 2*15 {
		t.Errorf("there are %d durations only", tried/2)
	}
	longest := TopicConfig{
		DuplicateWindow: Duration(maxDuration), Retention: Retention{Time: Duration(maxDuration)}, MaxBacklog: Limit{Age: Duration(maxDuration)},
		Transaction: TransactionConfig{Timeout: Duration(maxDuration), CheckInterval: Duration(maxDuration)},
	}
	if err := longest.Validate(); err != nil {
		t.Error(err)
	}
	group := GroupConfig{FIFO: true, FIFORetryInterval: Duration(maxDuration), Retry: backoff.Steps{maxDuration}}
	if err := group.Validate(); err != nil {
		t.Error(err)
	}
}

// A window that begins before 1970 is one: what waits for its delivery time, is half, or was
// delivered is remembered after a restart.
func TestLongestDuplicateWindow(t *testing.T) {
	t.Parallel()
	for _, kind := range []TopicType{TopicDelay, TopicTransaction, TopicNormal} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				b := open(t, Options{Dir: "data", fs: fs})
				putTopic(t, b, "t", TopicConfig{Type: kind, DuplicateWindow: Duration(maxDuration), Retention: Retention{Time: -1}})
				first := ""
				for range 3 {
					m := &tidegate.Message{ID: "m", Topic: "t", Body: []byte("x")}
					if kind == TopicDelay {
						m.DeliverAt = time.Now().Add(time.Hour)
					}
					r := b.Append(t.Context(), []Incoming{{Message: m, Half: kind == TopicTransaction}})[0]
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
				if info, err := b.Topic("t"); err != nil || info.Messages+info.DelayedMessages+info.HalfMessages != 1 {
					t.Errorf("%+v, %v", info, err)
				}
				elapse(2 * time.Hour)
			})
		})
	}
}
