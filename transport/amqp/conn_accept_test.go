package amqp

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate/internal/assert"
)

// Frames of go-amqp on channel 7.
var (
	beginFrame  = []byte{0, 0, 0, 14, 2, 0, 0, 7, 0x00, 0x53, 0x11, 0xc0, 1, 0}
	endFrame    = []byte{0, 0, 0, 12, 2, 0, 0, 7, 0x00, 0x53, 0x17, 0x45}
	attachFrame = []byte{0, 0, 0, 21, 2, 0, 0, 7, 0x00, 0x53, 0x12, 0xc0, 8, 3, 0xa1, 2, 'm', 'e', 0x43, 0x41, 0x40}
)

// accepts returns the frame that accepts first to last on channel 7.
func accepts(first, last byte) []byte {
	return []byte{
		0, 0, 0, 30, 2, 0, 0, 7, 0x00, 0x53, 0x15, 0xc0, 17, 5,
		0x41, 0x70, 0, 0, 0, first, 0x70, 0, 0, 0, last, 0x41, 0x00, 0x53, 0x24, 0x45,
	}
}

func deliveries(ids ...uint32) (list []*sessionDelivery) {
	for _, id := range ids {
		list = append(list, &sessionDelivery{ID: id})
	}
	return list
}

// accepting returns an Acceptor of a link whose frames so far are written, and the connection.
func accepting(t *testing.T) (*wire, *traffic, *acceptor) {
	t.Helper()
	w := newWire()
	close(w.free)
	c := newTraffic(w)
	for _, frame := range [][]byte{beginFrame, attachFrame} {
		write(t, c, string(frame))
	}
	a := (&connection{traffic: c}).Acceptor("me")
	assert.MustThat(t, a != nil, "the link has no Acceptor")
	synctest.Wait()
	return w, c, a
}

// Adjacent deliveries share a frame, even if their IDs wrap around. Nothing is accepted twice.
func TestAccept(t *testing.T) {
	for name, c := range map[string]struct {
		list []*sessionDelivery
		want [][]byte
	}{
		"none":                 {nil, nil},
		"one":                  {deliveries(5), [][]byte{accepts(5, 5)}},
		"a range":              {deliveries(7, 5, 6), [][]byte{accepts(5, 7)}},
		"gaps":                 {deliveries(9, 1, 2, 5, 8), [][]byte{accepts(1, 2), accepts(5, 5), accepts(8, 9)}},
		"accepted ones":        {slices.Insert(deliveries(1, 3), 1, &sessionDelivery{ID: 2, accepted: true}), [][]byte{accepts(1, 1), accepts(3, 3)}},
		"IDs that wrap around": {deliveries(0, 1<<32-1, 1), [][]byte{bytes.Replace(accepts(0, 1), []byte{0, 0, 0, 0}, []byte{255, 255, 255, 255}, 1)}},
	} {
		assert.Bubble(t, name, func(t *testing.T) {
			w, traffic, a := accepting(t)
			defer traffic.Close()
			before := len(w.written())
			assert.NoError(t, a.Accept(slices.Clone(c.list)))
			assert.NoError(t, traffic.flush())
			got := []byte{}
			for _, b := range w.written()[before:] {
				got = append(got, b...)
			}
			if want := bytes.Join(c.want, nil); !bytes.Equal(got, want) {
				t.Errorf("wrote  %x\nwant   %x", got, want)
			}
			for _, d := range c.list {
				assert.That(t, a.Accepted(d), "delivery %d is not accepted", d.ID)
			}
		})
	}
}

// After the end of a session another one can have its channel, and deliveries with the same IDs.
func TestAcceptAfterTheEndOfTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c, a := accepting(t)
		defer c.Close()
		for _, frame := range [][]byte{endFrame, beginFrame, attachFrame} {
			write(t, c, string(frame))
		}
		synctest.Wait()
		before := len(w.written())
		list := deliveries(1)
		err := a.Accept(list)
		assert.That(t, errors.Is(err, errEnded) && !a.Accepted(list[0]), "got %v, want errEnded", err)
		synctest.Wait()
		n := len(w.written())
		assert.That(t, n == before, "%d writes after the end of the session", n-before)
		b := (&connection{traffic: c}).Acceptor("me")
		assert.That(t, b != nil && b.Accept(list) == nil, "the link of the next session accepts nothing")
	})
}

func TestAcceptAfterTheEndOfTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, a := accepting(t)
		c.Close()
		list := deliveries(1)
		err := a.Accept(list)
		assert.That(t, errors.Is(err, net.ErrClosed) && !a.Accepted(list[0]), "got %v, want net.ErrClosed", err)
	})
}

// Acceptances do not wait for space as frames of go-amqp do: the messages in hand bound them.
func TestAcceptDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		c := newTraffic(w)
		defer c.Close()
		for _, frame := range [][]byte{beginFrame, attachFrame, make([]byte, maxUnwritten+1)} {
			write(t, c, string(frame))
		}
		start := time.Now()
		err := (&connection{traffic: c}).Acceptor("me").Accept(deliveries(1))
		assert.That(t, err == nil && time.Since(start) <= 0, "Accept: %v after %v", err, time.Since(start))
		close(w.free)
	})
}

// Frames that are cut off or unknown name no link.
func FuzzNote(f *testing.F) {
	for _, frame := range [][]byte{beginFrame, attachFrame, endFrame} {
		for n := range len(frame) + 1 {
			f.Add(frame[:n])
		}
	}
	f.Add([]byte{0, 0, 0, 21, 2, 0, 0, 7, 0x00, 0x53, 0x12, 0xd0, 0, 0, 0, 9, 0, 0, 0, 1, 0xa1, 2, 'm', 'e'})
	f.Fuzz(func(t *testing.T, frame []byte) {
		c := &traffic{channels: map[uint16]*channel{}}
		c.note(beginFrame)
		c.note(frame)
		for n, ch := range c.channels {
			if ch.number != n || ch.ended || len(ch.link) > len(frame) {
				t.Errorf("channel %d is %+v", n, *ch)
			}
		}
	})
}
