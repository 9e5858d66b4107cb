package broker

import (
	"github.com/tidegate/tidegate/backoff"
	"github.com/tidegate/tidegate/broker/settings"
)

// The settings of package broker/settings, under the names of this package.
type (
	// TopicConfig has the settings of a topic.
	TopicConfig = settings.Topic

	// TopicType is the kind of messages that a topic accepts.
	TopicType = settings.TopicType

	// Retention decides when the messages of a topic are removed.
	Retention = settings.Retention

	// TransactionConfig has the times of checks for unresolved transactions.
	TransactionConfig = settings.Transaction

	// GroupConfig has the settings of a consumer group.
	GroupConfig = settings.Group

	// Start is the first position of a consumer group in a topic.
	Start = settings.Start

	// OnExhausted is the behaviour of a FIFO group after the last attempt of a message.
	OnExhausted = settings.OnExhausted

	// NegativeAckConfig has the settings of negative acknowledgements.
	NegativeAckConfig = settings.NegativeAck

	// RetryTopicConfig has the settings of retries through a retry topic.
	RetryTopicConfig = settings.RetryTopic

	// RetryNaming is the form of the names of retry topics and their dead letter topics.
	RetryNaming = settings.RetryNaming

	// SubscriptionType is the declared type of a group with retry topics.
	SubscriptionType = settings.SubscriptionType

	// ReconsumeMode chooses the delay of [Broker.ReconsumeLater].
	ReconsumeMode = settings.ReconsumeMode

	// AddressSettings are the settings of the topics that an address pattern matches.
	AddressSettings = settings.Address

	// Milliseconds is a number of milliseconds, the unit of address settings.
	Milliseconds = settings.Milliseconds

	// Duration is a time.Duration that is a string in JSON, such as "1m30s".
	Duration = settings.Duration

	// Limits are the limits of the whole broker.
	Limits = settings.Limits

	// Limit bounds a backlog.
	Limit = settings.Limit

	// Quota bounds the send rate of one client.
	Quota = settings.Quota

	// Rate bounds the send rate of a topic.
	Rate = settings.Rate

	// Pressure has the limits of the storage's state.
	Pressure = settings.Pressure
)

// The types of topics.
const (
	TopicNormal      = settings.TopicNormal
	TopicFIFO        = settings.TopicFIFO
	TopicDelay       = settings.TopicDelay
	TopicTransaction = settings.TopicTransaction
)

// The first positions of a consumer group.
const (
	StartEarliest = settings.StartEarliest
	StartLatest   = settings.StartLatest
)

// The behaviours after the last attempt.
const (
	OnExhaustedDeadLetter = settings.OnExhaustedDeadLetter
	OnExhaustedBlock      = settings.OnExhaustedBlock
	OnExhaustedPark       = settings.OnExhaustedPark
)

// The namings of retry topics.
const (
	RetryNaming292 = settings.RetryNaming292 // topic-group-RETRY and topic-group-DLQ
	RetryNaming272 = settings.RetryNaming272 // group-RETRY and group-DLQ, for all topics of the group
	RetryNaming261 = settings.RetryNaming261 // group-retry and group-dlq, for all topics of the group
)

// The types of groups with retry topics. Delays need Shared or KeyShared.
const (
	SubscriptionShared    = settings.SubscriptionShared
	SubscriptionKeyShared = settings.SubscriptionKeyShared
	SubscriptionExclusive = settings.SubscriptionExclusive
	SubscriptionFailover  = settings.SubscriptionFailover
)

// The defaults and bounds of settings.
const (
	DefaultQueues            = settings.DefaultQueues
	MaxQueues                = settings.MaxQueues
	DefaultDuplicateWindow   = settings.DefaultDuplicateWindow
	DefaultRetention         = settings.DefaultRetention
	DefaultMaxAttempts       = settings.DefaultMaxAttempts
	DefaultFIFORetryInterval = settings.DefaultFIFORetryInterval
	DefaultMaxRetries        = settings.DefaultMaxRetries
	DefaultNegativeAckDelay  = settings.DefaultNegativeAckDelay
	MinReconsumeDelay        = settings.MinReconsumeDelay
	MaxReconsumeDelay        = settings.MaxReconsumeDelay

	DefaultTransactionTimeout       = settings.DefaultTransactionTimeout
	DefaultTransactionCheckInterval = settings.DefaultTransactionCheckInterval
	DefaultTransactionCheckMax      = settings.DefaultTransactionCheckMax

	DefaultRedeliveryDelayMultiplier = settings.DefaultRedeliveryDelayMultiplier
	DefaultMaxRedeliveryDelayFactor  = settings.DefaultMaxRedeliveryDelayFactor
	DefaultMaxDeliveryAttempts       = settings.DefaultMaxDeliveryAttempts
	DefaultDeadLetterQueuePrefix     = settings.DefaultDeadLetterQueuePrefix

	DefaultMaxCompactionDebt = settings.DefaultMaxCompactionDebt
	DefaultMaxWriteStall     = settings.DefaultMaxWriteStall
	DefaultColdDistance      = settings.DefaultColdDistance

	// ResumePercent is the percentage of a backlog limit at which the broker accepts sends again.
	ResumePercent = settings.ResumePercent
)

// RetryLevels returns a new copy of the delay levels of retry topics: level 1 is 1 s, level 18 is
// 2 h.
func RetryLevels() backoff.Steps { return settings.RetryLevels() }

// ParseMilliseconds reads a whole number of milliseconds, or a duration such as "5s" or "1m30s".
func ParseMilliseconds(text string) (Milliseconds, error) { return settings.ParseMilliseconds(text) }
