// Package tidegate holds the words that the packages of the SDK and of the
// broker share: [Message], [Receipt], [Delivery], [Error] and [Code]. It
// imports only the standard library.
//
// Start with package producer to send, package consumer to receive, package
// transport/rocketmq for the connection to Apache RocketMQ 5 or to the
// tidegate broker, and package broker/brokertest for a broker inside a test.
package tidegate
