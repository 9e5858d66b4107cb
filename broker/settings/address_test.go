package settings

import (
	"encoding/json"
	"reflect"
	"testing"
)

// Artemis: undelivered messages: "The `redelivery-collision-avoidance-factor` must be between 0.0
// and 1.0."
func TestCollisionAvoidanceFactorBounds(t *testing.T) {
	t.Parallel()
	for factor, legal := range map[float64]bool{0: true, .5: true, 1: true, -.01: false, 1.01: false} {
		if err := (Address{RedeliveryCollisionAvoidanceFactor: &factor}).Validate(); (err == nil) != legal {
			t.Errorf("%v: %v", factor, err)
		}
	}
}

// A field of the more specific settings wins, and a nil field is inherited.
func TestAddressSettingsMerge(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[Address]()
	for i := range typ.NumField() {
		set := reflect.New(typ).Elem()
		set.Field(i).Set(reflect.New(typ.Field(i).Type.Elem()))
		s, none := set.Interface().(Address), Address{}
		other := reflect.New(typ).Elem()
		other.Field(i).Set(reflect.New(typ.Field(i).Type.Elem()))
		if got := s.Over(other.Interface().(Address)); got != s {
			t.Errorf("%s: the less specific one won", typ.Field(i).Name)
		}
		if got := none.Over(s); got != s {
			t.Errorf("%s is not inherited", typ.Field(i).Name)
		}
	}
}

func FuzzMilliseconds(f *testing.F) {
	for _, s := range []string{"5000", "-1", `"5s"`, `"1m30s"`, "1.5", "null", `"1ns"`, "1e3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var m, again Milliseconds
		if json.Unmarshal([]byte(text), &m) != nil {
			return
		}
		b, err := json.Marshal(m)
		if err != nil || json.Unmarshal(b, &again) != nil || m != again {
			t.Errorf("%s became %d, %s, %v, %d", text, m, b, err, again)
		}
	})
}
