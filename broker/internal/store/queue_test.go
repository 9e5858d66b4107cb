package store

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tidegate/tidegate"
)

func TestWithout(t *testing.T) {
	for _, c := range []struct {
		from, to int64
		offsets  []int64
		want     string
	}{
		{0, 0, nil, ""},
		{3, 7, nil, "3-7"},
		{3, 7, []int64{1, 2, 7, 9}, "3-7"},
		{3, 7, []int64{3}, "4-7"},
		{3, 7, []int64{6}, "3-6"},
		{3, 7, []int64{3, 4, 5, 6}, ""},
		{0, 10, []int64{0, 2, 3, 9}, "1-2 4-9"},
	} {
		got := ""
		for i, r := range (Range{1, 2, c.from, c.to}).Without(c.offsets) {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%d-%d", r.From, r.To)
			if r.Topic != 1 || r.Queue != 2 {
				t.Errorf("%+v", r)
			}
		}
		if got != c.want {
			t.Errorf("%d-%d without %v is %q, want %q", c.from, c.to, c.offsets, got, c.want)
		}
	}
}

func FuzzDecodeMark(f *testing.F) {
	f.Add([]byte{})
	f.Add(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 7), 9))
	f.Add(slices.Repeat([]byte{0xff}, 16))
	f.Fuzz(func(t *testing.T, v []byte) {
		m, err := decodeMark(v)
		if (err == nil) != (len(v) == 16 && v[0] < 0x80 && v[8] < 0x80) || m.Offset < 0 || m.Bytes < 0 {
			t.Errorf("%x: %+v, %v", v, m, err)
		}
		_, n, err := decodeWaiting(make([]byte, 5), v)
		if (err == nil) != (len(v) == 16 && v[0] < 0x80 && v[8] < 0x80) || err == nil && n != (Waiting{m.Offset, m.Bytes}) {
			t.Errorf("%x: %+v, %v", v, n, err)
		}
	})
}

func FuzzDecodeStored(f *testing.F) {
	m := Message{Message: tidegate.Message{ID: "id", Body: []byte("body")}, Cumulative: 300, StoredAt: time.Unix(9, 9)}
	f.Add(m.AppendTo(make([]byte, 0, m.EncodedSize())))
	f.Add([]byte{1})
	f.Add([]byte{1, 2, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, v []byte) {
		got, err := decodeStored(v)
		var whole Message
		if decodeMessage(v, &whole) == nil && (err != nil || got.Cumulative != whole.Cumulative || !got.At.Equal(whole.StoredAt) || got.Size != int64(len(whole.Body))) {
			t.Errorf("%+v, %v, of %+v", got, err, whole)
		}
	})
}
