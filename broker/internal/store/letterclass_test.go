package store

import (
	"errors"
	"testing"
	"time"
)

func TestLetterClass(t *testing.T) {
	t.Parallel()
	for _, want := range []LetterClass{
		{Count: 1},
		{"g", "0123456789ab", "orders", "no such account", 1 << 40, time.Unix(1, 2), time.Unix(3, 4), 7},
	} {
		v := want.AppendTo(nil)
		got, err := decodeLetterClass(v)
		if err != nil || got != want {
			t.Errorf("%+v is read as %+v, %v", want, got, err)
		}
		for n := range len(v) {
			if _, err := decodeLetterClass(v[:n]); !errors.Is(err, errCorrupt) {
				t.Errorf("%d of %d bytes are read: %v", n, len(v), err)
			}
		}
		if _, err := decodeLetterClass(append(v, 0)); !errors.Is(err, errCorrupt) {
			t.Errorf("a further byte is read: %v", err)
		}
	}
	if _, err := decodeLetterClass((&LetterClass{}).AppendTo(nil)); !errors.Is(err, errCorrupt) {
		t.Errorf("a class without letters is read: %v", err)
	}
	topic, class, ok := splitClassKey(appendClassKey(nil, 3, 1<<31))
	if !ok || topic != 3 || class != 1<<31 {
		t.Errorf("the key is read as %d, %d, %v", topic, class, ok)
	}
}
