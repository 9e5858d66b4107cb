// Package rmqpb is RocketMQ 5's gRPC contract (apache.rocketmq.v2) in Go:
// messages, client and server of the MessagingService. The code is generated
// from definition.proto and service.proto beside this file, whose names and
// numbers are RocketMQ's. Only the proto package has a name of our own, so
// that a program may link RocketMQ's Go client too; on the wire the two are
// the same.
package rmqpb

//go:generate go run ./internal/gen -out .
