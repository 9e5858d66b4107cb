package protocol

// The properties that the server adds to a dead letter. DLQ_ORIGIN_TOPIC and DLQ_ORIGIN_MESSAGE_ID
// are RocketMQ's; the tidegate broker adds the others. A message to send must not have them.
const (
	PropertyDeadLetterTopic     = "DLQ_ORIGIN_TOPIC"
	PropertyDeadLetterMessageID = "DLQ_ORIGIN_MESSAGE_ID"
	PropertyDeadLetterQueue     = "DLQ_ORIGIN_QUEUE"
	PropertyDeadLetterOffset    = "DLQ_ORIGIN_OFFSET"
	PropertyDeadLetterGroup     = "DLQ_GROUP"
	PropertyDeadLetterAttempts  = "DLQ_ATTEMPTS"
	PropertyDeadLetterReason    = "DLQ_REASON"
)

// The properties in which RocketMQ's protocol repeats the message group and the transaction ID of a
// delivery. A tidegate.Delivery has them as fields and not among its Properties. A message to send
// must not have them.
const (
	PropertyMessageGroup  = "__SHARDINGKEY"
	PropertyTransactionID = "__transactionId__"
)

// The properties of a message in a retry topic (TDMQ for Pulsar: retry and dead letters).
const (
	PropertyRealTopic       = "REAL_TOPIC"        // topic of the original send
	PropertyOriginMessageID = "ORIGIN_MESSAGE_ID" // ID in the original topic
	PropertyRetryTopic      = "RETRY_TOPIC"       // the retry topic
	PropertyReconsumeTimes  = "RECONSUMETIMES"    // number of retries
)

// The properties that the tidegate broker adds when it moves a dead or expired message to the
// dead letter address or expiry address of its address settings (Apache ActiveMQ Artemis manual,
// Undelivered Messages).
const (
	PropertyOriginalAddress   = "_AMQ_ORIG_ADDRESS"    // original topic
	PropertyOriginalQueue     = "_AMQ_ORIG_QUEUE"      // consumer group that did not consume the message
	PropertyOriginalMessageID = "_AMQ_ORIG_MESSAGE_ID" // original ID
	PropertyExpired           = "_AMQ_ACTUAL_EXPIRY"   // time of the expiry, in milliseconds since 1970
)

// PropertyDeadLetterRedrives is the number of redrives of a message from the dead letters. The
// message keeps the property if it becomes a dead letter again. A producer may send a message with
// it, so programs can forward redriven messages.
const PropertyDeadLetterRedrives = "DLQ_REDRIVES"

// PropertyCheckTimes is the property with the number of checks, under RocketMQ's name. Checks and
// abandoned transactions have it.
const PropertyCheckTimes = "TRANSACTION_CHECK_TIMES"

// RetryPrefix precedes the group's name in the name of its topic for redriven messages.
const RetryPrefix = "%RETRY%"

// DeadLetterPrefix precedes the group's name in the name of its dead letter topic.
const DeadLetterPrefix = "%DLQ%"
