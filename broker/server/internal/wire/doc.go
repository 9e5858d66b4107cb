// Package wire converts between RocketMQ's messages, package rmqpb, and the types of the engine:
// limits of requests before they are decoded ([Codec]), received messages ([Message]), deliveries
// ([Deliveries]), and statuses, endpoints, retry policies and checks for clients. It calls neither
// the engine nor a connection. It reads the clock, reuses buffers, and reserves the memory of large
// requests and responses in package transit.
package wire
