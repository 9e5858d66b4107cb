// Package wire converts messages between the SDK's types and RocketMQ's protocol: the encoding of
// sends, and the decoding of deliveries straight from the frames of a receive. It is pure, apart
// from pools of memory.
package wire
