package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/handle"
)

// expireMessages takes deliveries that are not handed out, because their
// messages are older than expiry-delay, to the expiry-address, or removes them,
// and returns when that is on disk. Those that are not valid any more are left alone.
func (s *subscription) expireMessages(handles []handle.Receipt) error {
	if len(handles) == 0 {
		return nil
	}
	p := s.topic.address.Load()
	leaving := make([]*deadLetter, 0, len(handles))
	s.mu.Lock()
	now := time.Now()
	for _, h := range handles {
		l, err := s.current(h, now)
		if err != nil {
			continue
		}
		d := s.leaving(l, fmt.Sprintf("it was not delivered within expiry-delay, %v", p.expiry))
		d.expired = true
		if p.expiryAddress != "" && p.expiryAddress != s.topic.name {
			d.topics = []string{p.expiryAddress}
		}
		leaving = append(leaving, d)
	}
	s.mu.Unlock()
	return errors.Join(s.broker.endAll(leaving)...)
}
