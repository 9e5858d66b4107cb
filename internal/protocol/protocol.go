// Package protocol has the names and numbers of RocketMQ's protocol and of the systems that the
// broker follows (TDMQ for Pulsar, Apache ActiveMQ Artemis) that only this module reads and writes.
// Programs get the values from methods, such as tidegate.Message.DeadLetter. It imports nothing.
package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// The statuses of the protocol (apache.rocketmq.v2.Code) that programs need not distinguish, or
// that no error has. Package tidegate has the others; Code.String returns the name of each.
const (
	CodeOK                            = 20000
	CodeMultipleResults               = 30000
	CodeIllegalTopic                  = 40002
	CodeIllegalConsumerGroup          = 40003
	CodeIllegalMessageTag             = 40004
	CodeIllegalMessageKey             = 40005
	CodeIllegalMessageGroup           = 40006
	CodeIllegalMessagePropertyKey     = 40007
	CodeInvalidTransactionID          = 40008
	CodeIllegalMessageID              = 40009
	CodeIllegalFilterExpression       = 40010
	CodeIllegalInvisibleTime          = 40011
	CodeIllegalDeliveryTime           = 40012
	CodeMessagePropertyConflict       = 40014
	CodeUnrecognizedClientType        = 40015
	CodeMessageCorrupted              = 40016
	CodeClientIDRequired              = 40017
	CodeIllegalPollingTime            = 40018
	CodeIllegalOffset                 = 40019
	CodeIllegalLiteTopic              = 40020
	CodeInvalidClientProperties       = 40021
	CodePaymentRequired               = 40200
	CodeMessageNotFound               = 40401
	CodeConsumerGroupNotFound         = 40403
	CodeOffsetNotFound                = 40404
	CodeRequestTimeout                = 40800
	CodePayloadTooLarge               = 41300
	CodeMessageBodyEmpty              = 41302
	CodePreconditionFailed            = 42800
	CodeLiteTopicQuotaExceeded        = 42901
	CodeLiteSubscriptionQuotaExceeded = 42902
	CodeRequestHeaderFieldsTooLarge   = 43100
	CodeMessagePropertiesTooLarge     = 43101
	CodeInternalError                 = 50000
	CodeHANotAvailable                = 50002
	CodeProxyTimeout                  = 50400
	CodeMasterPersistenceTimeout      = 50401
	CodeSlavePersistenceTimeout       = 50402
	CodeUnsupported                   = 50500
	CodeVersionUnsupported            = 50501
	CodeVerifyFIFOMessageUnsupported  = 50502
	CodeFailedToConsumeMessage        = 60000
)

// ReplyTooManyRequests is the reply code of a throttled request: "reply-code:530,
// reply-text:TOO_MANY_REQUESTS" (RocketMQ: sending retry and throttling). On the gRPC wire it is
// tidegate.CodeTooManyRequests, with a text that begins with the number and the name.
const ReplyTooManyRequests = 530

// Lengths that tidegate.ValidateTopic, ValidateGroup and Message.Validate check. The first two are
// limits of RocketMQ 5's proxy, the next two are the tidegate broker's.
const (
	MaxTopicLength        = 127     // characters
	MaxGroupLength        = 120     // characters
	MaxTraceContextLength = 4 << 10 // bytes
	MaxMessageIDLength    = 255     // bytes

	MaxProperties     = 128      // user properties of a message; of RocketMQ 5's proxy too
	MaxPropertiesSize = 16 << 10 // bytes of properties, tag and keys together; likewise
)

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

const (
	redriveSuffix = ".redrive-"

	maxMessageID     = 255 // bytes
	maxRedriveDigits = 10  // of the number of a redrive
)

// RedrivenID returns the new ID of a dead letter that a client sends back: the first ID of the
// message with the suffix ".redrive-N". The message has been redriven redrives times before.
func RedrivenID(id string, redrives int) string {
	return FirstID(id, redrives) + redriveSuffix + strconv.Itoa(redrives+1)
}

// FirstID returns the ID before all redrives of a message that has been redriven redrives times. A
// long ID is replaced by its hash, because the message has the hash when it returns.
func FirstID(id string, redrives int) string {
	id = strings.TrimSuffix(id, redriveSuffix+strconv.Itoa(redrives))
	if len(id) > maxMessageID-len(redriveSuffix)-maxRedriveDigits {
		sum := sha256.Sum256([]byte(id))
		id = hex.EncodeToString(sum[:])
	}
	return id
}

// CutRedrive returns the first ID and the number of redrives of an ID that RedrivenID returned. For
// other IDs it returns the ID and 0.
func CutRedrive(id string) (first string, redrives int) {
	i := strings.LastIndex(id, redriveSuffix)
	if i <= 0 {
		return id, 0
	}
	number := id[i+len(redriveSuffix):]
	n, err := strconv.Atoi(number)
	if err != nil || n <= 0 || strconv.Itoa(n) != number {
		return id, 0
	}
	return id[:i], n
}
