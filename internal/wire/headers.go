package wire

import "github.com/tidegate/tidegate/internal/rmqpb"

// Names of headers that RocketMQ's clients send.
const (
	HeaderAuthorization = "authorization"
	HeaderDateTime      = "x-mq-date-time"
	HeaderClientID      = "x-mq-client-id"
	HeaderLanguage      = "x-mq-language"
	HeaderClientVersion = "x-mq-client-version"
)

// Names of headers and trailers that tidegate's broker and its SDK agree on. RocketMQ ignores them.
const (
	// HeaderFeatures of a response has the extensions of the server beyond RocketMQ 5.2; of a
	// request, those of the client.
	HeaderFeatures = "x-tidegate-features"
	HeaderReason   = "x-tidegate-reason" // of a dead letter, percent-encoded
	// HeaderRepeat marks a request whose response was lost. For ChangeInvisibleDuration the handle
	// may have been replaced since. For ReceiveMessage it requests the deliveries of the receive
	// with the same attempt ID, and no new ones.
	HeaderRepeat    = "x-tidegate-repeat"
	HeaderLadder    = "x-tidegate-ladder"    // of a failure: the broker's own interval holds
	HeaderSnooze    = "x-tidegate-snooze"    // of ChangeInvisibleDuration: it ends the delivery, whose attempt does not count
	HeaderMaxBytes  = "x-tidegate-max-bytes" // of ReceiveMessage: ReceiveRequest.MaxBytes
	HeaderReconsume = "x-tidegate-reconsume" // of ChangeInvisibleDuration: it ends a failed delivery as in Apache Pulsar
	TrailerPushBack = "grpc-retry-pushback-ms"
	// TrailerPushBacks is TrailerPushBack for each run of messages with the same topic, joined by
	// commas; 0 means none. It is for a SendMessage with several topics.
	TrailerPushBacks = "x-tidegate-pushback-topics"
	TrailerRetry     = "x-tidegate-retry" // the fate of a message whose consumption failed
	// TrailerWatched is true if a receive has left a watch: the Telemetry stream reports when there
	// may be another message.
	TrailerWatched = "x-tidegate-watched"
)

// Features that a server announces; package server documents them. A client announces "packed",
// "brief", "watch", "heartbeats" and "topics".
const (
	FeatureBatch      = "batch"
	FeaturePushBack   = "pushback"
	FeatureSuspend    = "suspend"
	FeatureDeadLetter = "deadletter"
	FeatureRetry      = "retry"
	FeatureRepeat     = "repeat"
	FeatureSnooze     = "snooze"
	FeatureReconsume  = "reconsume"
	FeatureQueues     = "queues"
	FeaturePacked     = "packed" // the client reads many messages in one frame of a receive
	FeatureTopics     = "topics" // the messages of a SendMessage can have different topics
	FeatureWatch      = "watch"  // of Telemetry: the client reads the queues of watches; of ReceiveMessage: it asks for a watch
	FeatureBrief      = "brief"  // an AckMessage whose entries all succeeded needs no entries in the response

	// FeatureHeartbeats of Heartbeat: it counts for all clients with a Telemetry stream on its
	// connection. Of Telemetry: the client may share such heartbeats, and sends its settings again
	// when the server asks for them.
	FeatureHeartbeats = "heartbeats"
)

// OK is the status of every successful response. It is shared and never changed.
var OK = &rmqpb.Status{Code: rmqpb.Code_OK, Message: "OK"}

// A Queue is the subject of a watch.
type Queue struct {
	Topic string
	Queue int32 // -1 for all queues
}

// ReadyCommand returns the command that reports that receives from the queues may find messages. To
// RocketMQ's clients it is a command without contents.
func ReadyCommand(queues []Queue) *rmqpb.TelemetryCommand {
	cmd := &rmqpb.TelemetryCommand{Status: &rmqpb.Status{Code: rmqpb.Code_OK}}
	for _, q := range queues {
		cmd.Ready = append(cmd.Ready, &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: q.Topic}, Id: q.Queue})
	}
	return cmd
}

// ReadyQueues returns the queues of a ReadyCommand, and none of another command.
func ReadyQueues(cmd *rmqpb.TelemetryCommand) (queues []Queue) {
	for _, q := range cmd.GetReady() {
		queues = append(queues, Queue{q.GetTopic().GetName(), q.GetId()})
	}
	return queues
}
