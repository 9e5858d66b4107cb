package broker

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidegate/tidegate/broker/internal/pending"
)

// The defaults of TransactionConfig, which are RocketMQ's: transactionTimeOut,
// transactionCheckInterval and transactionCheckMax.
const (
	DefaultTransactionTimeout       = 6 * time.Second
	DefaultTransactionCheckInterval = 30 * time.Second
	DefaultTransactionCheckMax      = 15
)

// maxFirstCheck bounds Incoming.FirstCheck (RocketMQ's maxTransactionRecoverySecond).
const maxFirstCheck = time.Hour

// A TransactionConfig is when producers are asked what became of the
// transactions that they did not end. A change holds from the next check of
// each transaction on.
type TransactionConfig struct {
	// Timeout is how long after its half message was sent a transaction's
	// producer is asked for the first time, unless the half message says
	// otherwise (Incoming.FirstCheck). 0: that of Options.Transaction, and
	// there DefaultTransactionTimeout.
	Timeout Duration `json:"timeout,omitempty"`

	// CheckInterval is the time between two checks. 0: that of
	// Options.Transaction, and there DefaultTransactionCheckInterval.
	CheckInterval Duration `json:"check_interval,omitempty"`

	// CheckMax is how often a producer is asked, whether or not there is one
	// to ask. A CheckInterval after the last time the transaction is given up:
	// the message is not delivered and becomes a dead letter in the topic
	// AbandonedTransactions. -1: no end. 0: that of Options.Transaction, and
	// there DefaultTransactionCheckMax.
	CheckMax int `json:"check_max,omitempty"`
}

// or returns c with every zero field set to that of d.
func (c TransactionConfig) or(d TransactionConfig) TransactionConfig {
	if c.Timeout == 0 {
		c.Timeout = d.Timeout
	}
	if c.CheckInterval == 0 {
		c.CheckInterval = d.CheckInterval
	}
	if c.CheckMax == 0 {
		c.CheckMax = d.CheckMax
	}
	return c
}

func (c TransactionConfig) withDefaults() TransactionConfig {
	return c.or(TransactionConfig{
		Timeout: Duration(DefaultTransactionTimeout), CheckInterval: Duration(DefaultTransactionCheckInterval), CheckMax: DefaultTransactionCheckMax,
	})
}

func (c TransactionConfig) validate(field string) error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("%s.timeout is %v: it may not be negative; 0 stands for the default", field, time.Duration(c.Timeout)))
	}
	if c.CheckInterval < 0 {
		errs = append(errs, fmt.Errorf("%s.check_interval is %v: it may not be negative; 0 stands for the default", field, time.Duration(c.CheckInterval)))
	}
	if c.CheckMax < -1 {
		errs = append(errs, fmt.Errorf("%s.check_max is %d: give 1 or more, -1 for no end, or 0 for the default", field, c.CheckMax))
	}
	errs = append(errs, atMost(field+".timeout", c.Timeout), atMost(field+".check_interval", c.CheckInterval))
	return errors.Join(errs...)
}

func (c TransactionConfig) schedule() pending.Schedule {
	return pending.Schedule{Timeout: time.Duration(c.Timeout), Interval: time.Duration(c.CheckInterval), Max: c.CheckMax}
}
