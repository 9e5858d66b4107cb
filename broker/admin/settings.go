package admin

import "github.com/tidegate/tidegate/broker/settings"

// The settings are the types of package broker/settings. A PUT replaces all settings of its
// subject: a zero field has its default, also when the subject exists.
type (
	// TopicConfig has the settings of a topic.
	TopicConfig = settings.Topic

	// Retention has the conditions for removing messages.
	Retention = settings.Retention

	// TransactionConfig has the times of checks for unresolved transactions.
	TransactionConfig = settings.Transaction

	// GroupConfig has the settings of a consumer group.
	GroupConfig = settings.Group

	// RetryTopicConfig has the settings of retries through retry topics.
	RetryTopicConfig = settings.RetryTopic

	// NegativeAckConfig has the settings of negative acknowledgements.
	NegativeAckConfig = settings.NegativeAck

	// AddressSettings are the settings of the topics that a pattern matches, by the names of Apache
	// ActiveMQ Artemis.
	AddressSettings = settings.Address

	// Limits are the limits of the whole broker.
	Limits = settings.Limits

	// Limit is a bound of a backlog.
	Limit = settings.Limit

	// Rate is a bound of the send rate of a topic.
	Rate = settings.Rate

	// Quota is a bound of the send rate of each client.
	Quota = settings.Quota

	// Pressure has the limits of the storage's state.
	Pressure = settings.Pressure

	// Duration is a time.Duration that is a string in JSON, such as "1m30s".
	Duration = settings.Duration

	// Milliseconds is a number of milliseconds, the unit of address settings.
	Milliseconds = settings.Milliseconds
)

// The types of topics.
const (
	TopicNormal      = settings.TopicNormal      // messages without order
	TopicFIFO        = settings.TopicFIFO        // messages with a message group, in its order
	TopicDelay       = settings.TopicDelay       // messages with a delivery time
	TopicTransaction = settings.TopicTransaction // transactional messages
)
