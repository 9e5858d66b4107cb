package settings

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
)

// A ReconsumeMode chooses the delay of a ReconsumeLater (TDMQ for Pulsar: retry and dead letters):
// Delay, Level, or with the zero value the next level. The next level is level 1 after the first
// failure, level 2 after the second, and so on; the last level repeats.
type ReconsumeMode struct {
	// Delay is the delay itself, 1 s to 864 000 s.
	Delay time.Duration

	// Level is one of the group's levels, from 1 on.
	Level int
}

// Reconsume returns the delay of a message's retry number times, which begins with 1. It returns
// dead if that is above MaxRetries. The fields must have their defaults (WithDefaults). An invalid
// mode is an error with 40000 or, for the delay, 40012.
func (c RetryTopic) Reconsume(times int, m ReconsumeMode) (delay time.Duration, dead bool, err error) {
	switch {
	case m.Delay != 0 && m.Level != 0:
		return 0, false, invalid(tidegate.CodeBadRequest, "reconsume mode", "it has the delay %v and the level %d; give one of them, or neither for the next level", m.Delay, m.Level)
	case m.Delay != 0 && (m.Delay < MinReconsumeDelay || m.Delay > MaxReconsumeDelay):
		return 0, false, invalid(tidegate.CodeIllegalDeliveryTime, "delay", "it is %v; give %v to %v", m.Delay, MinReconsumeDelay, MaxReconsumeDelay)
	case m.Level < 0 || m.Level > len(c.Levels):
		return 0, false, invalid(tidegate.CodeBadRequest, "level", "it is %d; give 1 to %d", m.Level, len(c.Levels))
	}
	switch {
	case times > c.MaxRetries:
		return 0, true, nil
	case c.SubscriptionType == SubscriptionExclusive || c.SubscriptionType == SubscriptionFailover:
		return 0, false, nil
	case m.Delay != 0:
		return m.Delay, false, nil
	case m.Level != 0:
		return c.Levels.Delay(m.Level - 1), false, nil
	}
	return c.Levels.Delay(times - 1), false, nil
}

func invalid(code tidegate.Code, subject, format string, args ...any) error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}
