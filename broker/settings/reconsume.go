package settings

import (
	"fmt"
	"time"

	"github.com/tidegate/tidegate"
)

// Reconsume returns the delay of a message's retry number times, which begins with 1 (TDMQ for
// Pulsar: retry and dead letters): the requested delay, 1 s to 864 000 s, or that of the requested
// level, which begins with 1. If both are zero, it is that of the next level: level 1 after the
// first failure, level 2 after the second, and so on; the last level repeats.
//
// It returns dead if times is above MaxRetries. The fields must have their defaults (WithDefaults).
// The error of an invalid request has code 40000 or, for the delay, 40012.
func (c RetryTopic) Reconsume(times int, requested time.Duration, level int) (delay time.Duration, dead bool, err error) {
	switch {
	case requested != 0 && level != 0:
		return 0, false, invalid(tidegate.CodeBadRequest, "reconsume mode", "it has the delay %v and the level %d; give one of them, or neither for the next level", requested, level)
	case requested != 0 && (requested < minReconsumeDelay || requested > MaxReconsumeDelay):
		return 0, false, invalid(tidegate.CodeIllegalDeliveryTime, "delay", "it is %v; give %v to %v", requested, minReconsumeDelay, MaxReconsumeDelay)
	case level < 0 || level > len(c.Levels):
		return 0, false, invalid(tidegate.CodeBadRequest, "level", "it is %d; give 1 to %d", level, len(c.Levels))
	}
	switch {
	case times > c.MaxRetries:
		return 0, true, nil
	case c.SubscriptionType == SubscriptionExclusive || c.SubscriptionType == SubscriptionFailover:
		return 0, false, nil
	case requested != 0:
		return requested, false, nil
	case level != 0:
		return c.Levels.Delay(level - 1), false, nil
	}
	return c.Levels.Delay(times - 1), false, nil
}

func invalid(code tidegate.Code, subject, format string, args ...any) error {
	return &tidegate.Error{Code: code, Subject: subject, Message: fmt.Sprintf(format, args...)}
}
