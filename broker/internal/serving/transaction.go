package serving

import (
	"github.com/tidegate/tidegate/broker/internal/pending"
	"github.com/tidegate/tidegate/transport"
)

// A TransactionEnd has the result of a transaction.
type TransactionEnd struct {
	Topic         string
	TransactionID string // as in the receipt of the half message

	// MessageID is the ID of the half message. Empty means that it is not compared.
	MessageID string

	Resolution transport.Resolution
}

// A TransactionCheck requests the result of a transaction from a producer, which responds with
// Broker.EndTransaction.
type TransactionCheck = pending.Check
