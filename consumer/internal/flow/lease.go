package flow

import "time"

// maxInvisibleDuration is RocketMQ's maximum of an invisible duration.
const maxInvisibleDuration = 12 * time.Hour

// A Lease is the time for which a delivery belongs to this consumer, by its own clock.
//
// Wake-ups: Renewal and Retry return the time of the next extension, or the end of the lease if no
// extension may begin before it. The consumer keeps a timer for that time.
//
// Bound on steps: an extension that succeeds is followed by one after more than a quarter of the
// remaining time, a failed one by one after a hundredth of the invisible duration or later. None
// begins after the longest time of extensions, so every lease ends.
type Lease struct {
	Until time.Time // the handler's context ends then
	last  time.Time // no extension begins after that
}

// The server counts an invisible time from the moment at which it handed the message out or
// made the change, which is somewhere between request and response. The lease counts from
// the earliest of these moments and ends a little sooner, so that it is over before the
// server may deliver the message again, at any delay of the network.

// First returns the lease of a delivery that was asked for at sent, arrived at now, and
// is invisible for left from now on if the network took no time. A receive may have been parked for
// longer than that; then it is not known when the message was handed out, and a third of
// left is certain enough to begin with an extension.
func First(sent, now time.Time, left, maxExtension time.Duration) Lease {
	left = max(left, 0)
	certain := max(left-now.Sub(sent), left/3)
	l := Lease{Until: now.Add(certain - margin(left))}
	if maxExtension > 0 {
		l.last = now.Add(maxExtension)
	}
	return l
}

// margin is the part of an invisible time that is not used: timers fire late, and a handler needs a
// moment to see that its context has ended.
func margin(d time.Duration) time.Duration { return min(d/50, time.Second) }

// Extended returns the lease after an extension to d that was asked for at sent.
func (l Lease) Extended(sent time.Time, d time.Duration) Lease {
	l.Until = sent.Add(d - margin(d))
	return l
}

// Renewal returns when to extend the lease: after a third of its remaining time, less up to
// a tenth of that by random, 0 ≤ random < 1, so that messages received together are not
// extended together. Without an extension that is the end of the lease.
func (l Lease) Renewal(now time.Time, random float64) time.Time {
	third := l.Until.Sub(now) / 3
	return l.allowed(now.Add(third - time.Duration(random*float64(third)/10)))
}

// Retry returns when to try an extension again that failed: after a tenth of the remaining time.
func (l Lease) Retry(now time.Time, inv time.Duration) time.Time {
	return l.allowed(now.Add(max(l.Until.Sub(now)/10, inv/100)))
}

// allowed returns t, or the end of the lease if no extension may begin at t.
func (l Lease) allowed(t time.Time) time.Time {
	if t.After(l.last) || t.After(l.Until) {
		return l.Until
	}
	return t
}

// A RenewTime remembers how long extensions take.
type RenewTime struct{ peak time.Duration }

// Observe notes an extension that took d. The peak decays, so that one slow extension is
// forgotten after some dozens.
func (r *RenewTime) Observe(d time.Duration) { r.peak = max(d, r.peak-r.peak/32) }

// Floor returns the invisible duration to request: inv, or three times the duration of an
// extension. A shorter one would end before its extension arrives.
func (r *RenewTime) Floor(inv time.Duration) time.Duration {
	return min(max(inv, 3*r.peak), max(inv, maxInvisibleDuration))
}

// Timeout returns how long one attempt to extend may take.
func (r *RenewTime) Timeout(inv, left time.Duration) time.Duration {
	return min(max(inv/3, 2*r.peak), left)
}
