package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidegate/tidegate"
	"github.com/tidegate/tidegate/broker/internal/consume"
	"github.com/tidegate/tidegate/transport"
)

// Nothing expires while Open restores a group: the head of a message group would be parked, or
// become a dead letter, while the messages after it are not known yet.
func TestNothingExpiresDuringRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{MinInvisibleDuration: 1})
		putTopic(t, b, "t", TopicConfig{})
		mustSend(t, b, &tidegate.Message{Topic: "t", Body: []byte("x")})
		receive(t, b, transport.ReceiveRequest{Group: "g", Topic: "t", InvisibleDuration: time.Second})
		s := b.subs.all()[0]
		s.mu.Lock()
		s.timer.Stop()
		s.armed, s.restoring = time.Time{}, true
		s.mu.Unlock()
		time.Sleep(2 * time.Second)
		s.restore(func(*consume.Progress) {}) // a record
		synctest.Wait()
		if d := s.describe(); d.Inflight != 1 {
			t.Errorf("during the restore: %+v", d)
		}
		s.restore(func(*consume.Progress) { s.restoring = false })
		synctest.Wait()
		if d := s.describe(); d.Inflight != 0 {
			t.Errorf("after the restore: %+v", d)
		}
	})
}
