package tidegate

import (
	"strconv"

	"github.com/tidegate/tidegate/internal/protocol"
)

// A Code is a status of the RocketMQ 5 protocol (apache.rocketmq.v2.Code). Zero means that there
// was no response. A code that has no constant here has a name too: see [Code.String].
type Code int32

// The codes that programs distinguish, or that a transport returns, by RocketMQ's names. The
// sentinel errors match whole ranges of codes ([Error.Is]).
const (
	CodeBadRequest                Code = 40000
	CodeIllegalAccessPoint        Code = 40001
	CodeIllegalTopic              Code = 40002
	CodeIllegalConsumerGroup      Code = 40003
	CodeIllegalFilterExpression   Code = 40010
	CodeIllegalInvisibleTime      Code = 40011
	CodeIllegalDeliveryTime       Code = 40012
	CodeInvalidReceiptHandle      Code = 40013
	CodeMessagePropertyConflict   Code = 40014
	CodeUnauthorized              Code = 40100
	CodeForbidden                 Code = 40300
	CodeNotFound                  Code = 40400
	CodeTopicNotFound             Code = 40402
	CodeConsumerGroupNotFound     Code = 40403
	CodeRequestTimeout            Code = 40800
	CodeMessageBodyTooLarge       Code = 41301
	CodeTooManyRequests           Code = 42900
	CodeMessagePropertiesTooLarge Code = 43101
	CodeInternalServerError       Code = 50001
	CodeNotImplemented            Code = 50100
)

var codeNames = map[Code]string{
	protocol.CodeOK: "OK", protocol.CodeMultipleResults: "MULTIPLE_RESULTS", CodeBadRequest: "BAD_REQUEST",
	CodeIllegalAccessPoint: "ILLEGAL_ACCESS_POINT", CodeIllegalTopic: "ILLEGAL_TOPIC",
	CodeIllegalConsumerGroup: "ILLEGAL_CONSUMER_GROUP", protocol.CodeIllegalMessageTag: "ILLEGAL_MESSAGE_TAG",
	protocol.CodeIllegalMessageKey: "ILLEGAL_MESSAGE_KEY", protocol.CodeIllegalMessageGroup: "ILLEGAL_MESSAGE_GROUP",
	protocol.CodeIllegalMessagePropertyKey: "ILLEGAL_MESSAGE_PROPERTY_KEY",
	protocol.CodeInvalidTransactionID:      "INVALID_TRANSACTION_ID", protocol.CodeIllegalMessageID: "ILLEGAL_MESSAGE_ID",
	CodeIllegalFilterExpression: "ILLEGAL_FILTER_EXPRESSION", CodeIllegalInvisibleTime: "ILLEGAL_INVISIBLE_TIME",
	CodeIllegalDeliveryTime: "ILLEGAL_DELIVERY_TIME", CodeInvalidReceiptHandle: "INVALID_RECEIPT_HANDLE",
	CodeMessagePropertyConflict:         "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
	protocol.CodeUnrecognizedClientType: "UNRECOGNIZED_CLIENT_TYPE",
	protocol.CodeMessageCorrupted:       "MESSAGE_CORRUPTED", protocol.CodeClientIDRequired: "CLIENT_ID_REQUIRED",
	protocol.CodeIllegalPollingTime: "ILLEGAL_POLLING_TIME", protocol.CodeIllegalOffset: "ILLEGAL_OFFSET",
	CodeUnauthorized: "UNAUTHORIZED", CodeForbidden: "FORBIDDEN", CodeNotFound: "NOT_FOUND",
	protocol.CodeMessageNotFound: "MESSAGE_NOT_FOUND", CodeTopicNotFound: "TOPIC_NOT_FOUND",
	CodeConsumerGroupNotFound: "CONSUMER_GROUP_NOT_FOUND", protocol.CodeOffsetNotFound: "OFFSET_NOT_FOUND",
	CodeRequestTimeout: "REQUEST_TIMEOUT", protocol.CodePayloadTooLarge: "PAYLOAD_TOO_LARGE",
	CodeMessageBodyTooLarge: "MESSAGE_BODY_TOO_LARGE", protocol.CodeMessageBodyEmpty: "MESSAGE_BODY_EMPTY",
	protocol.CodePreconditionFailed: "PRECONDITION_FAILED", CodeTooManyRequests: "TOO_MANY_REQUESTS",
	protocol.CodeRequestHeaderFieldsTooLarge: "REQUEST_HEADER_FIELDS_TOO_LARGE",
	CodeMessagePropertiesTooLarge:            "MESSAGE_PROPERTIES_TOO_LARGE", protocol.CodeInternalError: "INTERNAL_ERROR",
	CodeInternalServerError: "INTERNAL_SERVER_ERROR", protocol.CodeHANotAvailable: "HA_NOT_AVAILABLE",
	CodeNotImplemented: "NOT_IMPLEMENTED", protocol.CodeProxyTimeout: "PROXY_TIMEOUT",
	protocol.CodeMasterPersistenceTimeout: "MASTER_PERSISTENCE_TIMEOUT",
	protocol.CodeSlavePersistenceTimeout:  "SLAVE_PERSISTENCE_TIMEOUT", protocol.CodeUnsupported: "UNSUPPORTED",
	protocol.CodeVersionUnsupported:           "VERSION_UNSUPPORTED",
	protocol.CodeVerifyFIFOMessageUnsupported: "VERIFY_FIFO_MESSAGE_UNSUPPORTED",
	protocol.CodeFailedToConsumeMessage:       "FAILED_TO_CONSUME_MESSAGE",
}

// String returns RocketMQ's name of the code. For an unknown code it returns the number.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return strconv.Itoa(int(c))
}
