// Package wire converts between RocketMQ's messages, package rmqpb, and the types of the engine:
// limits of requests before they are decoded ([Codec]), received messages ([Message]), deliveries
// ([Deliveries]), and statuses, endpoints, retry policies and checks for clients. It is pure: it
// knows neither an engine nor a connection.
package wire
