package settings

import (
	"errors"
	"fmt"
	"time"
)

// The defaults of Transaction, which are RocketMQ's: transactionTimeOut, transactionCheckInterval
// and transactionCheckMax.
const (
	defaultTransactionTimeout       = 6 * time.Second
	defaultTransactionCheckInterval = 30 * time.Second
	defaultTransactionCheckMax      = 15
)

// A Transaction has the times of checks: the broker asks the producers of unresolved transactions
// whether to commit. A change applies from the next check of each transaction on. The default of a
// zero field of a topic is that of the broker (Options.Transaction).
type Transaction struct {
	// Timeout is the time from the send of the half message to the first check. A half message can
	// request another one. Default of the broker: 6 s.
	Timeout Duration `json:"timeout,omitempty"`

	// CheckInterval is the time between two checks. Default of the broker: 30 s.
	CheckInterval Duration `json:"check_interval,omitempty"`

	// CheckMax is the maximum number of checks, including those without a connected producer. One
	// CheckInterval after the last check the broker ends the transaction: the message is not
	// delivered and becomes a dead letter in the topic AbandonedTransactions. -1 means no maximum.
	// Default of the broker: 15.
	CheckMax int `json:"check_max,omitempty"`
}

// Or returns c with every zero field set to that of d.
func (c Transaction) Or(d Transaction) Transaction {
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

// WithDefaults returns c with the default of every zero field.
func (c Transaction) WithDefaults() Transaction {
	return c.Or(Transaction{
		Timeout: Duration(defaultTransactionTimeout), CheckInterval: Duration(defaultTransactionCheckInterval), CheckMax: defaultTransactionCheckMax,
	})
}

// Validate returns an error that names every field with an invalid value, or nil. The names in the
// error begin with field, the name of the setting that has the times.
func (c Transaction) Validate(field string) error {
	var errs []error
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("%s.timeout is %v; it must not be negative, 0 means the default", field, time.Duration(c.Timeout)))
	}
	if c.CheckInterval < 0 {
		errs = append(errs, fmt.Errorf("%s.check_interval is %v; it must not be negative, 0 means the default", field, time.Duration(c.CheckInterval)))
	}
	if c.CheckMax < -1 {
		errs = append(errs, fmt.Errorf("%s.check_max is %d; give 1 or more, -1 for no maximum, or 0 for the default", field, c.CheckMax))
	}
	errs = append(errs, atMost(field+".timeout", c.Timeout), atMost(field+".check_interval", c.CheckInterval))
	return errors.Join(errs...)
}
