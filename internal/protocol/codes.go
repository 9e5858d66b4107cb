package protocol

// The statuses of the protocol (apache.rocketmq.v2.Code) that programs need not distinguish, or
// that no error has.
// Package tidegate has the others; Code.String returns the name of each.
const (
	CodeOK                           = 20000
	CodeMultipleResults              = 30000
	CodeIllegalMessageTag            = 40004
	CodeIllegalMessageKey            = 40005
	CodeIllegalMessageGroup          = 40006
	CodeIllegalMessagePropertyKey    = 40007
	CodeInvalidTransactionID         = 40008
	CodeIllegalMessageID             = 40009
	CodeUnrecognizedClientType       = 40015
	CodeMessageCorrupted             = 40016
	CodeClientIDRequired             = 40017
	CodeIllegalPollingTime           = 40018
	CodeIllegalOffset                = 40019
	CodeMessageNotFound              = 40401
	CodeOffsetNotFound               = 40404
	CodePayloadTooLarge              = 41300
	CodeMessageBodyEmpty             = 41302
	CodePreconditionFailed           = 42800
	CodeRequestHeaderFieldsTooLarge  = 43100
	CodeInternalError                = 50000
	CodeHANotAvailable               = 50002
	CodeProxyTimeout                 = 50400
	CodeMasterPersistenceTimeout     = 50401
	CodeSlavePersistenceTimeout      = 50402
	CodeUnsupported                  = 50500
	CodeVersionUnsupported           = 50501
	CodeVerifyFIFOMessageUnsupported = 50502
	CodeFailedToConsumeMessage       = 60000
)

// ReplyTooManyRequests is the reply code of a throttled request: "reply-code:530,
// reply-text:TOO_MANY_REQUESTS" (RocketMQ: sending retry and throttling). On the gRPC wire it is
// tidegate.CodeTooManyRequests, with a text that begins with the number and the name.
const ReplyTooManyRequests = 530

// Lengths that tidegate.ValidateTopic, ValidateGroup and Message.Validate check. The first two are
// limits of RocketMQ 5's proxy, the last one is the tidegate broker's.
const (
	MaxTopicLength        = 127     // characters
	MaxGroupLength        = 120     // characters
	MaxTraceContextLength = 4 << 10 // bytes
)
