package limits

import (
	"reflect"
	"slices"
	"testing"

	"github.com/tidegate/tidegate/broker/settings"
)

// Each limit follows its configured value if that has changed, and else its set value. A quota is
// one limit.
func TestEachLimitFollowsItsLastChange(t *testing.T) {
	t.Parallel()
	fields := leaves(reflect.TypeFor[settings.Limits](), nil)
	if len(fields) != 10 {
		t.Fatalf("%d fields", len(fields))
	}
	for _, f := range fields {
		var was, set, is settings.Limits
		at := func(l *settings.Limits) reflect.Value { return reflect.ValueOf(l).Elem().FieldByIndex(f) }
		put := func(l *settings.Limits, n int64) {
			if v := at(l); v.CanFloat() {
				v.SetFloat(float64(n))
			} else {
				v.SetInt(n)
			}
		}
		put(&was, 1)
		put(&set, 2)
		put(&is, 1)
		if got := (change{Set: set, Configured: was}).over(is); got != set {
			t.Errorf("%v, configured as before: %+v, want %+v", f, got, set)
		}
		put(&is, 3)
		if got := (change{Set: set, Configured: was}).over(is); got != is {
			t.Errorf("%v, configured anew: %+v, want %+v", f, got, is)
		}
	}
	quota := func(rate float64, burst int) settings.Limits {
		return settings.Limits{ClientQuota: settings.Quota{MessagesPerSecond: rate, Burst: burst}}
	}
	c := change{Set: quota(10, 50), Configured: quota(5, 0)}
	if got := c.over(quota(0, 0)); got != quota(0, 0) {
		t.Errorf("a quota without a rate: %+v", got)
	}
}

// leaves returns the indices of all fields that are not structs.
func leaves(t reflect.Type, at []int) (out [][]int) {
	if t.Kind() != reflect.Struct {
		return [][]int{at}
	}
	for i := range t.NumField() {
		out = append(out, leaves(t.Field(i).Type, append(slices.Clip(at), i))...)
	}
	return out
}
