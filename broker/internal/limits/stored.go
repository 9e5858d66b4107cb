package limits

import (
	"encoding/json"
	"fmt"

	"github.com/tidegate/tidegate/broker/internal/refusal"
	"github.com/tidegate/tidegate/broker/internal/store"
	"github.com/tidegate/tidegate/broker/settings"
)

// A change is the record of limits that were set while the broker was in use.
type change struct {
	Set        settings.Limits `json:"set"`
	Configured settings.Limits `json:"configured"` // those of the configuration at that time
}

// over returns the limits in effect with a configuration. The last change of each limit wins: a
// limit whose configured value differs from that at the time of the change has the configured
// value, and the others have those that were set. The quota of a client is one limit, because a
// burst needs a rate.
func (c change) over(configured settings.Limits) settings.Limits {
	is, was, out := configured, c.Configured, c.Set
	pick(&out.MaxBacklog.Messages, is.MaxBacklog.Messages, was.MaxBacklog.Messages)
	pick(&out.MaxBacklog.Bytes, is.MaxBacklog.Bytes, was.MaxBacklog.Bytes)
	pick(&out.MaxBacklog.Age, is.MaxBacklog.Age, was.MaxBacklog.Age)
	pick(&out.ClientQuota, is.ClientQuota, was.ClientQuota)
	pick(&out.Pressure.MinFreeDisk, is.Pressure.MinFreeDisk, was.Pressure.MinFreeDisk)
	pick(&out.Pressure.MaxCompactionDebt, is.Pressure.MaxCompactionDebt, was.Pressure.MaxCompactionDebt)
	pick(&out.Pressure.MaxWriteStall, is.Pressure.MaxWriteStall, was.Pressure.MaxWriteStall)
	pick(&out.Pressure.MaxColdReads, is.Pressure.MaxColdReads, was.Pressure.MaxColdReads)
	pick(&out.Pressure.ColdDistance, is.Pressure.ColdDistance, was.Pressure.ColdDistance)
	return out
}

// pick sets a limit to its configured value if that has changed.
func pick[T comparable](limit *T, is, was T) {
	if is != was {
		*limit = is
	}
}

// recovered returns the limits that are in effect at the start.
func recovered(c Config, configured settings.Limits) (settings.Limits, error) {
	raw, err := c.Store.Limits()
	if err != nil || raw == nil {
		return configured, err
	}
	var stored change
	if err := json.Unmarshal(raw, &stored); err != nil {
		return configured, fmt.Errorf("the stored limits: %w", err)
	}
	out := stored.over(configured)
	if out != configured {
		c.Logger.Info("limits that were set in use replace the configured ones; change the configuration, or PUT /v1/throttle, to replace them",
			"limits", asJSON(out), "configured", asJSON(configured))
	}
	if stored.Configured == configured {
		return out, nil
	}
	return out, record(c.Store, change{out, configured})
}

// record writes a change, and returns when it is on disk. It removes the record if the limits are
// those of the configuration.
func record(st *store.Store, c change) error {
	v, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return st.Messages.Add(func(w *store.Batch) {
		if c.Set == c.Configured {
			w.DeleteLimits()
		} else {
			w.PutLimits(v)
		}
	}, nil).Wait()
}

// asJSON returns limits in the form that PUT /v1/throttle takes.
func asJSON(l settings.Limits) string {
	v, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	return string(v)
}

// Set replaces the limits of the whole broker, and returns when they are on disk. They apply from
// the next send on. A changed quota refills the burst of every client. If a value is invalid, Set
// changes nothing and returns an error that names each fault. The caller holds the token of
// Directory.LockAdmin.
func (l *Limits) Set(s settings.Limits) error { return l.change(change{s, l.configured}) }

// Configure replaces the configured limits, as a start with these would: a limit that differs from
// the one configured before replaces one that was set. The rest is as in Set.
func (l *Limits) Configure(s settings.Limits) error {
	return l.change(change{change{l.Settings(), l.configured}.over(s), s})
}

func (l *Limits) change(c change) error {
	if err := c.Set.Validate(); err != nil {
		return err
	}
	if c != (change{l.Settings(), l.configured}) {
		if err := record(l.store, c); err != nil {
			return refusal.Store(err)
		}
	}
	l.configured = c.Configured
	return l.apply(c.Set)
}
