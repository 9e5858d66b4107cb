// Package wire is between RocketMQ's messages, package rmqpb, and the engine's words:
// what a request may be before it is decoded ([Codec]), messages as they come
// ([Message]) and as they go out ([Deliveries]), and statuses, endpoints, retry
// policies and checks as clients read them. It is pure: no engine, no connection.
package wire
