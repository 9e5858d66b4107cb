// Package tidegate has the types that the SDK and the broker share: [Message], [Receipt],
// [Delivery], [Error] and [Code]. Beside the standard library it imports only the
// constants of internal/protocol.
//
// To send, start with package producer; to receive, with package consumer. Package
// transport/rocketmq connects both to Apache RocketMQ 5 or to the tidegate broker. Package
// broker/brokertest runs a broker inside a test.
package tidegate
