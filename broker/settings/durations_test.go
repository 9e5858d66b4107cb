package settings

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidegate/tidegate/backoff"
)

// setDurations calls try with each duration among the settings of v set to d, one at a time.
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

// Validate rejects each duration above MaxDuration, and names its field.
func TestDurationsOfSettingsAreBounded(t *testing.T) {
	t.Parallel()
	type validated interface{ Validate() error }
	tried := 0
	for _, c := range []validated{&Topic{}, &Group{}, &Address{}} {
		v := reflect.ValueOf(c).Elem()
		for _, d := range []time.Duration{math.MaxInt64 - time.Second, MaxDuration + 1} {
			setDurations(v, "", d, func(name string) {
				tried++
				if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("%T with %s set to %v: %v", c, name, d, err)
				}
			})
		}
	}
	if tried < 2*11 {
		t.Errorf("there are %d durations only", tried/2)
	}
	longest := Topic{
		DuplicateWindow: Duration(MaxDuration), Retention: Retention{Time: Duration(MaxDuration)}, MaxBacklog: Limit{Age: Duration(MaxDuration)},
		Transaction: Transaction{Timeout: Duration(MaxDuration), CheckInterval: Duration(MaxDuration)},
	}
	if err := longest.Validate(); err != nil {
		t.Error(err)
	}
	group := Group{FIFO: true, FIFORetryInterval: Duration(MaxDuration), Retry: backoff.Steps{MaxDuration}}
	if err := group.Validate(); err != nil {
		t.Error(err)
	}
}
