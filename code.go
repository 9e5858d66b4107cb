package tidegate

import "strconv"

// A Code is a status of the RocketMQ 5 protocol (apache.rocketmq.v2.Code). Zero means that there
// was no response.
type Code int32

// The codes of the protocol, by RocketMQ's names.
const (
	CodeOK                           Code = 20000
	CodeMultipleResults              Code = 30000
	CodeBadRequest                   Code = 40000
	CodeIllegalAccessPoint           Code = 40001
	CodeIllegalTopic                 Code = 40002
	CodeIllegalConsumerGroup         Code = 40003
	CodeIllegalMessageTag            Code = 40004
	CodeIllegalMessageKey            Code = 40005
	CodeIllegalMessageGroup          Code = 40006
	CodeIllegalMessagePropertyKey    Code = 40007
	CodeInvalidTransactionID         Code = 40008
	CodeIllegalMessageID             Code = 40009
	CodeIllegalFilterExpression      Code = 40010
	CodeIllegalInvisibleTime         Code = 40011
	CodeIllegalDeliveryTime          Code = 40012
	CodeInvalidReceiptHandle         Code = 40013
	CodeMessagePropertyConflict      Code = 40014
	CodeUnrecognizedClientType       Code = 40015
	CodeMessageCorrupted             Code = 40016
	CodeClientIDRequired             Code = 40017
	CodeIllegalPollingTime           Code = 40018
	CodeIllegalOffset                Code = 40019
	CodeUnauthorized                 Code = 40100
	CodeForbidden                    Code = 40300
	CodeNotFound                     Code = 40400
	CodeMessageNotFound              Code = 40401
	CodeTopicNotFound                Code = 40402
	CodeConsumerGroupNotFound        Code = 40403
	CodeOffsetNotFound               Code = 40404
	CodeRequestTimeout               Code = 40800
	CodePayloadTooLarge              Code = 41300
	CodeMessageBodyTooLarge          Code = 41301
	CodeMessageBodyEmpty             Code = 41302
	CodePreconditionFailed           Code = 42800
	CodeTooManyRequests              Code = 42900
	CodeRequestHeaderFieldsTooLarge  Code = 43100
	CodeMessagePropertiesTooLarge    Code = 43101
	CodeInternalError                Code = 50000
	CodeInternalServerError          Code = 50001
	CodeHANotAvailable               Code = 50002
	CodeNotImplemented               Code = 50100
	CodeProxyTimeout                 Code = 50400
	CodeMasterPersistenceTimeout     Code = 50401
	CodeSlavePersistenceTimeout      Code = 50402
	CodeUnsupported                  Code = 50500
	CodeVersionUnsupported           Code = 50501
	CodeVerifyFIFOMessageUnsupported Code = 50502
	CodeFailedToConsumeMessage       Code = 60000
)

// ReplyTooManyRequests is the reply code of a throttled request: "reply-code:530,
// reply-text:TOO_MANY_REQUESTS" (RocketMQ: sending retry and throttling). On the gRPC wire it is
// [CodeTooManyRequests], with a text that begins with the number and the name.
const ReplyTooManyRequests = 530

var codeNames = map[Code]string{
	CodeOK: "OK", CodeMultipleResults: "MULTIPLE_RESULTS", CodeBadRequest: "BAD_REQUEST",
	CodeIllegalAccessPoint: "ILLEGAL_ACCESS_POINT", CodeIllegalTopic: "ILLEGAL_TOPIC",
	CodeIllegalConsumerGroup: "ILLEGAL_CONSUMER_GROUP", CodeIllegalMessageTag: "ILLEGAL_MESSAGE_TAG",
	CodeIllegalMessageKey: "ILLEGAL_MESSAGE_KEY", CodeIllegalMessageGroup: "ILLEGAL_MESSAGE_GROUP",
	CodeIllegalMessagePropertyKey: "ILLEGAL_MESSAGE_PROPERTY_KEY", CodeInvalidTransactionID: "INVALID_TRANSACTION_ID",
	CodeIllegalMessageID: "ILLEGAL_MESSAGE_ID", CodeIllegalFilterExpression: "ILLEGAL_FILTER_EXPRESSION",
	CodeIllegalInvisibleTime: "ILLEGAL_INVISIBLE_TIME", CodeIllegalDeliveryTime: "ILLEGAL_DELIVERY_TIME",
	CodeInvalidReceiptHandle: "INVALID_RECEIPT_HANDLE", CodeMessagePropertyConflict: "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
	CodeUnrecognizedClientType: "UNRECOGNIZED_CLIENT_TYPE", CodeMessageCorrupted: "MESSAGE_CORRUPTED",
	CodeClientIDRequired: "CLIENT_ID_REQUIRED", CodeIllegalPollingTime: "ILLEGAL_POLLING_TIME",
	CodeIllegalOffset: "ILLEGAL_OFFSET", CodeUnauthorized: "UNAUTHORIZED", CodeForbidden: "FORBIDDEN",
	CodeNotFound: "NOT_FOUND", CodeMessageNotFound: "MESSAGE_NOT_FOUND", CodeTopicNotFound: "TOPIC_NOT_FOUND",
	CodeConsumerGroupNotFound: "CONSUMER_GROUP_NOT_FOUND", CodeOffsetNotFound: "OFFSET_NOT_FOUND",
	CodeRequestTimeout: "REQUEST_TIMEOUT", CodePayloadTooLarge: "PAYLOAD_TOO_LARGE",
	CodeMessageBodyTooLarge: "MESSAGE_BODY_TOO_LARGE", CodeMessageBodyEmpty: "MESSAGE_BODY_EMPTY",
	CodePreconditionFailed: "PRECONDITION_FAILED", CodeTooManyRequests: "TOO_MANY_REQUESTS",
	CodeRequestHeaderFieldsTooLarge: "REQUEST_HEADER_FIELDS_TOO_LARGE", CodeMessagePropertiesTooLarge: "MESSAGE_PROPERTIES_TOO_LARGE",
	CodeInternalError: "INTERNAL_ERROR", CodeInternalServerError: "INTERNAL_SERVER_ERROR",
	CodeHANotAvailable: "HA_NOT_AVAILABLE", CodeNotImplemented: "NOT_IMPLEMENTED", CodeProxyTimeout: "PROXY_TIMEOUT",
	CodeMasterPersistenceTimeout: "MASTER_PERSISTENCE_TIMEOUT", CodeSlavePersistenceTimeout: "SLAVE_PERSISTENCE_TIMEOUT",
	CodeUnsupported: "UNSUPPORTED", CodeVersionUnsupported: "VERSION_UNSUPPORTED",
	CodeVerifyFIFOMessageUnsupported: "VERIFY_FIFO_MESSAGE_UNSUPPORTED", CodeFailedToConsumeMessage: "FAILED_TO_CONSUME_MESSAGE",
}

// String returns RocketMQ's name of the code. For an unknown code it returns the number.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return strconv.Itoa(int(c))
}
